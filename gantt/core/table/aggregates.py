# SPDX-License-Identifier: Apache-2.0
"""Which aggregates, zone and cell a host is in, and the numbers that aggregates set.

The key of such a number in the metadata is the option's name.  Of several aggregates of
a host the smallest number counts; where one of them is no number, the option does,
whatever the others say.
"""

from collections.abc import Iterable

from gantt.core.resources.host import Aggregate, HostRow
from gantt.core.table.columns import Codes, Columns, words_of, write_bits

#: The keys that are meant to be numbers end so.
SUFFIX = '_weight_multiplier'
#: Multipliers are no larger: sums of many weights stay numbers that can be told apart.
MULTIPLIER_MAX = 1e12
EXPECTED = 'a number from -1e12 to 1e12'
#: Of a value that is told in words no more than this is repeated.
_SHOWN_MAX = 40


class Membership:
    """The aggregates, and which host is in which.

    :ivar known: uuid -> aggregate, in the order of their age
    :ivar metadata: key -> uuid -> value
    """

    def __init__(self) -> None:
        self.zones = Codes([''])  # code 0: the default zone, whatever it is called
        self.cells = Codes([''])
        self.codes = Codes()
        self.known: dict[str, Aggregate] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        self._of: dict[str, tuple[str, ...]] = {}

    def copy(self) -> 'Membership':
        other = Membership()
        other.zones, other.cells = self.zones.copy(), self.cells.copy()
        other.codes = self.codes.copy()
        # Replaced as a whole with each change.
        other.known, other.metadata, other._of = self.known, self.metadata, self._of
        return other

    def replace(self, aggregates: Iterable[Aggregate]) -> None:
        """All aggregates anew."""
        self.known = {a.uuid: a for a in sorted(aggregates, key=lambda a: a.id)}
        self.metadata, self._of = {}, {}
        for uuid, aggregate in self.known.items():
            self.codes.add(uuid)
            for name in aggregate.hosts:
                self._of[name] = (*self._of.get(name, ()), uuid)
            for key, value in aggregate.metadata.items():
                self.metadata.setdefault(key, {})[uuid] = value

    def of(self, row: HostRow, service: str) -> list[str]:
        """Uuids of the aggregates that a host is in, in the order of their age.

        :param service: its service host, where that has another name
        """
        known = self._of.get(row.name, ())
        if service:
            # Nova lists services, and an operator of ours may list a node.
            both = {*known, *self._of.get(service, ())}
            known = tuple(uuid for uuid in self.known if uuid in both)
        # Membership is told by the API (the list) and by the host's reporter (the
        # row); either is enough.
        return [*known, *(uuid for uuid in row.aggregates if uuid not in known)]

    def bits(self, names: Iterable[str]) -> dict[int, int]:
        """Aggregates by uuid or name as word -> bits; the unknown ones have none."""
        wanted = set(names)
        codes = {self.codes.get(name) for name in wanted}
        codes.update(self.codes.get(uuid) for uuid, a in self.known.items() if a.name in wanted)
        return words_of(code for code in codes if code is not None)

    def write(self, columns: Columns, i: int, row: HostRow, service: str) -> None:
        """What one row is in."""
        uuids = self.of(row, service)
        write_bits(columns, 'aggregates', i, words_of([self.codes.add(u) for u in uuids]))
        named = [self.known[u].metadata.get('availability_zone') for u in uuids if u in self.known]
        zone = next(filter(None, named), row.zone or '')
        columns.arrays['zone'][i] = self.zones.add(zone)
        columns.arrays['cell'][i] = self.cells.add(row.cell or '')


def is_usable(value: float) -> bool:
    """Whether weights may be multiplied with it."""
    return -MULTIPLIER_MAX <= value <= MULTIPLIER_MAX


def number(text: str) -> float | None:
    """What a value means; None: it is no number, or none that is usable."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if is_usable(value) else None


def problems(aggregates: Iterable[Aggregate]) -> list[str]:
    """What an operator should know: multipliers that are no numbers."""
    return [
        f'aggregate {aggregate.name}: {key} is {value[:_SHOWN_MAX]!r}, expected {EXPECTED}; '
        'its hosts go by the option'
        for aggregate in aggregates
        for key, value in sorted(aggregate.metadata.items())
        if key.endswith(SUFFIX) and number(value) is None
    ]
