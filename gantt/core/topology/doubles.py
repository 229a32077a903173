# SPDX-License-Identifier: Apache-2.0
"""Layouts of one host that hold the same processor: what an audit looks for."""

from collections.abc import Iterable, Iterator

from gantt.core.topology.layout import Layout
from gantt.core.topology.room import numbers_of


def doubled(host: str, layouts: Iterable[tuple[str, Layout]]) -> Iterator[str]:
    """A line for each pair of claims that have a processor of the host in common.

    :param layouts: id of a claim and its layout, ascending by the id
    """
    holders: dict[int, str] = {}
    for claim_id, layout in layouts:
        mine: dict[str, list[int]] = {}
        for cell in layout.cells:
            for cpu in numbers_of(cell.held):
                other = holders.setdefault(cpu, claim_id)
                if other != claim_id:
                    mine.setdefault(other, []).append(cpu)
        for other, cpus in mine.items():
            said = ', '.join(map(str, sorted(cpus)))
            yield f'{host}: processors {said} are held by claims {other} and {claim_id}'
