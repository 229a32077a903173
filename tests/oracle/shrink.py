# SPDX-License-Identifier: Apache-2.0
"""A failing case made small: everything is taken out that the difference does not need."""

import copy
import functools
from collections.abc import Callable, Iterator
from typing import Any

#: Steps at most; each is one question to the oracle.
STEPS_MAX = 600
#: What a field of a host or a request is like when it says nothing.
PLAIN_HOST: dict[str, Any] = {
    'cpu_info': '',
    'metrics': [],
    'numa': None,
    'pci': [],
    'supported': [],
    'guests': [],
    'disk_available_least': None,
    'cpu_allocation_ratio': 1.0,
    'ram_allocation_ratio': 1.0,
    'disk_allocation_ratio': 1.0,
    'hypervisor_version': 0,
    'hypervisor_type': '',
    'host_ip': '10.0.0.1',
    'service': {'disabled': False, 'last_seen_up': 0, 'created_at': 5},
    'vcpus_used': 0,
    'memory_mb_used': 0,
    'local_gb_used': 0,
    'stats': {},
}
PLAIN_REQUEST: dict[str, Any] = {
    'group': None,
    'destination': None,
    'network': None,
    'hints': {},
    'ports': [],
    'image': {'properties': {}},
    'is_bfv': False,
    'project_id': None,
}

Case = dict[str, Any]
Path = tuple[Any, ...]
_GONE = object()


def shrink(case: Case, still_fails: Callable[[Case], bool]) -> Case:
    """A smaller case that fails as well.

    :param case: ``cloud`` and one ``request``
    """
    steps, progress = 0, True
    while progress and steps < STEPS_MAX:
        progress = False
        for path, value in list(_edits(case)):
            smaller = _edited(case, path, value)
            if smaller is None or smaller == case:
                continue
            steps += 1
            if steps > STEPS_MAX:
                break
            if still_fails(smaller):
                case, progress = smaller, True
    return case


def _edits(case: Case) -> Iterator[tuple[Path, Any]]:
    """(path, what to put there, _GONE for nothing), the largest cuts first."""
    cloud, request = case['cloud'], case['request']
    for name in ('hosts', 'aggregates'):
        yield from _all_of(('cloud', name), cloud[name])
    for name, value in PLAIN_REQUEST.items():
        yield ('request', name), value
    for number in range(len(cloud['hosts'])):
        for name, value in PLAIN_HOST.items():
            yield ('cloud', 'hosts', number, name), value
    for group, values in cloud['options'].items():
        yield from _all_of(('cloud', 'options', group), values)
    for i, aggregate in enumerate(cloud['aggregates']):
        yield from _all_of(('cloud', 'aggregates', i, 'metadata'), aggregate['metadata'])
        yield from _all_of(('cloud', 'aggregates', i, 'hosts'), aggregate['hosts'])
    yield from _of_request(request)
    for i, host in enumerate(cloud['hosts']):
        for name in ('guests', 'pci', 'supported', 'metrics', 'stats', 'numa'):
            yield from _all_of(('cloud', 'hosts', i, name), host[name])


def _of_request(request: dict[str, Any]) -> Iterator[tuple[Path, Any]]:
    yield from _all_of(('request', 'flavor', 'extra_specs'), request['flavor']['extra_specs'])
    if request['image']:
        yield from _all_of(('request', 'image', 'properties'), request['image']['properties'])
    yield from _all_of(('request', 'hints'), request['hints'])
    for name, values in (request['hints'] or {}).items():
        yield from _all_of(('request', 'hints', name), values)
    if request['group']:
        for name in ('members', 'hosts', 'rules'):
            yield from _all_of(('request', 'group', name), request['group'][name])


def _all_of(path: Path, items: Any) -> Iterator[tuple[Path, Any]]:
    """Each item of a list, from its end, or of a dictionary."""
    keys = list(items) if isinstance(items, dict) else reversed(range(len(items or ())))
    yield from (((*path, key), _GONE) for key in keys)


def _edited(case: Case, path: Path, value: Any) -> Case | None:
    """The case with one edit; None: there is nothing any more, or there would be no host."""
    smaller = copy.deepcopy(case)
    *way, last = path
    try:
        at = functools.reduce(lambda part, key: part[key], way, smaller)
        if value is _GONE:
            del at[last]
        else:
            at[last] = copy.deepcopy(value)
    except (LookupError, TypeError):
        return None
    return smaller if smaller['cloud']['hosts'] else None
