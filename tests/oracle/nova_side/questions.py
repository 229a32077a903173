# SPDX-License-Identifier: Apache-2.0
"""What each of Nova's filters and weighers says of each host of a case."""

import contextlib
from typing import Any

import specs
import world
from nova import objects
from nova.scheduler import filters, weights
from nova.weights import WeighedObject, normalize

FILTERS = {c.__name__: c for c in filters.all_filters()}
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


def ask(cloud: dict[str, Any], requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Every request on its own: none takes anything, and what one leaves behind is removed."""
    with world.options(cloud['options']):
        nodes = [world.compute_node(host) for host in cloud['hosts']]
        groups = world.aggregates(cloud['aggregates'])
        rules = {name: made() for name, made in FILTERS.items()}
        preferences = {name: made() for name, made in WEIGHERS.items()}
        states = [
            world.host_state(host, node, groups)
            for host, node in zip(cloud['hosts'], nodes, strict=True)
        ]
        return {
            'nodes': [node.obj_to_primitive() for node in nodes],
            'aggregates': [aggregate.obj_to_primitive() for aggregate in groups],
            'images': {
                uuid: guest.image_meta.properties.obj_to_primitive()['nova_object.data']
                for state in states
                for uuid, guest in state.instances.items()
            },
            'answers': [_answer(request, states, rules, preferences) for request in requests],
        }


def _answer(request, states, rules, preferences) -> dict[str, Any]:
    try:
        spec = specs.request_spec(request)
        primitive = spec.obj_to_primitive()
    except Exception as e:
        return {'refused': f'{type(e).__name__}: {e}'}
    wanted = request.get('ask')
    raised: dict[str, str] = {}
    said = {
        name: ''.join(_verdict(name, rule, state, spec, raised) for state in states)
        for name, rule in rules.items()
        if wanted is None or name in wanted
    }
    weighed = {
        name: _weigh(name, weigher, states, spec, raised)
        for name, weigher in preferences.items()
        if wanted is None or name in wanted
    }
    return {'spec': primitive, 'filters': said, 'weighers': weighed, 'raised': raised}


def _verdict(name, rule, state, spec, raised) -> str:
    """p: passes, r: is rejected, x: the filter raises."""
    kept, state.limits = state.allocation_candidates, {}
    try:
        return 'p' if rule._filter_one(state, spec) else 'r'
    except Exception as e:
        raised.setdefault(name, f'{type(e).__name__}: {e}')
        return 'x'
    finally:
        state.allocation_candidates = kept


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
