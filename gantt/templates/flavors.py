# SPDX-License-Identifier: Apache-2.0
"""Flavors in a file, by name and by id, as columns of Nova's flavors.

The file is an answer of Nova's ``GET /flavors/detail``, or what ``openstack flavor list --long -f
json`` prints.
"""

from collections.abc import Mapping
from typing import Any

from gantt import exceptions

Flavors = Mapping[str, dict[str, Any]]
#: Keys of both forms in lower case -> column.
_COLUMNS = {
    'vcpus': 'vcpus',
    'ram': 'memory_mb',
    'disk': 'root_gb',
    'ephemeral': 'ephemeral_gb',
    'os-flv-ext-data:ephemeral': 'ephemeral_gb',
    'swap': 'swap',
}


def read_flavors(document: Any) -> Flavors:
    """Return the flavors by name and by id.

    :raises InvalidMessage: names the flavor and the field
    """
    rows = document.get('flavors') if isinstance(document, dict) else document
    if not isinstance(rows, list):
        raise exceptions.invalid('flavors', 'expected a list of flavors')
    flavors: dict[str, dict[str, Any]] = {}
    for number, row in enumerate(rows):
        flavor = _columns_of(row, f'flavors[{number}]')
        for key in (flavor['id'], flavor['name']):
            if key and flavors.setdefault(key, flavor) is not flavor:
                raise exceptions.invalid(
                    f'flavors[{number}]', f'{key!r} is the name or id of another flavor as well'
                )
    return flavors


def _columns_of(row: Any, field: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise exceptions.invalid(field, 'expected an object')
    cells = {str(key).lower(): value for key, value in row.items()}
    name = cells.get('name')
    if not isinstance(name, str) or not name:
        raise exceptions.invalid(f'{field}.name', 'expected the name of a flavor')
    extra_specs = cells.get('extra_specs', cells.get('properties')) or {}
    if not isinstance(extra_specs, dict):
        raise exceptions.invalid(f'{field}.extra_specs', 'expected an object, by key')
    columns = {column: cells[key] or 0 for key, column in _COLUMNS.items() if key in cells}
    for column in ('vcpus', 'memory_mb'):
        if not columns.get(column):
            raise exceptions.invalid(f'{field}.{column}', f'expected the {column} of {name}')
    return {
        **columns,
        'id': str(cells.get('id') or ''),
        'name': name,
        'extra_specs': extra_specs,
    }
