# SPDX-License-Identifier: Apache-2.0
"""Which processors of a cell a guest is pinned to.

Whether there are enough never depends on which are chosen; the choice keeps
whole cores together and breaks open as few as it can.
"""

from gantt.core.messages.topology_request import ThreadPolicy
from gantt.core.topology.free import FreeCell, bits_of, numbers_of


def available(cell: FreeCell, policy: ThreadPolicy) -> int:
    """How many processors can be pinned here under a policy."""
    free = cell.free
    if policy is ThreadPolicy.PREFER:
        return free.bit_count()
    if policy is ThreadPolicy.ISOLATE:
        return sum(1 for core in cell.cores if core & free == core)
    found = 0
    for core in cell.cores:
        threads = (core & free).bit_count()
        found += threads if threads > 1 else 0
    return found


def needs(count: int, apart: int, policy: ThreadPolicy) -> dict[ThreadPolicy, int]:
    """How many have to be available, by policy, for a guest's processors and its emulator's.

    Siblings are for the guest: its emulator may run on any thread.  A core to itself
    is broken by whatever runs beside, so that the emulator has one of its own.
    """
    if policy is ThreadPolicy.REQUIRE and apart:
        return {policy: count, ThreadPolicy.PREFER: count + apart}
    return {policy: count + apart}


def choose(
    cell: FreeCell, count: int, policy: ThreadPolicy, apart: int = 0
) -> tuple[list[int], list[int]] | None:
    """``count`` free processors and those for the emulator, and what is blocked with them.

    None: too few.
    """
    if any(need > available(cell, by) for by, need in needs(count, apart, policy).items()):
        return None
    if policy is ThreadPolicy.ISOLATE:
        return _whole(cell, count + apart)
    if policy is ThreadPolicy.PREFER:
        count, apart = count + apart, 0
    least = 2 if policy is ThreadPolicy.REQUIRE else 1
    cores = []
    for core in cell.cores:
        threads = numbers_of(core & cell.free)
        if len(threads) >= least:
            cores.append(threads)
    chosen = _together(cores, count)
    return chosen + _left_over(cell, chosen, apart), []


def _whole(cell: FreeCell, count: int) -> tuple[list[int], list[int]]:
    chosen: list[int] = []
    blocked: list[int] = []
    for core in cell.cores:
        if len(chosen) == count:
            break
        if core & cell.free == core:
            first, *others = numbers_of(core)
            chosen.append(first)
            blocked += others
    return chosen, blocked


def _left_over(cell: FreeCell, chosen: list[int], count: int) -> list[int]:
    """Others that are free, of the cores that have fewest of them first."""
    free = cell.free & ~bits_of(chosen)
    cores = sorted((numbers_of(core & free) for core in cell.cores), key=len)
    return [cpu for threads in cores for cpu in threads][:count]


def _together(cores: list[list[int]], count: int) -> list[int]:
    """Whole cores first, then the fullest one that has as many threads as are wanting."""
    chosen: list[int] = []
    left: list[list[int]] = []
    for threads in sorted(cores, key=lambda threads: (-len(threads), threads[0])):
        if len(threads) <= count - len(chosen):
            chosen += threads
        else:
            left.append(threads)
    wanting = count - len(chosen)
    if wanting:
        fit = [threads for threads in left if len(threads) >= wanting]
        chosen += min(fit, key=lambda threads: (len(threads), threads[0]))[:wanting]
    return chosen
