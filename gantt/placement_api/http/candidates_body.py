# SPDX-License-Identifier: Apache-2.0
"""Candidates as JSON, in the form of each version.

Answers have hundreds of thousands of bytes.  A provider summary is encoded once for each of the
provider's states; an allocation request is a template for its parts' positions, filled with uuids.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from gantt.core.candidates.find import CandidatesFound
from gantt.core.candidates.query import CandidatesQuery, Part
from gantt.core.candidates.table import ProviderEntry, ProviderTable

#: Versions from which on an answer has more members.
_BY_UUID, _TRAITS, _ALL_CLASSES, _TREES, _MAPPINGS = 12, 17, 27, 29, 34

TextTemplate = tuple[str, list[int]]


def _encode_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class CandidatesBody:
    """An encoder of answers from the tables of one process, for any number of threads."""

    def __init__(self) -> None:
        #: Slot -> the last summary, with its table and state.
        self._summaries: dict[int, tuple[object, int, str]] = {}

    def make(
        self,
        table: ProviderTable,
        query: CandidatesQuery,
        found: CandidatesFound,
        version: int,
        more: dict[str, Any],
    ) -> bytes:
        """Return the body of an answer.

        :param version: the N of 1.N
        :param more: further members of the answer, next to those of Placement
        """
        requests = ','.join(self._allocation_requests(table, found, version))
        summaries = ','.join(self._provider_summaries(table, query, found, version))
        extra = ''.join(
            f',{_encode_json(name)}:{_encode_json(value)}' for name, value in more.items()
        )
        text = f'{{"allocation_requests":[{requests}],"provider_summaries":{{{summaries}}}{extra}}}'
        return text.encode()

    # -- allocation requests -------------------------------------------------------------
    def _allocation_requests(
        self, table: ProviderTable, found: CandidatesFound, version: int
    ) -> list[str]:
        templates: dict[tuple[int, ...], TextTemplate] = {}
        uuids = table.uuids
        width = len(found.parts)
        #: The text between the uuids of a request to one provider, which most are.
        single_parts = _text_template(found.parts, (0,) * width, version)[0].split('%s')
        texts = []
        for row in found.rows:
            if row.count(row[0]) == width:
                texts.append(uuids[row[0]].join(single_parts))
                continue
            positions = tuple(map(row.index, row))
            template = templates.get(positions)
            if template is None:
                template = templates[positions] = _text_template(found.parts, positions, version)
            text, uuid_parts = template
            texts.append(text % tuple([uuids[row[index]] for index in uuid_parts]))
        return texts

    # -- summaries -----------------------------------------------------------------------
    def _provider_summaries(
        self, table: ProviderTable, query: CandidatesQuery, found: CandidatesFound, version: int
    ) -> Iterable[str]:
        slots = _providers_to_summarize(table, query, found)
        if version < _TREES:
            classes = {name for part in found.parts for name, _ in part.amounts}
            return [
                _summary_member(table, table.entry(slot), version, classes)
                for slot in sorted(slots)
            ]
        origin, stamps, texts = table.origin, table.stamps, []
        for slot in slots:
            summary = self._summaries.get(slot)
            if summary is None or summary[0] is not origin or summary[1] != stamps[slot]:
                text = _summary_member(table, table.entry(slot), version, set())
                summary = self._summaries[slot] = origin, stamps[slot], text
            texts.append(summary[2])
        return texts


def _providers_to_summarize(
    table: ProviderTable, query: CandidatesQuery, found: CandidatesFound
) -> Iterable[int]:
    """Return the providers to summarize: all those in trees that candidates take from."""
    if not query.nested and table.nested:
        return set().union(*found.rows)
    roots = found.roots(table)
    return [slot for root in roots for slot in table.tree(root)] if table.nested else roots


def _summary_member(
    table: ProviderTable, entry: ProviderEntry, version: int, classes: set[str]
) -> str:
    """Return the summary of a provider, as a member of a JSON object.

    :param classes: the resource classes that versions before 1.27 show
    """
    body: dict[str, Any] = {
        'resources': {
            name: {'capacity': inventory.cap, 'used': inventory.used}
            for name, inventory in entry.inventories.items()
            if version >= _ALL_CLASSES or name in classes
        }
    }
    if version >= _TRAITS:
        # Placement sorts them by the time they were added: the standard ones came first.
        body['traits'] = sorted(entry.traits, key=lambda name: (name.startswith('CUSTOM_'), name))
    if version >= _TREES:
        body['parent_provider_uuid'] = table.uuid_of(entry.parent_id)
        body['root_provider_uuid'] = table.uuid_of(entry.root_id)
    return f'"{entry.uuid}":{_encode_json(body)}'


# -- templates ----------------------------------------------------------------------------
def _text_template(parts: Sequence[Part], where: Sequence[int], version: int) -> TextTemplate:
    """Return text with a ``%s`` for each uuid, and the part whose provider each is.

    :param where: for each part the index of the first part on the same provider
    """
    amounts: dict[int, dict[str, int]] = {}
    for part, first in zip(parts, where, strict=True):
        for name, amount in part.amounts:
            provider_amounts = amounts.setdefault(first, {})
            provider_amounts[name] = provider_amounts.get(name, 0) + amount
    uuid_parts = list(amounts)
    if version < _BY_UUID:
        texts = [
            f'{{"resource_provider":{{"uuid":"%s"}},"resources":{_encode_json(of_provider)}}}'
            for of_provider in amounts.values()
        ]
        return f'{{"allocations":[{",".join(texts)}]}}', uuid_parts
    texts = [
        f'"%s":{{"resources":{_encode_json(of_provider)}}}' for of_provider in amounts.values()
    ]
    text = f'"allocations":{{{",".join(texts)}}}'
    if version < _MAPPINGS:
        return f'{{{text}}}', uuid_parts
    groups: dict[str, dict[int, None]] = {}
    for part, first in zip(parts, where, strict=True):
        groups.setdefault(part.suffix, {})[first] = None
    mappings = []
    for suffix, firsts in groups.items():
        listed = ','.join(['"%s"'] * len(firsts))
        mappings.append(f'"{suffix}":[{listed}]')
        uuid_parts += firsts
    return f'{{{text},"mappings":{{{",".join(mappings)}}}}}', uuid_parts
