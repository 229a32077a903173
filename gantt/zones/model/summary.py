# SPDX-License-Identifier: Apache-2.0
"""Summaries of zones, published in advance: facts, and the number of guests that fit by shape.

Facts may rule a zone out, since a zone cannot have what none of its hosts reports.  Counts only
order the zones: they are outdated when they are read, and later requests change them.

A shape is a set of amounts by class, written as ``CLASS:AMOUNT`` by name, separated by commas.
Every zone counts the same standard shapes (guests of a power of two processors with 2, 4 or 8 GiB
each), so that counts of zones can be added, and the shapes that were requested most.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gantt.core.messages.base import TEXT_MAX, derived_id
from gantt.core.messages.request import RequestSpec
from gantt.core.table.host_table import HostTable
from gantt.zones.model.messages import FACTS_MAX, ZoneFacts, ZoneSummary

#: Upper bound of shapes of a summary that are not standard ones.
OWN_SHAPES_MAX = 32
#: Share of the guests of the next smaller standard size for which the request is assumed to fit.
SMALLER_SIZE_SHARE = 0.1
_VCPUS, _GIB_EACH = (1, 2, 4, 8, 16, 32, 64), (2, 4, 8)
_STANDARD_SIZES = [(vcpu, vcpu * gib * 1024) for vcpu in _VCPUS for gib in _GIB_EACH]

#: Standard shapes by name: amounts by resource class.
STANDARD_SHAPES: dict[str, dict[str, int]] = {}


def shape_of(resources: Mapping[str, int]) -> str:
    """Return the name of a shape."""
    return ','.join(f'{name}:{amount}' for name, amount in sorted(resources.items()))


STANDARD_SHAPES.update(
    {
        shape_of(size): size
        for size in ({'VCPU': vcpu, 'MEMORY_MB': ram} for vcpu, ram in _STANDARD_SIZES)
    }
)


class MostRequested:
    """The most requested of the shapes seen lately.  Not thread-safe.

    If there are too many, all counts are halved, and shapes seen once are dropped.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._shapes: dict[str, dict[str, int]] = {}

    def note(self, resources: Mapping[str, int]) -> None:
        """Count a request of a shape."""
        shape = shape_of(resources)
        if shape in STANDARD_SHAPES or len(shape) > TEXT_MAX:  # longer ones no summary can have
            return
        self._counts[shape] += 1
        self._shapes[shape] = dict(resources)
        if len(self._counts) > 8 * OWN_SHAPES_MAX:
            self._counts = Counter({name: n // 2 for name, n in self._counts.items() if n > 1})
            self._shapes = {name: self._shapes[name] for name in self._counts}

    def shapes(self) -> dict[str, dict[str, int]]:
        """Return shape -> amounts, the most requested first."""
        return {name: self._shapes[name] for name, _ in self._counts.most_common(OWN_SHAPES_MAX)}


def expected_room(fits: Mapping[str, int], resources: Mapping[str, int]) -> float:
    """Return the expected number of guests of a size that fit.

    If the size was not counted: the count of the next larger standard one, plus a share of the
    additional guests of the next smaller one.
    """
    exact = fits.get(shape_of(resources))
    if exact is not None:
        return float(exact)
    vcpu, ram = resources.get('VCPU', 0), resources.get('MEMORY_MB', 0)
    larger = [size for size in _STANDARD_SIZES if size[0] >= vcpu and size[1] >= ram]
    smaller = [size for size in _STANDARD_SIZES if size[0] <= vcpu and size[1] <= ram]
    larger_count = max((_shape_count(fits, size) for size in larger), default=0)
    smaller_count = min((_shape_count(fits, size) for size in smaller), default=larger_count)
    return larger_count + SMALLER_SIZE_SHARE * max(0, smaller_count - larger_count)


def _shape_count(fits: Mapping[str, int], size: tuple[int, int]) -> int:
    return fits.get(shape_of({'VCPU': size[0], 'MEMORY_MB': size[1]}), 0)


# -- facts -----------------------------------------------------------------------------
def capabilities_of(table: HostTable) -> ZoneFacts:
    """Return the traits, classes, availability zones and locations of own hosts and pools."""
    count = len(table)
    words = np.bitwise_or.reduce(table.traits, axis=1).tolist() if count else []
    codes = enumerate(table.trait_codes.names if count else [])
    traits = {name for code, name in codes if words[code >> 6] >> (code & 63) & 1}
    classes = {name for code, name in enumerate(table.classes.names) if table.cap_of(code).any()}
    classes |= set(table.pools.of_class) | set(table.pools.nested.of_class)
    traits |= table.pools.nested.trait_names()
    zones = {table.zone_name(int(row)) for row in np.unique(table.zone, return_index=True)[1]}
    return _zone_facts(traits, classes, {*zones, table.default_zone}, _locations(table))


def _locations(table: HostTable) -> set[str]:
    """Return each location that a host is at or below."""
    locations: set[str] = set()
    for code in np.unique(table.location).tolist():
        parts = table.locations.names[code].split('.')
        locations.update('.'.join(parts[:n]) for n in range(1, len(parts) + 1))
    return locations - {''}


def joint_capabilities(
    own: ZoneFacts, below: Iterable[ZoneFacts | None], age: float = 0.0
) -> ZoneFacts:
    """Return the joint facts of a zone and its child zones; unknown for one is unknown for all.

    :param age: of the oldest facts of child zones, in seconds
    """
    parts = [own, *below]
    names: list[set[str] | None] = []
    for field in ('traits', 'classes', 'availability_zones', 'locations'):
        lists = [None if part is None else getattr(part, field) for part in parts]
        name_lists = [facts for facts in lists if facts is not None]
        names.append(set().union(*name_lists) if len(name_lists) == len(lists) else None)
    return _zone_facts(*names, age=age)


def _zone_facts(*lists: set[str] | None, age: float = 0.0) -> ZoneFacts:
    names = [
        None if name_list is None or len(name_list) > FACTS_MAX else sorted(name_list)
        for name_list in lists
    ]
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


def missing_capability(facts: ZoneFacts, spec: RequestSpec) -> str:
    """Return as text what a request needs that does not exist in a zone; '' if all exists."""
    return _missing_trait(facts, spec) or _missing_class(facts, spec) or _missing_place(facts, spec)


def _missing_trait(facts: ZoneFacts, spec: RequestSpec) -> str:
    if facts.traits is None:
        return ''
    trait_names = set(facts.traits)
    for name in spec.required_traits:
        if name not in trait_names:
            return f'no trait {name}'
    for names in spec.any_traits:
        if not trait_names & set(names):
            return f'none of the traits {", ".join(names[:5])}'
    return ''


def _missing_class(facts: ZoneFacts, spec: RequestSpec) -> str:
    if facts.classes is None:
        return ''
    return next((f'no {name}' for name in spec.classes if name not in facts.classes), '')


def _missing_place(facts: ZoneFacts, spec: RequestSpec) -> str:
    zone = spec.availability_zone
    if zone and facts.availability_zones is not None and zone not in facts.availability_zones:
        return f'no availability zone {zone}'
    places = spec.hints.get('location')
    if places and facts.locations is not None:
        locations = set(facts.locations)
        if not any(place in locations or _reversed_parts(place) in locations for place in places):
            return f'not in {", ".join(places[:5])}'
    return ''


def _reversed_parts(place: str) -> str:
    return '.'.join(reversed(place.split('.')))


# -- counts ----------------------------------------------------------------------------
def guest_counts_by_shape(own: Mapping[str, int], below: Sequence[ZoneSummary]) -> dict[str, int]:
    """Return the number of guests by shape that fit in a zone and its child zones.

    A shape that a child zone has not counted is estimated by :func:`expected_room`.
    """
    total: dict[str, int] = {}
    for name in own:
        shape = _parse_shape(name)
        below_count = sum(int(expected_room(summary.fits, shape)) for summary in below)
        total[name] = own[name] + below_count
    return total


def _parse_shape(name: str) -> dict[str, int]:
    parts = (part.rpartition(':') for part in name.split(','))
    return {class_name: int(amount) for class_name, _, amount in parts}


def summary_of(fits: dict[str, int], facts: ZoneFacts) -> ZoneSummary:
    """Return a summary, with a revision derived from its content."""
    revision = derived_id('summary', facts.revision, sorted(fits.items()))
    return ZoneSummary(revision=revision, facts=facts.revision, fits=fits)


#: Seconds for which a score is remembered at least, and at most for twice as long.
REMEMBERED_SECONDS = 150.0
#: Upper bound of remembered sizes, the last seen.
SHAPES_MAX = 1024


class _BestScores(NamedTuple):
    """Best scores of one size: since ``begun``, and in the period before; -1.0: none."""

    begun: float
    now: float
    before: float


class BestScoresSeen:
    """The best scores that one process has seen lately, by size: the reference for a good place.

    Scores are on absolute scales, so that no number is high in general: a zone whose weighers
    hardly distinguish its hosts may have 0.3 for the best of them.  Scores are forgotten after
    some time, as places fill: then all zones are queried once more.  Not thread-safe.
    """

    def __init__(self) -> None:
        self._best_scores: OrderedDict[str, _BestScores] = OrderedDict()

    def note(self, resources: Mapping[str, int], score: float, now: float) -> None:
        """Record the score of an offered place.

        :param score: from 0 to 1
        :param now: seconds of a monotonic clock
        """
        shape = shape_of(resources)
        seen = _as_of(self._best_scores.get(shape, _BestScores(now, -1.0, -1.0)), now)
        self._best_scores[shape] = seen._replace(now=max(seen.now, score))
        self._best_scores.move_to_end(shape)
        if len(self._best_scores) > SHAPES_MAX:
            self._best_scores.popitem(last=False)

    def best_score(self, resources: Mapping[str, int], now: float) -> float | None:
        """Return the best score seen lately for a size; None if there is none."""
        seen = self._best_scores.get(shape_of(resources))
        if seen is None:
            return None
        aged = _as_of(seen, now)
        best = max(aged.now, aged.before)
        return best if best >= 0.0 else None


def _as_of(seen: _BestScores, now: float) -> _BestScores:
    age = now - seen.begun
    if age < REMEMBERED_SECONDS:
        return seen
    return _BestScores(now, -1.0, seen.now if age < 2 * REMEMBERED_SECONDS else -1.0)
