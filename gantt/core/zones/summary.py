# SPDX-License-Identifier: Apache-2.0
"""What a zone says of itself in advance: facts, and how many of each shape fit.

Facts may rule a zone out, as nothing that a host does not report can be there.  Counts order the
zones and decide nothing: they are outdated when they are read, and the requests that follow them
change them.

A shape is an amount of classes, written as ``CLASS:AMOUNT`` by name with commas between.  Every
zone counts the rungs of one ladder, guests of a power of two processors with 2, 4 or 8 GiB for
each, so that counts of zones can be added; and the shapes that it was evaluated for most.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gantt.core.messages.base import TEXT_MAX, derived_id
from gantt.core.messages.request import RequestSpec
from gantt.core.table.host_table import HostTable
from gantt.core.zones.messages import FACTS_MAX, ZoneFacts, ZoneSummary

#: Shapes of a summary that are no rungs.
OWN_SHAPES_MAX = 32
#: A rung that the request is larger than has room for it now and then.
HOPE = 0.1
_VCPUS, _GIB_EACH = (1, 2, 4, 8, 16, 32, 64), (2, 4, 8)
_RUNGS = [(vcpu, vcpu * gib * 1024) for vcpu in _VCPUS for gib in _GIB_EACH]

LADDER: dict[str, dict[str, int]] = {}


def shape_of(resources: Mapping[str, int]) -> str:
    """The name of a shape."""
    return ','.join(f'{name}:{amount}' for name, amount in sorted(resources.items()))


LADDER.update(
    {shape_of(one): one for one in ({'VCPU': vcpu, 'MEMORY_MB': ram} for vcpu, ram in _RUNGS)}
)


class MostRequested:
    """The shapes that were asked for most, of those seen lately.  Not for several threads at once.

    When there are too many the count of each is halved, and those seen once go.
    """

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self._shapes: dict[str, dict[str, int]] = {}

    def note(self, resources: Mapping[str, int]) -> None:
        """One more was asked for."""
        shape = shape_of(resources)
        if shape in LADDER or len(shape) > TEXT_MAX:  # longer ones no summary can have
            return
        self._seen[shape] += 1
        self._shapes[shape] = dict(resources)
        if len(self._seen) > 8 * OWN_SHAPES_MAX:
            self._seen = Counter({name: n // 2 for name, n in self._seen.items() if n > 1})
            self._shapes = {name: self._shapes[name] for name in self._seen}

    def most(self) -> dict[str, dict[str, int]]:
        """By shape, the most requested first."""
        return {name: self._shapes[name] for name, _ in self._seen.most_common(OWN_SHAPES_MAX)}


def expected_room(fits: Mapping[str, int], resources: Mapping[str, int]) -> float:
    """For how many guests of this size there may be room.

    Where the size was not counted: as many as of the next larger rung, and some of those that are
    of the next smaller one.
    """
    exact = fits.get(shape_of(resources))
    if exact is not None:
        return float(exact)
    vcpu, ram = resources.get('VCPU', 0), resources.get('MEMORY_MB', 0)
    larger = [one for one in _RUNGS if one[0] >= vcpu and one[1] >= ram]
    smaller = [one for one in _RUNGS if one[0] <= vcpu and one[1] <= ram]
    safe = max((_count(fits, one) for one in larger), default=0)
    hopeful = min((_count(fits, one) for one in smaller), default=safe)
    return safe + HOPE * max(0, hopeful - safe)


def _count(fits: Mapping[str, int], rung: tuple[int, int]) -> int:
    return fits.get(shape_of({'VCPU': rung[0], 'MEMORY_MB': rung[1]}), 0)


# -- facts -----------------------------------------------------------------------------
def facts_of(table: HostTable) -> ZoneFacts:
    """Of a zone's own hosts and pools."""
    count = len(table)
    words = np.bitwise_or.reduce(table.traits, axis=1).tolist() if count else []
    codes = enumerate(table.trait_codes.names if count else [])
    traits = {name for code, name in codes if words[code >> 6] >> (code & 63) & 1}
    classes = {name for code, name in enumerate(table.classes.names) if table.cap_of(code).any()}
    classes |= set(table.pools.of_class) | set(table.pools.nested.of_class)
    traits |= table.pools.nested.trait_names()
    zones = {table.zone_name(int(row)) for row in np.unique(table.zone, return_index=True)[1]}
    return _made(traits, classes, {*zones, table.default_zone}, _places(table))


def _places(table: HostTable) -> set[str]:
    """Each place that a host is at or below."""
    found: set[str] = set()
    for code in np.unique(table.location).tolist():
        parts = table.locations.names[code].split('.')
        found.update('.'.join(parts[:n]) for n in range(1, len(parts) + 1))
    return found - {''}


def together(own: ZoneFacts, below: Iterable[ZoneFacts | None], age: float = 0.0) -> ZoneFacts:
    """Of a zone and those below it; what is not known of one is not known of all.

    :param age: of the oldest of those below, in seconds
    """
    parts = [own, *below]
    names: list[set[str] | None] = []
    for field in ('traits', 'classes', 'availability_zones', 'locations'):
        lists = [None if part is None else getattr(part, field) for part in parts]
        known = [one for one in lists if one is not None]
        names.append(set().union(*known) if len(known) == len(lists) else None)
    return _made(*names, age=age)


def _made(*lists: set[str] | None, age: float = 0.0) -> ZoneFacts:
    names = [None if one is None or len(one) > FACTS_MAX else sorted(one) for one in lists]
    traits, classes, zones, locations = names
    revision = derived_id('facts', repr(names))
    return ZoneFacts(
        revision=revision,
        traits=traits,
        classes=classes,
        availability_zones=zones,
        locations=locations,
        age=age,
    )


def missing(facts: ZoneFacts, spec: RequestSpec) -> str:
    """What a request needs that is not in a zone, in words; '' where all of it is."""
    return _missing_trait(facts, spec) or _missing_class(facts, spec) or _missing_place(facts, spec)


def _missing_trait(facts: ZoneFacts, spec: RequestSpec) -> str:
    if facts.traits is None:
        return ''
    known = set(facts.traits)
    for name in spec.required_traits:
        if name not in known:
            return f'no trait {name}'
    for names in spec.any_traits:
        if not known & set(names):
            return f'none of the traits {", ".join(names[:5])}'
    return ''


def _missing_class(facts: ZoneFacts, spec: RequestSpec) -> str:
    if facts.classes is None:
        return ''
    return next((f'no {name}' for name in spec.classes if name not in facts.classes), '')


def _missing_place(facts: ZoneFacts, spec: RequestSpec) -> str:
    wanted = spec.availability_zone
    if wanted and facts.availability_zones is not None and wanted not in facts.availability_zones:
        return f'no availability zone {wanted}'
    places = spec.hints.get('location')
    if places and facts.locations is not None:
        known = set(facts.locations)
        if not any(place in known or _turned(place) in known for place in places):
            return f'not in {", ".join(places[:5])}'
    return ''


def _turned(place: str) -> str:
    return '.'.join(reversed(place.split('.')))


# -- counts ----------------------------------------------------------------------------
def added(own: Mapping[str, int], below: Sequence[ZoneSummary]) -> dict[str, int]:
    """How many of each shape fit in a zone and those below it.

    A shape that one of them has not counted is counted there as :func:`expected_room` has it.
    """
    total: dict[str, int] = {}
    for name in own:
        shape = _parsed(name)
        of_others = sum(int(expected_room(one.fits, shape)) for one in below)
        total[name] = own[name] + of_others
    return total


def _parsed(name: str) -> dict[str, int]:
    parts = (part.rpartition(':') for part in name.split(','))
    return {left: int(right) for left, _, right in parts}


def summary_of(fits: dict[str, int], facts: ZoneFacts) -> ZoneSummary:
    """With a revision that follows from what is in it."""
    revision = derived_id('summary', facts.revision, sorted(fits.items()))
    return ZoneSummary(revision=revision, facts=facts.revision, fits=fits)


#: For so long a score is remembered at least, and for twice as long at most, in seconds.
REMEMBERED_SECONDS = 150.0
#: Sizes that are remembered, those seen last.
SHAPES_MAX = 1024


class _Seen(NamedTuple):
    """Of one size: the best since ``begun``, and that of the time before; -1.0: none."""

    begun: float
    now: float
    before: float


class BestSeen:
    """The best scores that one process has seen lately, by size: the measure of a good place.

    Scores are on absolute scales, so that no one number is high for all of them: a zone whose
    weighers have little to say of its hosts has 0.3 for the best of them.  Scores are forgotten
    after some time, as places fill: then all zones are queried once more.  Not safe for threads.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def note(self, resources: Mapping[str, int], score: float, now: float) -> None:
        """A place with such a score was offered.

        :param score: from 0 to 1
        :param now: seconds of a clock that only goes on
        """
        shape = shape_of(resources)
        seen = _aged(self._seen.get(shape, _Seen(now, -1.0, -1.0)), now)
        self._seen[shape] = seen._replace(now=max(seen.now, score))
        self._seen.move_to_end(shape)
        if len(self._seen) > SHAPES_MAX:
            self._seen.popitem(last=False)

    def of(self, resources: Mapping[str, int], now: float) -> float | None:
        """The best score that was seen lately for a size; None: none was."""
        seen = self._seen.get(shape_of(resources))
        if seen is None:
            return None
        aged = _aged(seen, now)
        best = max(aged.now, aged.before)
        return best if best >= 0.0 else None


def _aged(seen: _Seen, now: float) -> _Seen:
    age = now - seen.begun
    if age < REMEMBERED_SECONDS:
        return seen
    return _Seen(now, -1.0, seen.now if age < 2 * REMEMBERED_SECONDS else -1.0)
