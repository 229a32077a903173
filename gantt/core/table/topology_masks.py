# SPDX-License-Identifier: Apache-2.0
"""Hosts whose inside may take a guest: necessary conditions over all rows at once."""

import functools

import numpy as np

from gantt.core.messages.topology_request import GuestCell, Wish
from gantt.core.table.columns import BoolArray
from gantt.core.table.host_table import HostTable
from gantt.core.table.topology_columns import BY_POLICY, CELLS
from gantt.core.topology import cores
from gantt.core.topology.devices import matches
from gantt.core.topology.room import BASE_KB_MAX


def may_fit(rows: HostTable, wish: Wish, at: slice) -> BoolArray:
    """Which hosts may have room for the cells of a wish, by row within ``at``."""
    cells = rows.numa_cells[at]
    mask = cells >= len(wish.cells)
    for (guest, apart), count in _shapes(wish).items():
        here = _has(rows, wish, guest, apart, at)
        if count == 1:
            mask &= here.any(axis=0) | (cells > CELLS)
        else:
            mask &= (np.count_nonzero(here, axis=0) >= count) | (cells > CELLS)
    return mask


def may_have(rows: HostTable, wish: Wish, at: slice) -> BoolArray:
    """Which hosts may have the devices of a wish, wherever in them, by row within ``at``."""
    free = rows.kind_free[:, at]
    mask = np.ones(free.shape[1], np.bool_)
    counts: dict[tuple[int, ...], int] = {}
    for one in wish.devices:
        kinds = [c for c, pool in enumerate(rows.kinds.pools, 1) if matches(pool, one)]
        wanted = tuple(c for c in (0, *kinds) if c < free.shape[0])
        counts[wanted] = counts.get(wanted, 0) + one.count
    for codes, count in counts.items():
        # Whoever may only have some of these has none besides them.
        count += sum(n for other, n in counts.items() if set(other) < set(codes))
        mask &= np.maximum(free[list(codes)], 0).sum(axis=0) >= count
    return mask


def _shapes(wish: Wish) -> dict[tuple[GuestCell, int], int]:
    """(a cell of the guest, how many it pins besides) -> how many of the cells are alike."""
    found: dict[tuple[GuestCell, int], int] = {}
    for number, guest in enumerate(wish.cells):
        apart = int(number == 0 and wish.emulator_apart)
        alike = GuestCell(
            tuple(range(guest.shared)), guest.memory_mb, tuple(range(len(guest.dedicated)))
        )
        found[alike, apart] = found.get((alike, apart), 0) + 1
    return found


def _has(rows: HostTable, wish: Wish, guest: GuestCell, apart: int, at: slice) -> BoolArray:
    """Which cells of which hosts may take a cell of the guest.

    :param guest: its ``vcpus`` are only the shared ones
    """
    needs = cores.needs(len(guest.dedicated), apart, wish.thread_policy)
    enough = (getattr(rows, BY_POLICY[policy])[:, at] >= need for policy, need in needs.items())
    mask: BoolArray = functools.reduce(np.logical_and, enough)
    if guest.vcpus:
        mask &= rows.cell_shared[:, at] >= len(guest.vcpus)
    return np.logical_and(mask, _has_memory(rows, wish.page, guest, at), out=mask)


def _has_memory(rows: HostTable, page: str, guest: GuestCell, at: slice) -> BoolArray:
    need = guest.memory_mb
    if not page and not guest.dedicated:
        return rows.cell_memory[:, at] >= need
    if page in ('', 'small') or (page.isdigit() and int(page) <= BASE_KB_MAX):
        return rows.cell_base[:, at] >= need
    mask: BoolArray = (
        rows.cell_base[:, at] >= need
        if page == 'any'
        else np.zeros(rows.cell_base[:, at].shape, np.bool_)
    )
    for code, size in enumerate(rows.kinds.sizes):
        if page.isdigit() and int(page) != size or need * 1024 % size:
            continue
        lines = rows.cell_pages[code * CELLS : code * CELLS + mask.shape[0], at]
        mask[: lines.shape[0]] |= lines >= need * 1024 // size
    return mask
