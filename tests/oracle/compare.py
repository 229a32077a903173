# SPDX-License-Identifier: Apache-2.0
"""Both sides asked the same; what differs and is not meant to."""

import math
from typing import Any

from gantt import exceptions, plugin_loader
from gantt.core.messages.request import SelectDestinations
from gantt.core.placement.prefilters import DISABLED_TRAIT
from tests.oracle import deviations
from tests.oracle.deviations import Seen
from tests.oracle.ours import (
    FORCED,
    INSIDE,
    NAMED,
    PLACEMENT,
    SEVERAL,
    TOGETHER,
    World,
    request_of,
    without_names,
)


def both_have(about: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Names of filters and of weighers that Nova and Gantt have."""
    return (
        sorted(set(about['filters']) & set(plugin_loader.installed(plugin_loader.FILTERS))),
        sorted(set(about['weighers']) & set(plugin_loader.installed(plugin_loader.WEIGHERS))),
    )


def differences(
    cloud: dict[str, Any],
    requests: list[dict[str, Any]],
    answer: dict[str, Any],
    names: tuple[list[str], list[str]],
    *,
    as_nova: bool = True,
) -> list[list[Seen]]:
    """By request, what the two sides see differently, deliberate or not."""
    world = World(cloud, answer, names, as_nova=as_nova)
    return [
        _differences(world, cloud, request, nova_answer)
        for request, nova_answer in zip(requests, answer['answers'], strict=True)
    ]


def _differences(
    world: World, cloud: dict[str, Any], case: dict[str, Any], nova_answer: dict[str, Any]
) -> list[Seen]:
    if 'refused' in nova_answer:
        return []
    try:
        named = request_of(case, nova_answer['spec'])
        request = without_names(named)
    except exceptions.InvalidMessage as e:
        return [
            Seen(
                plugin='translation',
                nova='p',
                gantt=f'x {e}',
                cloud=cloud,
                request=case,
                host=cloud['hosts'][0],
            )
        ]
    differing = []
    for name in world.rules:
        if name in nova_answer['filters']:
            theirs, mine = nova_answer['filters'][name], world.verdicts(name, request)
            differing += _by_host(
                world, cloud, case, nova_answer, name, list(theirs), _each(mine, theirs)
            )
    differing += _placement(world, cloud, case, request, nova_answer['asked'])
    if set(INSIDE) <= set(nova_answer['filters']):
        theirs = _both(*(nova_answer['filters'][name] for name in INSIDE))
        mine = world.inside_verdicts(request)
        differing += _by_host(
            world, cloud, case, nova_answer, TOGETHER, list(theirs), _each(mine, theirs)
        )
    for name in world.weighers:
        # One host alone is not weighed.
        if name in nova_answer['weighers'] and len(cloud['hosts']) > 1:
            theirs, weights = nova_answer['weighers'][name], world.weights(name, request)
            count = len(cloud['hosts'])
            mine = [weights] * count if isinstance(weights, str) else weights
            nova = [None] * count if theirs is None else theirs['weight']
            differing += _by_host(world, cloud, case, nova_answer, name, nova, mine)
    differing += _named(world, cloud, case, named, nova_answer)
    if not differing and case.get('several') and '_nova_check_type' not in (case['hints'] or {}):
        differing += _several(world, cloud, case, named, nova_answer['several'])
    return differing


def _named(
    world: World,
    cloud: dict[str, Any],
    case: dict[str, Any],
    request: SelectDestinations,
    nova_answer: dict[str, Any],
) -> list[Seen]:
    """Who is left of the hosts that are named, and, where they are forced, of all filters."""
    if '_nova_check_type' in (case['hints'] or {}):
        return []  # a rebuild stays where it is
    theirs, mine = nova_answer['named'], world.named_verdicts(request)
    if theirs is None:
        return []
    differing = _by_host(world, cloud, case, nova_answer, NAMED, list(theirs), list(mine))
    if not (case.get('force_hosts') or case.get('force_nodes')) or 'raises' in nova_answer['asked']:
        return differing
    # No host here has any trait.
    where = (
        _where(cloud, nova_answer['asked'])
        if not nova_answer['asked']['required']
        else 'r' * len(theirs)
    )
    theirs = ''.join('p' if pair == ('p', 'p') else 'r' for pair in zip(theirs, where, strict=True))
    mine = _each(world.forced_verdicts(request), theirs)
    return differing + _by_host(world, cloud, case, nova_answer, FORCED, list(theirs), mine)


def _several(
    world: World,
    cloud: dict[str, Any],
    case: dict[str, Any],
    request: SelectDestinations,
    steps: list[dict[str, float]] | None,
) -> list[Seen]:
    """The first of several instances that goes where Nova would not have it.

    :param steps: for each instance the weights of its hosts, by node, the chosen one first
    """
    if steps is None:
        return []
    mine = world.picks(request, case)
    theirs = [next(iter(weights), None) for weights in steps]
    if None in mine:  # all or none, in the end in Nova as well
        ties = any(sum(is_same(x, max(w.values())) for x in w.values()) > 1 for w in steps if w)
        if None in theirs or ties:
            return []
    for weights, nova, gantt in zip(steps, theirs, mine, strict=False):
        if nova == gantt:
            continue
        if gantt in weights and is_same(weights[gantt], weights[nova]):
            return []  # a tie: from here on both are right
        return [
            Seen(
                plugin=SEVERAL,
                nova=', '.join(map(str, theirs)),
                gantt=', '.join(map(str, mine)),
                cloud=cloud,
                request=case,
                host=cloud['hosts'][0],
            )
        ]
    return []


def _placement(
    world: World,
    cloud: dict[str, Any],
    case: dict[str, Any],
    request: SelectDestinations,
    question: dict[str, Any],
) -> list[Seen]:
    """What Placement is asked for, part by part; a request that Nova cannot ask is passed over."""
    # For a rebuild Nova does not ask.
    is_rebuild = '_nova_check_type' in (case['hints'] or {})
    if 'raises' in question or is_rebuild:
        return []
    theirs = {
        'resources': {name: amount for name, amount in question['resources'].items() if amount},
        'required': question['required'],
        'forbidden': [name for name in question['forbidden'] if name != DISABLED_TRAIT],
        'where': _where(cloud, question),
    }
    mine = world.asked(request)
    return [
        Seen(
            plugin=f'Placement {part}',
            nova=theirs[part],
            gantt=mine[part],
            cloud=cloud,
            request=case,
            host=cloud['hosts'][0],
        )
        for part in PLACEMENT
        if theirs[part] != mine[part]
    ]


def _where(cloud: dict[str, Any], question: dict[str, Any]) -> str:
    """p or r for each host, by the aggregates that Placement would look at."""
    verdicts = ''
    for host in cloud['hosts']:
        mine = {a['uuid'] for a in cloud['aggregates'] if host['host'] in a['hosts']}
        inside = all(mine & set(any_of.split(',')) for any_of in question['aggregates'])
        verdicts += 'p' if inside and not mine & set(question['outside']) else 'r'
    return verdicts


def _both(first: str, second: str) -> str:
    """What two filters say one after the other."""
    return ''.join(a if a != 'p' else b for a, b in zip(first, second, strict=True))


def _each(mine: str, theirs: str) -> list[str]:
    """By host; a request that one host makes fail has failed on all of them."""
    if not mine.startswith('x'):
        return list(mine)
    return list(theirs) if 'x' in theirs else [mine] * len(theirs)


def _by_host(
    world: World,
    cloud: dict[str, Any],
    case: dict[str, Any],
    nova_answer: dict[str, Any],
    name: str,
    theirs: list[Any],
    mine: list[Any],
) -> list[Seen]:
    return [
        Seen(
            plugin=name,
            nova=nova,
            gantt=gantt,
            cloud=cloud,
            request=case,
            host=host,
            raised=_raised(nova_answer['raised'], name),
            unfit=host['hypervisor_hostname'] in nova_answer['unfit'],
        )
        for host, nova, gantt in zip(cloud['hosts'], theirs, mine, strict=True)
        if not is_same(nova, gantt)
    ]


def _raised(raised: dict[str, str], name: str) -> str:
    names = INSIDE if name == TOGETHER else (name,)
    return next((raised[cls] for cls in names if cls in raised), '')


def is_same(nova: Any, gantt: Any) -> bool:
    """Equal verdicts, or weights that are equal but for rounding."""
    if isinstance(nova, int | float) and isinstance(gantt, int | float):
        both_nan = math.isnan(nova) and math.isnan(gantt)
        return both_nan or math.isclose(nova, gantt, rel_tol=1e-9, abs_tol=1e-9)
    return nova == gantt or (nova is None and isinstance(gantt, str))


def unexplained(seen: list[Seen]) -> list[Seen]:
    """The differences that no deviation covers."""
    return [difference for difference in seen if explanation(difference) is None]


def explanation(difference: Seen) -> deviations.Deviation | None:
    """The deviation that covers a difference, None: it is a defect."""
    for deviation in deviations.TABLE:
        if difference.plugin in deviation.plugins and deviation.when(difference):
            return deviation
    return None
