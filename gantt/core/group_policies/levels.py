# SPDX-License-Identifier: Apache-2.0
"""Levels: the domain of each host, as a code by row.

``host`` is each host by itself, where the nodes of one service are one host.  Named parts of
``location`` are domains within those before them: rack 1 of one site is not that of another.
All else is a text fact of the rule language, as ``zone``, ``cell`` or ``metadata.KEY``.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.messages.level_policy import HOST, LevelPolicy
from gantt.core.messages.near import near
from gantt.core.messages.request import RequestSpec
from gantt.core.rules import facts
from gantt.core.rules.columns import Coded, Column, Members, Sets, places_of
from gantt.core.rules.facts import FactView, Kind
from gantt.core.table.columns import FOLLOWED, words_of
from gantt.core.table.host_table import HostTable

#: Code of a host whose domain is not known.
UNKNOWN = -1
#: Columns of the host table that levels are derived from.
COLUMNS = tuple(
    sorted(
        {'names', 'location'}
        | {c for fact in facts.FACTS.values() if not fact.of_request for c in fact.reads}
    )
)
_NO_SPEC = RequestSpec(resources={'VCPU': 1})
_KINDS = (Kind.TEXT, Kind.PATH, Kind.SET)


class LevelCodes(msgspec.Struct, frozen=True):
    """Domains of one level.

    :ivar codes: int32 by row, index into ``names``; -1: not known
    :ivar names: names of the domains
    """

    codes: np.ndarray
    names: Sequence[str]


class Levels:
    """Levels of a table, each read on first use.

    :param parts: names of the parts of ``location``, the widest first; None: as the table has them
    """

    def __init__(self, table: HostTable, parts: Sequence[str] | None = None) -> None:
        self._table = table
        self._parts = list(table.location_parts if parts is None else parts)
        self._known: dict[str, LevelCodes] = {}

    def on(self, level: str, field: str = 'level') -> LevelCodes:
        """Return the domains of a level.

        :param field: field that names it, for the refusal
        :raises InvalidMessage: there is no such level
        """
        codes = self._known.get(level)
        if codes is None:
            codes = self._known[level] = self._read(level, field)
        return codes

    def _read(self, level: str, field: str) -> LevelCodes:
        if level == HOST:
            return self._cached(level, ('names',), self._hosts)
        if level in self._parts:
            depth = self._parts.index(level)
            return self._cached(f'part {depth}', ('location',), lambda: self._part(depth))
        fact, key = find(level, self._parts, field)

        def read() -> LevelCodes:
            view = FactView(self._table, _NO_SPEC)
            return _domains(fact.read(view, key), len(self._table))

        return self._cached(f'fact {level}', fact.columns(key), read)

    def _cached(
        self, level: str, columns: tuple[str, ...], make: Callable[[], LevelCodes]
    ) -> LevelCodes:
        """Return the codes cached for an earlier request, or new ones if their columns changed."""
        if not FOLLOWED.issuperset(columns):
            return make()
        key = ('level', level, self._table.default_zone)
        return self._table.array_cache.get(key, columns, make)

    def _hosts(self) -> LevelCodes:
        codes = np.arange(len(self._table), dtype=np.int32)
        for rows in self._table.rows_of_services:
            codes[rows] = rows[0]
        return LevelCodes(codes, self._table.names)

    def _part(self, depth: int) -> LevelCodes:
        places = places_of(self._table.locations)
        codes, names = places.domains(depth, self._table.location)
        return LevelCodes(codes, names)


def find(level: str, parts: Sequence[str], field: str = 'level') -> tuple[facts.Fact, str]:
    """Return the fact of a level that is neither hosts nor a part of ``location``, and its key.

    :param field: field that names it, for the refusal
    :raises InvalidMessage: there is no such level
    """
    try:
        fact, key = facts.resolve(level)
    except facts.UnknownValue as e:
        levels = [
            HOST,
            *parts,
            *(name for name, fact_of_name in facts.FACTS.items() if _is_level(fact_of_name)),
        ]
        meant = near(level, levels, 1)
        hint = f'did you mean {meant[0]!r}?' if meant else f'known: {", ".join(levels)}'
        raise exceptions.invalid(field, f'expected a level; got {level!r}; {hint}') from e
    if not _is_level(fact):
        problem = f'expected a level or a fact that is a text; {level} is {fact.kind.value}'
        raise exceptions.invalid(field, problem)
    return fact, key


def check(policies: Iterable[LevelPolicy], parts: Sequence[str], inside: str) -> None:
    """Check that policies name existing levels.

    :param inside: field of the policies, for the refusal
    :raises InvalidMessage: one of them names a level that there is not
    """
    plain = {HOST, *parts}
    for number, policy in enumerate(policies):
        named = [('level', policy.level)]
        named += [
            (f'prices[{i}].level', priced_level.level)
            for i, priced_level in enumerate(policy.prices)
        ]
        for at, level in named:
            if level not in plain:
                find(level, parts, f'{inside}.policies[{number}].{at}')


def _is_level(fact: facts.Fact) -> bool:
    """Return whether it separates hosts: they have one text each, or may have."""
    return fact.kind in _KINDS and not fact.of_request


def _domains(column: Column, count: int) -> LevelCodes:
    """Return the domains by the one text of each host; with several, or none, it is not known."""
    if isinstance(column, Coded):
        return _packed(column.codes, list(column.names))
    codes, names = np.full(count, UNKNOWN, np.int32), list[str]()
    several = np.zeros(count, np.bool_)
    if isinstance(column, Members):
        texts: dict[str, list[int]] = {}
        for bit, text in column.texts:
            texts.setdefault(text, []).append(bit)
        for text, bits in texts.items():
            has_text = np.zeros(count, np.bool_)
            for word, value in words_of(bits).items():
                if word < column.bits.shape[0]:
                    has_text |= (column.bits[word] & np.uint64(value)) != 0
            several |= has_text & (codes != UNKNOWN)
            codes[has_text] = len(names)
            names.append(text)
    elif isinstance(column, Sets):
        single = [texts[0] if len(set(texts)) == 1 else '' for texts in column.sets]
        return _packed(column.codes, single)
    codes[several] = UNKNOWN
    return LevelCodes(codes, names)


def _packed(codes: np.ndarray, names: Sequence[str]) -> LevelCodes:
    """Return codes of the texts that occur; the empty one is not known."""
    used = np.unique(codes)
    new_codes = {
        text: i for i, text in enumerate(dict.fromkeys(names[c] for c in used.tolist() if names[c]))
    }
    mapped = np.full(max(len(names), 1), UNKNOWN, np.int32)
    for code in used.tolist():
        if names[code]:
            mapped[code] = new_codes[names[code]]
    return LevelCodes(mapped.take(codes), list(new_codes))
