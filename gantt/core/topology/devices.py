# SPDX-License-Identifier: Apache-2.0
"""The assignment of a request's devices to device pools.

Several names of one request may match the same pool, so that taking the first
that fits may leave nothing for the next: the shares are a flow through a graph
of names and pools, which finds an assignment if there is one.
"""

import collections
from collections.abc import Collection, Sequence

from gantt.core.messages.topology_request import Affinity, DeviceSpec, PciRequest
from gantt.core.resources import scarcity
from gantt.core.topology.free import FreeCell, Kind, Pool

#: Kinds that are allocated only if a request names them.
_EXPLICIT_TYPES = ('type-pf', 'vdpa')
_REMOTE_MANAGED_TAG, _TRUE_VALUES = 'remote_managed', ('true', '1', 'yes')
_DEFAULT_TYPE = 'type-pci'


#: (identity of a wish, kind) -> whether pools of the kind match the wish.
MatchCache = dict[tuple[int, Kind], bool]


def matches_request(pool: Pool, wish: PciRequest, known: MatchCache | None = None) -> bool:
    """Return whether devices of a pool are of a requested kind, wherever they are.

    :param known: cache of earlier results of the wishes; hosts have pools of few kinds
    """
    if known is None:
        return any(_matches_spec(pool, spec) for spec in wish.specs)
    key = id(wish), pool.kind
    is_match = known.get(key)
    if is_match is None:
        is_match = known[key] = any(_matches_spec(pool, spec) for spec in wish.specs)
    return is_match


def _matches_spec(pool: Pool, spec: DeviceSpec) -> bool:
    return (
        spec.vendor_id in ('', pool.vendor_id)
        and spec.product_id in ('', pool.product_id)
        and _matches_type(pool, spec)
        and _is_managed_as_requested(pool, spec)
        and all(
            pool.tags.get(key) == value for key, value in spec.tags if key != _REMOTE_MANAGED_TAG
        )
    )


def _matches_type(pool: Pool, spec: DeviceSpec) -> bool:
    if spec.dev_type:
        return pool.dev_type == spec.dev_type
    return pool.dev_type not in _EXPLICIT_TYPES


def _is_managed_as_requested(pool: Pool, spec: DeviceSpec) -> bool:
    """Return whether a pool is remote-managed exactly if the request is for such devices."""
    remote_managed = dict(spec.tags).get(_REMOTE_MANAGED_TAG) or ''
    if remote_managed and _REMOTE_MANAGED_TAG not in pool.tags and pool.dev_type == _DEFAULT_TYPE:
        return False  # without the tag it is known only of network devices
    return (pool.tags.get(_REMOTE_MANAGED_TAG, '') in _TRUE_VALUES) == (
        remote_managed in _TRUE_VALUES
    )


def is_near(pool: Pool, affinity: Affinity, cells: Collection[FreeCell]) -> bool:
    """Return whether a pool is as near to the guest's cells as the affinity requires.

    :param cells: cells of the host that the guest uses; empty: the guest has none, so that any pool
        is near
    """
    if not cells or affinity is Affinity.PREFERRED:
        return True
    if pool.numa_node is None:
        return affinity is Affinity.LEGACY
    return any(cell.id == pool.numa_node for cell in cells)


def _is_on_socket(pool: Pool, cells: Collection[FreeCell], host: Sequence[FreeCell]) -> bool:
    """Return whether a pool is on a cell of the guest, or on its socket if all are known."""
    if not cells or any(cell.id == pool.numa_node for cell in cells):
        return True
    if any(cell.socket is None for cell in host):
        return False
    pool_socket = next((cell.socket for cell in host if cell.id == pool.numa_node), None)
    return pool_socket is not None and any(cell.socket == pool_socket for cell in cells)


def eligible_pools(
    wish: PciRequest,
    pools: Sequence[Pool],
    cells: Collection[FreeCell],
    host: Sequence[FreeCell],
    affinity: Affinity,
    known: MatchCache | None = None,
) -> list[int]:
    """Return the indices of the pools that match a wish, in the order of allocation.

    Pools near the guest come first, then the least scarce by their tags, see
    :mod:`gantt.core.resources.scarcity`.  Of one kind the fullest pool is taken, so that the
    others stay whole.  The order of the host's report has no effect.
    """
    matching = []
    for i, pool in enumerate(pools):
        if not matches_request(pool, wish, known):
            continue
        if affinity is Affinity.SOCKET:
            near = _is_on_socket(pool, cells, host)
        else:
            near = is_near(pool, affinity, cells)
        if near:
            matching.append(i)
    if len(matching) < 2:
        return matching
    cell_ids = {cell.id for cell in cells}
    needs = scarcity.scarcity_ranks(
        [pool.kind for pool in pools],
        [len(pool.tags) for pool in pools],
        [pool.count for pool in pools],
    )

    def order(
        i: int,
    ) -> tuple[bool, tuple[int, int], str, str, list[tuple[str, str]], int, str, int, str]:
        pool = pools[i]
        return (
            pool.numa_node not in cell_ids,
            needs[i],
            *(pool.vendor_id, pool.product_id, sorted(pool.tags.items())),
            pool.free,
            pool.address,
            -1 if pool.numa_node is None else pool.numa_node,
            pool.key,
        )

    return sorted(matching, key=order)


def distribute_devices(
    wishes: Sequence[PciRequest], free: Sequence[int], choices: Sequence[Sequence[int]]
) -> list[dict[int, int]] | None:
    """Return the number of devices from each pool by wish; None if there is no assignment.

    :param free: devices free, by pool
    :param choices: pools that match each wish, best first
    """
    remaining = list(free)
    given: list[dict[int, int]] = [{} for _ in wishes]
    for k, wish in enumerate(wishes):
        missing = wish.count
        for pool in choices[k]:
            assigned = min(missing, max(0, remaining[pool]))
            if assigned:
                given[k][pool] = assigned
                remaining[pool] -= assigned
                missing -= assigned
        while missing:
            assigned = _reassign_devices(k, missing, remaining, given, choices)
            if not assigned:
                return None
            missing -= assigned
    return given


def _reassign_devices(
    k: int,
    wanting: int,
    left: list[int],
    given: list[dict[int, int]],
    choices: Sequence[Sequence[int]],
) -> int:
    """Assign more devices to wish ``k`` by moving others to pools that have free ones."""
    holders: dict[int, list[int]] = collections.defaultdict(list)
    for other, shares in enumerate(given):
        for pool in shares:
            holders[pool].append(other)
    reached_from: dict[int, tuple[int, int] | None] = {pool: None for pool in choices[k]}
    queue = collections.deque(choices[k])
    while queue:
        pool = queue.popleft()
        if left[pool] > 0:
            return _find_augmenting_path(k, pool, wanting, left, given, reached_from)
        for other in holders[pool]:
            for other_choice in choices[other]:
                if other_choice not in reached_from:
                    reached_from[other_choice] = (pool, other)
                    queue.append(other_choice)
    return 0


def _find_augmenting_path(
    k: int,
    pool: int,
    wanting: int,
    left: list[int],
    given: list[dict[int, int]],
    came: dict[int, tuple[int, int] | None],
) -> int:
    steps = []
    reached, amount = pool, min(wanting, left[pool])
    while (step := came[reached]) is not None:
        previous, other = step
        amount = min(amount, given[other][previous])
        steps.append((previous, other, reached))
        reached = previous
    for previous, other, after in steps:
        given[other][previous] -= amount
        if not given[other][previous]:
            del given[other][previous]
        given[other][after] = given[other].get(after, 0) + amount
    given[k][reached] = given[k].get(reached, 0) + amount
    left[pool] -= amount
    return amount
