# SPDX-License-Identifier: Apache-2.0
"""Which pools the devices of a request come out of.

Several names of one request may want the same pool, so that taking the first
that fits may leave nothing for the next: the shares are a flow through a graph
of names and pools, which finds an answer where there is one.
"""

import collections
from collections.abc import Collection, Sequence

from gantt.core.messages.topology_request import Affinity, DeviceSpec, DeviceWish
from gantt.core.resources import scarcity
from gantt.core.topology.free import FreeCell, Kind, Pool

#: Kinds that nobody gets who does not name them.
_SPECIAL = ('type-pf', 'vdpa')
_REMOTE, _YES = 'remote_managed', ('true', '1', 'yes')
_PLAIN = 'type-pci'


#: Whether a wish, by its identity, is met by pools of a kind.
Known = dict[tuple[int, Kind], bool]


def matches(pool: Pool, wish: DeviceWish, known: Known | None = None) -> bool:
    """Whether devices of a pool are of the kind that is wanted, wherever they are.

    :param known: what was found of these wishes before; hosts have pools of few kinds
    """
    if known is None:
        return any(_is(pool, spec) for spec in wish.specs)
    key = id(wish), pool.kind
    found = known.get(key)
    if found is None:
        found = known[key] = any(_is(pool, spec) for spec in wish.specs)
    return found


def _is(pool: Pool, spec: DeviceSpec) -> bool:
    return (
        spec.vendor_id in ('', pool.vendor_id)
        and spec.product_id in ('', pool.product_id)
        and _is_type(pool, spec)
        and _is_managed_as_requested(pool, spec)
        and all(pool.tags.get(key) == value for key, value in spec.tags if key != _REMOTE)
    )


def _is_type(pool: Pool, spec: DeviceSpec) -> bool:
    if spec.dev_type:
        return pool.dev_type == spec.dev_type
    return pool.dev_type not in _SPECIAL


def _is_managed_as_requested(pool: Pool, spec: DeviceSpec) -> bool:
    """Devices that are managed from elsewhere are only for those who ask for such."""
    remote_managed = dict(spec.tags).get(_REMOTE) or ''
    if remote_managed and _REMOTE not in pool.tags and pool.dev_type == _PLAIN:
        return False  # only of network devices it is known without being said
    return (pool.tags.get(_REMOTE, '') in _YES) == (remote_managed in _YES)


def is_near(pool: Pool, affinity: Affinity, cells: Collection[FreeCell]) -> bool:
    """Whether a pool is as near to the guest's cells as it has to be.

    :param cells: of the host; empty: the guest has none, so that any pool is near
    """
    if not cells or affinity is Affinity.PREFERRED:
        return True
    if pool.numa_node is None:
        return affinity is Affinity.LEGACY
    return any(cell.id == pool.numa_node for cell in cells)


def _is_on_socket(pool: Pool, cells: Collection[FreeCell], host: Sequence[FreeCell]) -> bool:
    """As ``is_near``, by socket: on the guest's very cell, else where all sockets are known."""
    if not cells or any(cell.id == pool.numa_node for cell in cells):
        return True
    if any(cell.socket is None for cell in host):
        return False
    of_pool = next((cell.socket for cell in host if cell.id == pool.numa_node), None)
    return of_pool is not None and any(cell.socket == of_pool for cell in cells)


def eligible(
    wish: DeviceWish,
    pools: Sequence[Pool],
    cells: Collection[FreeCell],
    host: Sequence[FreeCell],
    affinity: Affinity,
    known: Known | None = None,
) -> list[int]:
    """Indices of the pools that a wish may be met from, in the order in which they are taken.

    Those near the guest come first.  Then what others need the least, by their tags, see
    :mod:`gantt.core.resources.scarcity`.  Of one kind the fullest pool is taken, and the others
    stay whole.  In what order the host reports them decides nothing.
    """
    found = []
    for i, pool in enumerate(pools):
        if not matches(pool, wish, known):
            continue
        if affinity is Affinity.SOCKET:
            near = _is_on_socket(pool, cells, host)
        else:
            near = is_near(pool, affinity, cells)
        if near:
            found.append(i)
    if len(found) < 2:
        return found
    at = {cell.id for cell in cells}
    needs = scarcity.need(
        [pool.kind for pool in pools],
        [len(pool.tags) for pool in pools],
        [pool.count for pool in pools],
    )

    def order(
        i: int,
    ) -> tuple[bool, tuple[int, int], str, str, list[tuple[str, str]], int, str, int, str]:
        pool = pools[i]
        return (
            pool.numa_node not in at,
            needs[i],
            *(pool.vendor_id, pool.product_id, sorted(pool.tags.items())),
            pool.free,
            pool.address,
            -1 if pool.numa_node is None else pool.numa_node,
            pool.key,
        )

    return sorted(found, key=order)


def share_out(
    wishes: Sequence[DeviceWish], free: Sequence[int], choices: Sequence[Sequence[int]]
) -> list[dict[int, int]] | None:
    """How many devices each wish gets from which pool; None: it cannot be done.

    :param free: devices free, by pool
    :param choices: pools that each wish may be met from, best first
    """
    left = list(free)
    given: list[dict[int, int]] = [{} for _ in wishes]
    for k, wish in enumerate(wishes):
        wanting = wish.count
        for pool in choices[k]:
            got = min(wanting, max(0, left[pool]))
            if got:
                given[k][pool] = got
                left[pool] -= got
                wanting -= got
        while wanting:
            got = _move_on(k, wanting, left, given, choices)
            if not got:
                return None
            wanting -= got
    return given


def _move_on(
    k: int,
    wanting: int,
    left: list[int],
    given: list[dict[int, int]],
    choices: Sequence[Sequence[int]],
) -> int:
    """Give wish ``k`` some more by moving others to pools that have some left."""
    holders: dict[int, list[int]] = collections.defaultdict(list)
    for other, shares in enumerate(given):
        for pool in shares:
            holders[pool].append(other)
    came: dict[int, tuple[int, int] | None] = {pool: None for pool in choices[k]}
    queue = collections.deque(choices[k])
    while queue:
        pool = queue.popleft()
        if left[pool] > 0:
            return _augment(k, pool, wanting, left, given, came)
        for other in holders[pool]:
            for other_choice in choices[other]:
                if other_choice not in came:
                    came[other_choice] = (pool, other)
                    queue.append(other_choice)
    return 0


def _augment(
    k: int,
    pool: int,
    wanting: int,
    left: list[int],
    given: list[dict[int, int]],
    came: dict[int, tuple[int, int] | None],
) -> int:
    steps = []
    at, amount = pool, min(wanting, left[pool])
    while (step := came[at]) is not None:
        before, other = step
        amount = min(amount, given[other][before])
        steps.append((before, other, at))
        at = before
    for before, other, after in steps:
        given[other][before] -= amount
        if not given[other][before]:
            del given[other][before]
        given[other][after] = given[other].get(after, 0) + amount
    given[k][at] = given[k].get(at, 0) + amount
    left[pool] -= amount
    return amount
