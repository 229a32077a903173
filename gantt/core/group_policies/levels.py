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
from gantt.core.messages.near import nearest_names
from gantt.core.messages.policy_set import HOST_LEVEL, LevelPolicy
from gantt.core.messages.request import RequestSpec
from gantt.core.rules import facts
from gantt.core.rules.facts import (
    CodedTexts,
    Column,
    FactView,
    Kind,
    TextSetBits,
    TextSets,
    places_of,
)
from gantt.core.table.columns import VERSIONED_COLUMNS, words_of
from gantt.core.table.host_table import HostTable

#: Code of a host whose domain is not known.
UNKNOWN_DOMAIN = -1
#: Columns of the host table that levels are derived from.
LEVEL_COLUMNS = tuple(
    sorted(
        {'names', 'location'}
        | {c for fact in facts.FACTS.values() if not fact.of_request for c in fact.reads}
    )
)
_NO_SPEC = RequestSpec(resources={'VCPU': 1})
_LEVEL_FACT_KINDS = (Kind.TEXT, Kind.PATH, Kind.SET)


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
        self._codes_by_level: dict[str, LevelCodes] = {}

    def codes_of(self, level: str, field: str = 'level') -> LevelCodes:
        """Return the domains of a level.

        :param field: field that names it, for the refusal
        :raises InvalidMessage: there is no such level
        """
        codes = self._codes_by_level.get(level)
        if codes is None:
            codes = self._codes_by_level[level] = self._read(level, field)
        return codes

    def _read(self, level: str, field: str) -> LevelCodes:
        if level == HOST_LEVEL:
            return self._cached(level, ('names',), self._codes_of_hosts)
        if level in self._parts:
            depth = self._parts.index(level)
            return self._cached(f'part {depth}', ('location',), lambda: self._codes_of_part(depth))
        fact, key = find_level(level, self._parts, field)

        def read() -> LevelCodes:
            view = FactView(self._table, _NO_SPEC)
            return _domains_of_column(fact.read(view, key), len(self._table))

        return self._cached(f'fact {level}', fact.columns(key), read)

    def _cached(
        self, level: str, columns: tuple[str, ...], make: Callable[[], LevelCodes]
    ) -> LevelCodes:
        """Return the codes cached for an earlier request, or new ones if their columns changed."""
        if not VERSIONED_COLUMNS.issuperset(columns):
            return make()
        key = ('level', level, self._table.default_zone)
        return self._table.array_cache.get(key, columns, make)

    def _codes_of_hosts(self) -> LevelCodes:
        codes = np.arange(len(self._table), dtype=np.int32)
        for rows in self._table.rows_of_services:
            codes[rows] = rows[0]
        return LevelCodes(codes, self._table.names)

    def _codes_of_part(self, depth: int) -> LevelCodes:
        places = places_of(self._table.locations)
        codes, names = places.domains(depth, self._table.location)
        return LevelCodes(codes, names)


def find_level(level: str, parts: Sequence[str], field: str = 'level') -> tuple[facts.Fact, str]:
    """Return the fact of a level that is neither hosts nor a part of ``location``, and its key.

    :param field: field that names it, for the refusal
    :raises InvalidMessage: there is no such level
    """
    try:
        fact, key = facts.resolve_fact(level)
    except facts.UnknownFactName as e:
        levels = [
            HOST_LEVEL,
            *parts,
            *(name for name, fact_of_name in facts.FACTS.items() if _is_level(fact_of_name)),
        ]
        meant = nearest_names(level, levels, 1)
        hint = f'did you mean {meant[0]!r}?' if meant else f'known: {", ".join(levels)}'
        raise exceptions.invalid(field, f'expected a level; got {level!r}; {hint}') from e
    if not _is_level(fact):
        problem = f'expected a level or a fact that is a text; {level} is {fact.kind.value}'
        raise exceptions.invalid(field, problem)
    return fact, key


def check_levels(policies: Iterable[LevelPolicy], parts: Sequence[str], inside: str) -> None:
    """Check that policies name existing levels.

    :param inside: field of the policies, for the refusal
    :raises InvalidMessage: one of them names a level that there is not
    """
    plain = {HOST_LEVEL, *parts}
    for number, policy in enumerate(policies):
        named = [('level', policy.level)]
        named += [
            (f'prices[{i}].level', priced_level.level)
            for i, priced_level in enumerate(policy.prices)
        ]
        for at, level in named:
            if level not in plain:
                find_level(level, parts, f'{inside}.policies[{number}].{at}')


def _is_level(fact: facts.Fact) -> bool:
    """Return whether a fact can be a level: hosts have one text of it each, or may have."""
    return fact.kind in _LEVEL_FACT_KINDS and not fact.of_request


def _domains_of_column(column: Column, count: int) -> LevelCodes:
    """Return the domains by the one text of each host; with several, or none, it is not known."""
    if isinstance(column, CodedTexts):
        return _renumber_codes(column.codes, list(column.names))
    codes, names = np.full(count, UNKNOWN_DOMAIN, np.int32), list[str]()
    several = np.zeros(count, np.bool_)
    if isinstance(column, TextSetBits):
        texts: dict[str, list[int]] = {}
        for bit, text in column.texts:
            texts.setdefault(text, []).append(bit)
        for text, bits in texts.items():
            has_text = np.zeros(count, np.bool_)
            for word, value in words_of(bits).items():
                if word < column.bits.shape[0]:
                    has_text |= (column.bits[word] & np.uint64(value)) != 0
            several |= has_text & (codes != UNKNOWN_DOMAIN)
            codes[has_text] = len(names)
            names.append(text)
    elif isinstance(column, TextSets):
        single = [texts[0] if len(set(texts)) == 1 else '' for texts in column.sets]
        return _renumber_codes(column.codes, single)
    codes[several] = UNKNOWN_DOMAIN
    return LevelCodes(codes, names)


def _renumber_codes(codes: np.ndarray, names: Sequence[str]) -> LevelCodes:
    """Return codes of the texts that occur; the empty one is not known."""
    used = np.unique(codes)
    new_codes = {
        text: i for i, text in enumerate(dict.fromkeys(names[c] for c in used.tolist() if names[c]))
    }
    mapped = np.full(max(len(names), 1), UNKNOWN_DOMAIN, np.int32)
    for code in used.tolist():
        if names[code]:
            mapped[code] = new_codes[names[code]]
    return LevelCodes(mapped.take(codes), list(new_codes))
