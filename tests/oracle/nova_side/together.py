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
    made = host_manager.HostManager.__new__(host_manager.HostManager)
    made.filter_handler, made.weight_handler = (
        filters.HostFilterHandler(),
        weights.HostWeightHandler(),
    )
    made.enabled_filters, made.weighers = rules, preferences
    return made


def _in_cell(states, spec):
    """Nova looks at no other cell than the requested one, unless it may be left."""
    wanted = spec.requested_destination
    if wanted is None or 'cell' not in wanted or not wanted.cell or wanted.allow_cross_cell_move:
        return states
    return [state for state in states if state.cell_uuid == wanted.cell.uuid]


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
        left = _manager([], []).get_filtered_hosts(_in_cell(states, spec), spec)
        kept = {(state.host, state.nodename) for state in left}
        named = ''.join('p' if (s.host, s.nodename) in kept else 'r' for s in states)
    if request.get('several'):
        with contextlib.suppress(Exception):
            several = _several(request, spec, fresh(), rules, preferences)
    return {'named': named, 'several': several}


def _several(request, spec, states, rules, preferences) -> list[dict[str, float]]:
    """One after the other, each on what those before have left."""
    asked = [n for n in request['ask'] if n not in _INSIDE]
    made = _manager(
        [copy.copy(rules[n]) for n in asked if n in rules],
        [preferences[n] for n in asked if n in preferences],
    )
    steps = []
    left = _in_cell(states, spec)
    for number, uuid in enumerate([request['consumer'], *request['several']]):
        spec.instance_uuid = uuid
        found = list(made.get_filtered_hosts(left, spec, number))
        if not found:
            return [*steps, {}]
        weighed = made.get_weighed_hosts(found, spec)
        # The next one is looked for among these, as the scheduler does it.
        left = [one.obj for one in weighed]
        steps.append({one.obj.nodename: one.weight for one in weighed})
        manager.SchedulerManager._consume_selected_host(weighed[0].obj, spec, uuid)
    return steps
