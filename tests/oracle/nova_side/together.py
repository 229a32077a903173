# SPDX-License-Identifier: Apache-2.0
"""Which hosts Nova's host manager leaves by their names, and where several instances go."""

import contextlib
import copy
from typing import Any

import specs
from nova.scheduler import filters, host_manager, manager, weights

#: They look inside of hosts, and are asked otherwise.
_INSIDE = {'NUMATopologyFilter', 'PciPassthroughFilter'}


def _manager(rules: list[Any], preferences: list[Any]) -> host_manager.HostManager:
    """A host manager with these, and without what asks databases."""
    host_side = host_manager.HostManager.__new__(host_manager.HostManager)
    host_side.filter_handler, host_side.weight_handler = (
        filters.HostFilterHandler(),
        weights.HostWeightHandler(),
    )
    host_side.enabled_filters, host_side.weighers = rules, preferences
    return host_side


def _in_cell(states, spec):
    """Nova looks at no other cell than the requested one, unless it may be left."""
    destination = spec.requested_destination
    if (
        destination is None
        or 'cell' not in destination
        or not destination.cell
        or destination.allow_cross_cell_move
    ):
        return states
    return [state for state in states if state.cell_uuid == destination.cell.uuid]


def ask(request, states, fresh, rules, preferences) -> dict[str, Any]:
    """``named``: p or r for each host; ``several``: for each instance the weights of its hosts.

    None of what Nova raises at.

    :param fresh: makes the states anew, for those that take something
    """
    try:
        spec = specs.request_spec(request)
    except Exception:
        return {}
    named = several = None
    # Whatever it raises: what fails for one alone is compared there.
    with contextlib.suppress(Exception):
        passing = _manager([], []).get_filtered_hosts(_in_cell(states, spec), spec)
        kept = {(state.host, state.nodename) for state in passing}
        named = ''.join('p' if (s.host, s.nodename) in kept else 'r' for s in states)
    if request.get('several'):
        with contextlib.suppress(Exception):
            several = _several(request, spec, fresh(), rules, preferences)
    return {'named': named, 'several': several}


def _several(request, spec, states, rules, preferences) -> list[dict[str, float]]:
    """One after the other, each on what those before have left."""
    asked = [n for n in request['ask'] if n not in _INSIDE]
    host_side = _manager(
        [copy.copy(rules[n]) for n in asked if n in rules],
        [preferences[n] for n in asked if n in preferences],
    )
    steps = []
    remaining = _in_cell(states, spec)
    for number, uuid in enumerate([request['consumer'], *request['several']]):
        spec.instance_uuid = uuid
        passing = list(host_side.get_filtered_hosts(remaining, spec, number))
        if not passing:
            return [*steps, {}]
        weighed = host_side.get_weighed_hosts(passing, spec)
        # The next one is looked for among these, as the scheduler does it.
        remaining = [weighed_host.obj for weighed_host in weighed]
        steps.append({weighed_host.obj.nodename: weighed_host.weight for weighed_host in weighed})
        manager.SchedulerManager._consume_selected_host(weighed[0].obj, spec, uuid)
    return steps
