# SPDX-License-Identifier: Apache-2.0
"""The choice of the processors of a cell that a guest is pinned to.

Whether there are enough does not depend on which ones are chosen; the choice keeps
whole cores together and splits as few as possible.
"""

from gantt.core.messages.topology_request import ThreadPolicy
from gantt.core.topology.free import FreeCell, bits_of, numbers_of


def available(cell: FreeCell, policy: ThreadPolicy) -> int:
    """Return the number of processors of a cell that can be pinned under a policy."""
    free = cell.free
    if policy is ThreadPolicy.PREFER:
        return free.bit_count()
    if policy is ThreadPolicy.ISOLATE:
        return sum(1 for core in cell.cores if core & free == core)
    sibling_count = 0
    for core in cell.cores:
        threads = (core & free).bit_count()
        sibling_count += threads if threads > 1 else 0
    return sibling_count


def needs(count: int, apart: int, policy: ThreadPolicy) -> dict[ThreadPolicy, int]:
    """Return the processors that must be available, by policy, for a guest and its emulator.

    Siblings are for the guest: its emulator may run on any thread.  A dedicated core excludes
    any other thread, so that the emulator has its own core.
    """
    if policy is ThreadPolicy.REQUIRE and apart:
        return {policy: count, ThreadPolicy.PREFER: count + apart}
    return {policy: count + apart}


def choose(
    cell: FreeCell, count: int, policy: ThreadPolicy, apart: int = 0
) -> tuple[list[int], list[int]] | None:
    """Return ``count`` processors with those for the emulator, and the siblings blocked by them.

    None: there are too few.
    """
    if any(need > available(cell, by) for by, need in needs(count, apart, policy).items()):
        return None
    if policy is ThreadPolicy.ISOLATE:
        return _whole(cell, count + apart)
    if policy is ThreadPolicy.PREFER:
        count, apart = count + apart, 0
    threads_min = 2 if policy is ThreadPolicy.REQUIRE else 1
    cores = []
    for core in cell.cores:
        threads = numbers_of(core & cell.free)
        if len(threads) >= threads_min:
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
    """Return further free processors, from the cores with the fewest free ones first."""
    free = cell.free & ~bits_of(chosen)
    cores = sorted((numbers_of(core & free) for core in cell.cores), key=len)
    return [cpu for threads in cores for cpu in threads][:count]


def _together(cores: list[list[int]], count: int) -> list[int]:
    """Return threads of whole cores first, then of the fullest core with enough threads."""
    chosen: list[int] = []
    larger: list[list[int]] = []
    for threads in sorted(cores, key=lambda threads: (-len(threads), threads[0])):
        if len(threads) <= count - len(chosen):
            chosen += threads
        else:
            larger.append(threads)
    missing = count - len(chosen)
    if missing:
        sufficient = [threads for threads in larger if len(threads) >= missing]
        chosen += min(sufficient, key=lambda threads: (len(threads), threads[0]))[:missing]
    return chosen
