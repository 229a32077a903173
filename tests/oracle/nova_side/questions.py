# SPDX-License-Identifier: Apache-2.0
"""What each of Nova's filters and weighers says of each host of a case."""

import contextlib
import copy
import functools
from typing import Any

import placement
import specs
import together
import world
from nova import objects
from nova.scheduler import filters, weights
from nova.virt import hardware
from nova.weights import WeighedObject, normalize

FILTERS = {c.__name__: c for c in filters.all_filters()}
#: Cells of the host last asked that a guest does not fit on and was laid on all the same.
_unfit: list[int] = []
WEIGHERS = {c.__name__: c for c in weights.all_weighers()}


def give_weighers_their_guests() -> None:
    """One weigher reads images of guests from the database; here the guests carry theirs."""
    objects.CellMapping.get_by_uuid = lambda context, uuid: objects.CellMapping(uuid=uuid)
    objects.InstanceList.fill_metadata = lambda self: None

    @contextlib.contextmanager
    def target_cell(context, cell):
        yield context

    import nova.context

    nova.context.target_cell = target_cell


def check_layouts() -> None:
    """Note where Nova lays a guest out so that a cell, asked alone, does not fit."""
    fit, fits = hardware.numa_fit_instance_to_host, hardware._numa_fit_instance_cell

    def checked(host_topology, instance_topology, provider_mapping, limits=None, *args, **kwargs):
        plain = copy.deepcopy(instance_topology)
        topology = fit(host_topology, instance_topology, provider_mapping, limits, *args, **kwargs)
        if topology is not None and len(topology.cells) > 1:
            cells = {cell.id: cell for cell in host_topology.cells}
            apart = int(plain.emulator_threads_isolated)
            for number, (there, guest) in enumerate(zip(topology.cells, plain.cells, strict=True)):
                if fits(cells[there.id], guest, limits, apart if number == 0 else 0) is None:
                    _unfit.append(there.id)
        return topology

    hardware.numa_fit_instance_to_host = checked


def ask(cloud: dict[str, Any], requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Every request on its own: none takes anything, and what one leaves behind is removed."""
    with world.options(cloud['options']):
        nodes = [world.compute_node(host) for host in cloud['hosts']]
        groups = world.aggregates(cloud['aggregates'])
        rules = {name: cls() for name, cls in FILTERS.items()}
        preferences = {name: cls() for name, cls in WEIGHERS.items()}
        fresh = functools.partial(world.host_states, cloud['hosts'], nodes, groups)
        states = fresh()
        return {
            'nodes': [node.obj_to_primitive() for node in nodes],
            'aggregates': [aggregate.obj_to_primitive() for aggregate in groups],
            'images': {
                uuid: guest.image_meta.properties.obj_to_primitive()['nova_object.data']
                for state in states
                for uuid, guest in state.instances.items()
            },
            'answers': [
                _answer(request, states, rules, preferences, groups)
                | together.ask(request, states, fresh, rules, preferences)
                for request in requests
            ],
        }


def _answer(request, states, rules, preferences, groups) -> dict[str, Any]:
    try:
        spec = specs.request_spec(request)
        primitive = spec.obj_to_primitive()
    except Exception as e:
        return {'refused': f'{type(e).__name__}: {e}'}
    plugins = request.get('ask')
    raised: dict[str, str] = {}
    unfit: list[str] = []
    verdicts = {
        name: ''.join(_verdict(name, rule, state, spec, raised, unfit) for state in states)
        for name, rule in rules.items()
        if plugins is None or name in plugins
    }
    weighed = {
        name: _weigh(name, weigher, states, spec, raised)
        for name, weigher in preferences.items()
        if plugins is None or name in plugins
    }
    return {
        'spec': primitive,
        'filters': verdicts,
        'weighers': weighed,
        'raised': raised,
        'unfit': unfit,
        'asked': placement.asked(spec, groups),
    }


def _verdict(name, rule, state, spec, raised, unfit) -> str:
    """p: passes, r: is rejected, x: the filter raises."""
    kept, state.limits = state.allocation_candidates, {}
    _unfit.clear()
    try:
        return 'p' if rule._filter_one(state, spec) else 'r'
    except Exception as e:
        raised.setdefault(name, f'{type(e).__name__}: {e}')
        return 'x'
    finally:
        state.allocation_candidates = kept
        unfit += [state.nodename] if _unfit else []


def _weigh(name, weigher, states, spec, raised) -> dict[str, Any] | None:
    """Raw values and weights by host; None: the weigher raises."""
    try:
        raw = list(weigher.weigh_objects([WeighedObject(s, 0.0) for s in states], spec))
        scaled = normalize(raw, minval=weigher.minval, maxval=weigher.maxval)
        weight = [weigher.weight_multiplier(s) * x for s, x in zip(states, scaled, strict=True)]
    except Exception as e:
        raised.setdefault(name, f'{type(e).__name__}: {e}')
        return None
    return {'raw': raw, 'weight': weight}
