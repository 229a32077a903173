# SPDX-License-Identifier: Apache-2.0
"""Layouts on this host: those of its guests, and a check of another one.

The kernel's count of used pages includes those of our guests; a host's report
does not, as they are in the layouts of its claims.
"""

from collections.abc import Iterable, Mapping

import msgspec

from gantt import exceptions
from gantt.compute.agent.journal import FINISHED, RUNNING, STARTING, STOPPING, JournalEntry
from gantt.compute.ports import HostReadings
from gantt.core.messages.build import Build
from gantt.core.messages.layout import Layout, read, readable
from gantt.core.messages.report import NumaCell, NumaPages
from gantt.core.topology import fit


def taken(entries: Iterable[JournalEntry], but: str = '') -> list[Layout]:
    """Return layouts that guests here have, or are about to get.

    :param but: a claim that does not count
    """
    layouts = []
    for entry in entries:
        layout = readable(entry.build.layout)
        if layout and entry.state != FINISHED and entry.claim_id != but:
            layouts.append(layout)
    return layouts


def check(
    build: Build,
    facts: HostReadings,
    used: Mapping[str, int],
    foreign: Mapping[str, int],
    entries: Iterable[JournalEntry],
) -> fit.Fit:
    """Return whether a build fits beside what runs here, where it was laid out to be."""
    layout = None
    if build.layout is not None:
        try:
            layout = read(build.layout, 'build.layout')
        except exceptions.InvalidMessage as e:
            return fit.Fit(False, [fit.Problem('', 'inside', 0, 0, str(e))])
    return fit.fit(
        build.resources,
        facts.inventories,
        used,
        foreign,
        numa=facts.numa or None,
        devices=facts.devices or None,
        layout=layout,
        taken=taken(entries, build.claim_id),
    )


def outside(facts: HostReadings, entries: Iterable[JournalEntry]) -> HostReadings:
    """Return facts whose figures of used pages are those outside of claims."""
    if not facts.numa:
        return facts
    pages: dict[tuple[int, int], int] = {}
    for layout in taken(entry for entry in entries if entry.state in (STARTING, RUNNING, STOPPING)):
        for cell in layout.cells:
            if cell.page_kb:
                key = (cell.cell, cell.page_kb)
                pages[key] = pages.get(key, 0) + cell.memory_mb * 1024 // cell.page_kb
    if not pages:
        return facts
    return msgspec.structs.replace(facts, numa=[_without(cell, pages) for cell in facts.numa])


def _without(cell: NumaCell, pages: dict[tuple[int, int], int]) -> NumaCell:
    def less(one: NumaPages) -> NumaPages:
        used = max(0, one.used - pages.get((cell.id, one.size_kb), 0))
        return msgspec.structs.replace(one, used=used)

    return msgspec.structs.replace(cell, pages=[less(page) for page in cell.pages])
