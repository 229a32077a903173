# SPDX-License-Identifier: Apache-2.0
"""Candidates as JSON, in the form of each version.

Answers have hundreds of thousands of bytes.  What is said of a provider is made once for each of
its states; an allocation request is a template for where its parts lie, filled with uuids.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gantt.core.candidates.find import CandidatesFound
from gantt.core.candidates.query import CandidatesQuery, Part
from gantt.core.candidates.table import ProviderEntry, ProviderTable

#: Versions that an answer says more from.
_BY_UUID, _TRAITS, _ALL_CLASSES, _TREES, _MAPPINGS = 12, 17, 27, 29, 34

Template = tuple[str, list[int]]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class CandidatesBody:
    """Makes bodies from the tables of one process, by any number of threads."""

    def __init__(self) -> None:
        #: By slot the last one that was made: of which table and state.
        self._summaries: dict[int, tuple[object, int, str]] = {}

    def make(
        self,
        table: ProviderTable,
        query: CandidatesQuery,
        found: CandidatesFound,
        version: int,
        more: dict[str, Any],
    ) -> bytes:
        """The body of an answer.

        :param version: the N of 1.N
        :param more: further members, next to what Placement says
        """
        requests = ','.join(self._requests(table, found, version))
        summaries = ','.join(self._all_summaries(table, query, found, version))
        rest = ''.join(f',{_json(name)}:{_json(value)}' for name, value in more.items())
        text = f'{{"allocation_requests":[{requests}],"provider_summaries":{{{summaries}}}{rest}}}'
        return text.encode()

    # -- allocation requests -------------------------------------------------------------
    def _requests(self, table: ProviderTable, found: CandidatesFound, version: int) -> list[str]:
        templates: dict[tuple[int, ...], Template] = {}
        uuids = table.uuids
        width = len(found.parts)
        #: Of one provider alone, which most are: the text between its uuids.
        alone = _template(found.parts, (0,) * width, version)[0].split('%s')
        texts = []
        for row in found.rows:
            if row.count(row[0]) == width:
                texts.append(uuids[row[0]].join(alone))
                continue
            where = tuple(map(row.index, row))
            template = templates.get(where)
            if template is None:
                template = templates[where] = _template(found.parts, where, version)
            text, at = template
            texts.append(text % tuple([uuids[row[n]] for n in at]))
        return texts

    # -- summaries -----------------------------------------------------------------------
    def _all_summaries(
        self, table: ProviderTable, query: CandidatesQuery, found: CandidatesFound, version: int
    ) -> Iterable[str]:
        slots = _summed_up(table, query, found)
        if version < _TREES:
            classes = {name for part in found.parts for name, _ in part.amounts}
            return [_summary(table, table.entry(slot), version, classes) for slot in sorted(slots)]
        origin, stamps, texts = table.origin, table.stamps, []
        for slot in slots:
            known = self._summaries.get(slot)
            if known is None or known[0] is not origin or known[1] != stamps[slot]:
                text = _summary(table, table.entry(slot), version, set())
                known = self._summaries[slot] = origin, stamps[slot], text
            texts.append(known[2])
        return texts


def _summed_up(
    table: ProviderTable, query: CandidatesQuery, found: CandidatesFound
) -> Iterable[int]:
    """Providers that the answer says more of: all of the trees that something is taken of."""
    if not query.nested and table.nested:
        return set().union(*found.rows)
    roots = found.roots(table)
    return [slot for root in roots for slot in table.tree(root)] if table.nested else roots


def _summary(table: ProviderTable, entry: ProviderEntry, version: int, classes: set[str]) -> str:
    """A provider, as a member of an object.

    :param classes: that versions before 1.27 show
    """
    body: dict[str, Any] = {
        'resources': {
            name: {'capacity': one.cap, 'used': one.used}
            for name, one in entry.inventories.items()
            if version >= _ALL_CLASSES or name in classes
        }
    }
    if version >= _TRAITS:
        # Placement has them in the order in which it knows them: the standard ones came first.
        body['traits'] = sorted(entry.traits, key=lambda name: (name.startswith('CUSTOM_'), name))
    if version >= _TREES:
        body['parent_provider_uuid'] = table.uuid_of(entry.parent_id)
        body['root_provider_uuid'] = table.uuid_of(entry.root_id)
    return f'"{entry.uuid}":{_json(body)}'


# -- templates ----------------------------------------------------------------------------
def _template(parts: Sequence[Part], where: Sequence[int], version: int) -> Template:
    """Text with a ``%s`` for each uuid, and which part's provider each is of.

    :param where: for each part the first one that lies on the same provider
    """
    amounts: dict[int, dict[str, int]] = {}
    for part, first in zip(parts, where, strict=True):
        for name, amount in part.amounts:
            there = amounts.setdefault(first, {})
            there[name] = there.get(name, 0) + amount
    at = list(amounts)
    if version < _BY_UUID:
        texts = [
            f'{{"resource_provider":{{"uuid":"%s"}},"resources":{_json(some)}}}'
            for some in amounts.values()
        ]
        return f'{{"allocations":[{",".join(texts)}]}}', at
    texts = [f'"%s":{{"resources":{_json(some)}}}' for some in amounts.values()]
    text = f'"allocations":{{{",".join(texts)}}}'
    if version < _MAPPINGS:
        return f'{{{text}}}', at
    groups: dict[str, dict[int, None]] = {}
    for part, first in zip(parts, where, strict=True):
        groups.setdefault(part.suffix, {})[first] = None
    mappings = []
    for suffix, firsts in groups.items():
        listed = ','.join(['"%s"'] * len(firsts))
        mappings.append(f'"{suffix}":[{listed}]')
        at += firsts
    return f'{{{text},"mappings":{{{",".join(mappings)}}}}}', at
