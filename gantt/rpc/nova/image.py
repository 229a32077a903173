# SPDX-License-Identifier: Apache-2.0
"""Image properties of Nova as text: as operators write them, and as our requests carry them."""

from typing import Any

from gantt import exceptions

#: Properties that have a value for each NUMA cell; operators write ``name.0``, ``name.1``, ...
_BY_CELL = ('hw_numa_cpus', 'hw_numa_mem')
#: Prefix of image properties in an instance's own metadata.
_PREFIX = 'image_'


def properties(found: dict[str, Any], field: str) -> dict[str, str]:
    """Return fields of ImageMetaProps as text; lists joined by commas, those by cell one by one.

    :param field: their name in an error
    :raises InvalidMessage: names the property
    """
    given_properties = {
        name: ','.join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in found.items()
        if value is not None
    }
    for name in _BY_CELL:
        if found.get(name) is not None:
            given_properties |= _by_cell(name, found[name], f'{field}.{name}')
    return given_properties


def _by_cell(name: str, value: Any, field: str) -> dict[str, str]:
    """Return ``[[0], [1, 2]]`` as ``name.0`` and ``name.1``; sets of numbers joined by commas."""
    if not isinstance(value, list):
        raise exceptions.invalid(field, 'expected a list with a value by cell')
    return {
        f'{name}.{cell}': ','.join(map(str, sorted(cell_value)))
        if isinstance(cell_value, list)
        else str(cell_value)
        for cell, cell_value in enumerate(value)
    }


def of_instance(metadata: Any) -> dict[str, str]:
    """Return image properties that an instance keeps in its ``system_metadata``."""
    if not isinstance(metadata, dict):
        return {}
    return {
        name.removeprefix(_PREFIX): str(value)
        for name, value in metadata.items()
        if name.startswith(_PREFIX) and value is not None
    }
