# SPDX-License-Identifier: Apache-2.0
"""Aggregates, availability zone and cell of each host, and weight multipliers of aggregates.

The metadata key of a multiplier is the option's name. If a host is in several aggregates,
the smallest number counts; if one of the values is not a number, the option counts,
regardless of the others.
"""

from collections.abc import Iterable

from gantt.core.resources.host import Aggregate, HostRow
from gantt.core.table.columns import Codes, Columns, words_of, write_bits

#: Suffix of the metadata keys whose values must be numbers.
MULTIPLIER_SUFFIX = '_weight_multiplier'
#: Upper bound of multipliers, so that sums of many weights stay distinguishable.
MULTIPLIER_MAX = 1e12
EXPECTED_MULTIPLIER = 'a number from -1e12 to 1e12'
#: Characters of an invalid value that a problem message repeats.
_SHOWN_CHARACTERS_MAX = 40


class Membership:
    """The aggregates, and the membership of hosts in them.

    :ivar known: uuid -> aggregate, oldest first
    :ivar metadata: key -> uuid -> value
    """

    def __init__(self) -> None:
        self.zones = Codes([''])  # code 0: the default zone, whatever its name
        self.cells = Codes([''])
        self.codes = Codes()
        self.known: dict[str, Aggregate] = {}
        self.metadata: dict[str, dict[str, str]] = {}
        self._of: dict[str, tuple[str, ...]] = {}

    def copy(self) -> 'Membership':
        other = Membership()
        other.zones, other.cells = self.zones.copy(), self.cells.copy()
        other.codes = self.codes.copy()
        # Never modified in place: each change replaces them as a whole.
        other.known = self.known
        other.metadata = self.metadata
        other._of = self._of
        return other

    def replace(self, aggregates: Iterable[Aggregate]) -> None:
        """Replace all aggregates."""
        self.known = {a.uuid: a for a in sorted(aggregates, key=lambda a: a.id)}
        self.metadata = {}
        self._of = {}
        for uuid, aggregate in self.known.items():
            self.codes.add(uuid)
            for name in aggregate.hosts:
                self._of[name] = (*self._of.get(name, ()), uuid)
            for key, value in aggregate.metadata.items():
                self.metadata.setdefault(key, {})[uuid] = value

    def of(self, row: HostRow, service: str) -> list[str]:
        """Return the uuids of the aggregates that a host is in, oldest first.

        :param service: the host's service host, if it has another name
        """
        uuids = self._of.get(row.name, ())
        if service:
            # Nova lists service hosts; an operator of Gantt may list a node.
            both = {*uuids, *self._of.get(service, ())}
            uuids = tuple(uuid for uuid in self.known if uuid in both)
        # Membership comes from the API (the list) and from the host's reporter (the
        # row); either is enough.
        return [*uuids, *(uuid for uuid in row.aggregates if uuid not in uuids)]

    def bits(self, names: Iterable[str]) -> dict[int, int]:
        """Return aggregates, given by uuid or name, as word -> bits; unknown ones have none."""
        uuids_or_names = set(names)
        codes = {self.codes.get(name) for name in uuids_or_names}
        codes.update(
            self.codes.get(uuid) for uuid, a in self.known.items() if a.name in uuids_or_names
        )
        return words_of(code for code in codes if code is not None)

    def write(self, columns: Columns, i: int, row: HostRow, service: str) -> None:
        """Write the aggregates, zone and cell of one row."""
        uuids = self.of(row, service)
        write_bits(columns, 'aggregates', i, words_of([self.codes.add(u) for u in uuids]))
        zones = [self.known[u].metadata.get('availability_zone') for u in uuids if u in self.known]
        zone = next(filter(None, zones), row.zone or '')
        columns.arrays['zone'][i] = self.zones.add(zone)
        columns.arrays['cell'][i] = self.cells.add(row.cell or '')


def is_usable(value: float) -> bool:
    """Return whether weights may be multiplied with the value."""
    return -MULTIPLIER_MAX <= value <= MULTIPLIER_MAX


def usable_number(text: str) -> float | None:
    """Return the value of a metadata text; None if it is not a usable number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if is_usable(value) else None


def metadata_problems(aggregates: Iterable[Aggregate]) -> list[str]:
    """Return problems to report to the operator: multipliers that are not numbers."""
    return [
        f'aggregate {aggregate.name}: {key} is {value[:_SHOWN_CHARACTERS_MAX]!r}, '
        f'expected {EXPECTED_MULTIPLIER}; its hosts go by the option'
        for aggregate in aggregates
        for key, value in sorted(aggregate.metadata.items())
        if key.endswith(MULTIPLIER_SUFFIX) and usable_number(value) is None
    ]
