# SPDX-License-Identifier: Apache-2.0
"""A decision over zones as lines: who was queried, when, for how long, who was not and why."""

from collections.abc import Iterable, Mapping, Sequence

from gantt.core.records.decision import ZoneStep
from gantt.core.zones.messages import ExplainedShare, ZoneExplanation
from gantt.insights.explain import wording

#: Zones that are listed; filters that are named of one.
ZONES_SHOWN, FILTERS_SHOWN = 20, 3


def lines_of(
    steps: Sequence[ZoneStep], below: Mapping[str, ZoneExplanation] | None = None
) -> Iterable[str]:
    """The zones of a decision, those with members first.

    :param below: what those below have said of it, by name
    """
    if not steps:
        return
    yield 'zones:'
    first = sorted(steps, key=lambda one: (not one.taken, not one.round, bool(one.zone)))
    width = min(24, max(len(one.zone or 'this zone') for one in first[:ZONES_SHOWN]))
    for one in first[:ZONES_SHOWN]:
        yield f'  {one.zone or "this zone":<{width}}  {_what(one)}'
        found = (below or {}).get(one.zone)
        if found is not None:
            yield from _below(found, width + 4)
    if len(steps) > ZONES_SHOWN:
        yield f'  and {wording.count(len(steps) - ZONES_SHOWN, "more zone")}; -f json has them all'


def _below(found: ZoneExplanation, indent: int) -> Iterable[str]:
    """What a zone has said, of itself and of those below it, which it does not name."""
    margin = ' ' * indent
    if not found.zones:
        yield f'{margin}there: {_hosts(found.hosts, found.survivors, found.removed)}'
    number = 0
    for share in found.zones:
        number += not share.is_own
        who = 'its own hosts' if share.is_own else f'a zone below it ({number})'
        yield f'{margin}{who}: {_what(share)}'
        if share.below is not None:
            yield from _below(share.below, indent + 2)


def _what(one: ZoneStep | ExplainedShare) -> str:
    parts = []
    if one.round:
        parts.append(f'round {one.round}, after {_ms(one.after)}, for {_ms(one.seconds)}')
    if one.outcome:
        parts.append(_hosts(one.hosts, one.survivors, one.removed))
        parts.append(_offers(one))
    elif one.by:
        parts.append(f'not queried ({one.by}): {one.reason}')
    elif one.round:
        parts.append(f'no answer: {one.reason}')
    else:
        parts.append(f'not queried: {one.reason}')
    if one.taken:
        parts.append(f'takes {wording.count(one.taken, "member")}')
    return '; '.join(parts)


def _offers(one: ZoneStep | ExplainedShare) -> str:
    if not one.offers:
        return 'no offer'
    if one.outcome and isinstance(one, ZoneStep) and one.reason:
        return f'{wording.count(one.offers, "offer")}: {one.reason}'
    level = f', level {one.level}' if one.level else ''
    return f'{wording.count(one.offers, "offer")}, the best {one.score:.3f}{level}'


def _hosts(hosts: int, survivors: int, removed: Mapping[str, int]) -> str:
    most = sorted(removed.items(), key=lambda pair: (-pair[1], pair[0]))[:FILTERS_SHOWN]
    why = f' ({", ".join(f"{name} removed {count}" for name, count in most)})' if most else ''
    return f'{survivors} of {hosts} hosts fit{why}'


def _ms(seconds: float) -> str:
    return f'{seconds * 1000:.0f} ms'
