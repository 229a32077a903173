# SPDX-License-Identifier: Apache-2.0
"""Changes of claims computed from a write of allocations: pure.

A consumer's allocations are its live claims.  There is one for each host tree, which lies on the
host that is the root; where the write names no provider of any host's tree there is one alone, on
the lowest root.  Amounts on providers that are in no host's tree belong to the claim that had them,
else to the newest.  A wish states all that a consumer is to have; claims that match it
already stay as they are, and of the rest no more changes than differs.

Where one consumer is to have nothing, and another one exactly what the first has, the claims are
handed over: they keep their ids, states and leases.  In lists, groups and hints they stay those of
the guest that they were created for, see ``Claim.guest``.
"""

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from gantt import exceptions
from gantt.core.claims import inheritance
from gantt.core.claims.claim import Claim, State, guest_of, with_state
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import Lifecycle
from gantt.core.resources.amounts import add_allocations

#: Type of consumers without a given type: no given type has small letters.
UNKNOWN_CONSUMER_TYPE = 'unknown'
#: Range of generations that no writer has set, see ``ConsumerState.generation``.
INITIAL_GENERATIONS = 1 << 30
WRITTEN_REASON = 'written by the allocation API'
#: provider id -> class -> amount
Shares = Mapping[int, Mapping[str, int]]
_replace = msgspec.structs.replace


class WantedAllocations(msgspec.Struct, frozen=True, kw_only=True):
    """Complete allocations that a consumer is to have.

    :ivar allocations: uuid of a provider -> class -> amount, at least 1; empty: nothing
    :ivar consumer_type: None: the present one; a new consumer has none that is known
    :ivar generation: the consumer's, as the writer knows it; None: it does not exist.  UNSET: it
        is not checked
    """

    consumer: str
    allocations: dict[str, dict[str, int]]
    project_id: str
    user_id: str
    consumer_type: str | None = None
    generation: int | None | UnsetType = UNSET


class ProviderRoot(NamedTuple):
    """Root of a provider's tree."""

    id: int
    is_host: bool


class ConsumerState(NamedTuple):
    """Stored state of a consumer whose allocations the API has written.

    :ivar generation: generation as of the last write
    :ivar digest: digest of its claims at that write
    """

    generation: int
    digest: str

    @classmethod
    def none(cls) -> 'ConsumerState':
        """Return the state of a consumer without any write."""
        return cls(0, '')


class ClaimChanges(msgspec.Struct, kw_only=True):
    """Changes of claims; unchanged ones are in ``same``.

    :ivar changed_pipeline: changed claims, as they were and as they become
    :ivar gone: ended claims, as they were
    """

    same: list[Claim] = []
    changed: list[tuple[Claim, Claim]] = []
    gone: list[Claim] = []
    new: list[Claim] = []

    def extend(self, more: 'ClaimChanges') -> None:
        """Add the changes of the claims of further consumers."""
        self.same += more.same
        self.changed += more.changed
        self.gone += more.gone
        self.new += more.new

    def rewrite(self, was: Claim, claim: Claim) -> None:
        """Replace a claim that stays by its new state."""
        for at, (before, now) in enumerate(self.changed):
            if now.id == was.id:
                self.changed[at] = (before, claim)
                return
        self.same = [other for other in self.same if other.id != was.id]
        self.changed.append((was, claim))

    def of(self, consumer: str) -> list[Claim]:
        """Return the live claims that a consumer has afterwards."""
        now = [*self.same, *(claim for _, claim in self.changed), *self.new]
        return [claim for claim in now if claim.consumer == consumer]

    def ended(self, now: float) -> list[tuple[Claim, Claim]]:
        """Return the ended claims, before and after."""
        return [
            (claim, with_state(claim, State.RELEASED, WRITTEN_REASON, now)) for claim in self.gone
        ]


def guests_concerned(changes: ClaimChanges) -> set[str]:
    """Return guests whose claims end, or change their pool amounts: others may inherit these."""
    ended = [claim for claim in changes.gone if inheritance.has_pool_amounts(claim)]
    other = [
        was
        for was, now in changes.changed
        if inheritance.held_outside_host([was]) != inheritance.held_outside_host([now])
    ]
    return {guest_of(claim) for claim in (*ended, *other)}


def resolve_heirs(
    changes: ClaimChanges, theirs: Iterable[Claim], consumers: Container[str], now: float
) -> list[tuple[Claim, Claim]]:
    """Update claims that inherit after a write of allocations.

    :param changes: changes of the consumers' claims, which are updated in place
    :param theirs: the live claims of ``guests_concerned``, as they were before
    :param consumers: consumers whose whole allocations the write states
    :returns: claims of other consumers that take something over, as they were and as they become
    """
    by_guest: dict[str, list[Claim]] = {}
    for claim in theirs:
        by_guest.setdefault(guest_of(claim), []).append(claim)
    ended_ids = {claim.id for claim in changes.gone}
    becomes = {was.id: claim for was, claim in changes.changed}
    heirs: list[tuple[Claim, Claim]] = []
    for guest in sorted(by_guest):
        after = [
            becomes.get(claim.id, claim) for claim in by_guest[guest] if claim.id not in ended_ids
        ]
        after += [claim for claim in changes.new if guest_of(claim) == guest]
        written = {claim.id for claim in after if claim.consumer in consumers}
        for was, claim in inheritance.inheritance_after_write(by_guest[guest], after, written):
            if was.id in written:
                changes.rewrite(was, _replace(claim, updated_at=now))
            else:
                heirs.append((was, _replace(claim, updated_at=now)))
    return heirs


# -- allocations of a consumer ----------------------------------------------------------
def allocations_of_claims(claims: Iterable[Claim]) -> dict[int, dict[str, int]]:
    """Return what claims take together: provider id -> class -> amount; zeros are left out."""
    shares: dict[int, dict[str, int]] = {}
    for claim in claims:
        for pid, amounts in claim.allocations.items():
            for name, amount in amounts.items():
                if amount:
                    here = shares.setdefault(pid, {})
                    here[name] = here.get(name, 0) + amount
    return shares


def digest_of(claims: Iterable[Claim]) -> str:
    """Return a digest of the live claims of a consumer: their ids and amounts."""
    parts = []
    for claim in claims:
        parts.append(claim.id)
        for pid, amounts in claim.allocations.items():
            parts += [f'{claim.id} {pid} {name} {amount}' for name, amount in amounts.items()]
    return hashlib.blake2b('\n'.join(sorted(parts)).encode(), digest_size=16).hexdigest()


def visible_generation(claims: Sequence[Claim], written: ConsumerState | None) -> int | None:
    """Return the generation of a consumer; None: it does not exist, as it has no live claim.

    Each write of allocations steps the one that is written.  Where schedulers, hosts or time have
    changed the claims since, it is another number, which follows from their present state: only
    writers of allocations have to count.

    :param written: None: allocations of it were never written
    """
    if not claims:
        return None
    digest = digest_of(claims)
    state = written or ConsumerState.none()
    if state.digest == digest:
        return state.generation
    return state.generation + 1 + int(digest[:16], 16) % INITIAL_GENERATIONS


def check_generation(wish: WantedAllocations, visible: int | None) -> None:
    """Check that the writer knows the current generation.

    :raises ConsumerChanged: the writer knows another one
    """
    if wish.generation is UNSET or wish.generation == visible:
        return
    raise exceptions.ConsumerChanged(
        consumer=wish.consumer,
        expected='null' if visible is None else visible,
        given='null' if wish.generation is None else wish.generation,
    )


def next_consumer_state(visible: int | None, now: Sequence[Claim]) -> ConsumerState:
    """Return the state to store after a write; a consumer that comes to exist begins anew.

    :param visible: its generation before
    :param now: its live claims afterwards
    """
    return ConsumerState(1 if visible is None else visible + 1, digest_of(now))


# -- changes of its claims --------------------------------------------------------------------
class AllocationCompiler:
    """Compiler of the wishes of one transaction, all of different consumers.

    :param roots: root of every provider that wishes or claims name
    :param ids: uuid -> id, of the providers that wishes name
    :param stamp: stamp of the transaction: ids of new claims follow from it
    """

    def __init__(
        self,
        live: Mapping[str, Sequence[Claim]],
        roots: Mapping[int, ProviderRoot],
        ids: Mapping[str, int],
        *,
        now: float,
        stamp: int,
    ) -> None:
        self._live = live
        self._roots = roots
        self._ids = ids
        self._now = now
        self._stamp = stamp
        self._changes = ClaimChanges(same=[], changed=[], gone=[], new=[])

    def compile(self, wishes: Sequence[WantedAllocations]) -> ClaimChanges:
        """Return the changes of claims."""
        shares_of_consumer = {wish.consumer: self._shares(wish) for wish in wishes}
        heirs = self._heir_of_consumer(shares_of_consumer)
        given = set(heirs.values())
        for wish in wishes:
            if wish.consumer in given:
                continue
            if wish.consumer in heirs:
                self._hand_over_claims(wish, heirs[wish.consumer])
            else:
                self._change_claims(wish, shares_of_consumer[wish.consumer])
        return self._changes

    def _shares(self, wish: WantedAllocations) -> dict[int, dict[str, int]]:
        return {
            self._ids[uuid]: dict(amounts) for uuid, amounts in wish.allocations.items() if amounts
        }

    def _live_claims_of(self, consumer: str) -> list[Claim]:
        claims = self._live.get(consumer, ())
        return sorted(claims, key=lambda claim: (claim.created_at, claim.id))

    # -- handed over ---------------------------------------------------------------------
    def _heir_of_consumer(self, shares_by_consumer: Mapping[str, Shares]) -> dict[str, str]:
        """Return heir -> consumer whose claims it gets, each once."""
        leaving = {
            consumer: allocations_of_claims(self._live_claims_of(consumer))
            for consumer in sorted(shares_by_consumer)
            if not shares_by_consumer[consumer]
            and allocations_of_claims(self._live_claims_of(consumer))
        }
        heirs: dict[str, str] = {}
        for heir in sorted(shares_by_consumer):
            giver = next(
                (
                    consumer
                    for consumer, shares in leaving.items()
                    if shares == shares_by_consumer[heir]
                ),
                None,
            )
            if giver is not None:
                heirs[heir] = giver
                del leaving[giver]
        return heirs

    def _hand_over_claims(self, wish: WantedAllocations, of: str) -> None:
        self._changes.gone += self._live_claims_of(wish.consumer)
        for claim in self._live_claims_of(of):
            guest = guest_of(claim)
            self._record_change(
                claim,
                _replace(
                    claim,
                    consumer=wish.consumer,
                    guest=None if guest == wish.consumer else guest,
                    **self._owner(wish, self._live_claims_of(of)),
                ),
            )

    # -- changed --------------------------------------------------------------------------
    def _change_claims(self, wish: WantedAllocations, shares: Shares) -> None:
        claims = self._live_claims_of(wish.consumer)
        trees: dict[int, dict[int, Mapping[str, int]]] = {}
        rest: dict[int, Mapping[str, int]] = {}
        for pid, amounts in shares.items():
            root = self._roots[pid]
            (trees.setdefault(root.id, {}) if root.is_host else rest)[pid] = amounts
        becomes: dict[str, dict[int, Mapping[str, int]]] = {}
        anchors: dict[int, dict[int, Mapping[str, int]]] = {}
        for host, tree in sorted(trees.items()):
            staying = self._claims_of_tree(
                host, [claim for claim in claims if claim.provider_id == host], tree
            )
            becomes |= staying
            if not staying:
                anchors[host] = dict(tree)
        self._assign_rest(rest, claims, becomes, anchors)
        owner = self._owner(wish, claims)
        for claim in claims:
            if claim.id in becomes:
                taken = {pid: dict(amounts) for pid, amounts in becomes[claim.id].items()}
                for pid in claim.inherits:
                    taken.setdefault(pid, {})  # states that it takes nothing from there
                self._record_change(claim, _replace(claim, allocations=taken, **owner))
            else:
                self._changes.gone.append(claim)
        for anchor, taken_there in sorted(anchors.items()):
            self._changes.new.append(self._new_claim(wish, anchor, taken_there, owner))

    def _claims_of_tree(
        self, host: int, here: Sequence[Claim], tree: Shares
    ) -> dict[str, dict[int, Mapping[str, int]]]:
        """Return the claims of a host tree that stay, and what they take in it.

        :param here: those that lie on the host, by age
        """
        taken = {claim.id: self._amounts_in_tree(claim, host) for claim in here}
        if not here:
            return {}
        if _sum_shares(taken.values()) == tree:
            return taken
        equal = [claim for claim in here if taken[claim.id] == tree]
        return {(equal or here)[-1].id: dict(tree)}

    def _amounts_in_tree(self, claim: Claim, host: int) -> dict[int, Mapping[str, int]]:
        taken = allocations_of_claims([claim])
        roots = self._roots
        return {
            pid: amounts for pid, amounts in taken.items() if pid in roots and roots[pid].id == host
        }

    def _assign_rest(
        self,
        rest: Shares,
        mine: Sequence[Claim],
        becomes: dict[str, dict[int, Mapping[str, int]]],
        anchors: dict[int, dict[int, Mapping[str, int]]],
    ) -> None:
        """Assign amounts outside of any host's tree to a claim."""
        if not becomes and not anchors:
            self._assign_without_host(rest, mine, becomes, anchors)
            return
        staying = [claim for claim in mine if claim.id in becomes]
        for pid, amounts in sorted(rest.items()):
            had = [claim for claim in staying if allocations_of_claims([claim]).get(pid)]
            if had and allocations_of_claims(had)[pid] == amounts:
                for claim in had:
                    becomes[claim.id][pid] = allocations_of_claims([claim])[pid]
            elif had:
                becomes[had[-1].id][pid] = amounts
            elif anchors:
                anchors[min(anchors)][pid] = amounts
            else:
                becomes[staying[-1].id][pid] = amounts

    def _assign_without_host(
        self,
        rest: Shares,
        mine: Sequence[Claim],
        becomes: dict[str, dict[int, Mapping[str, int]]],
        anchors: dict[int, dict[int, Mapping[str, int]]],
    ) -> None:
        """Assign all amounts to one claim, on the lowest root of the providers."""
        if not rest:
            return
        anchor = min(self._roots[pid].id for pid in rest)
        here = [claim for claim in mine if claim.provider_id == anchor]
        if here:
            equal = [claim for claim in here if allocations_of_claims([claim]) == rest]
            becomes[(equal or here)[-1].id] = dict(rest)
        else:
            anchors[anchor] = dict(rest)

    # -- claims -------------------------------------------------------------------------------
    def _owner(self, wish: WantedAllocations, claims: Sequence[Claim]) -> dict[str, Any]:
        current_type = claims[-1].consumer_type if claims else UNKNOWN_CONSUMER_TYPE
        return {
            'project_id': wish.project_id,
            'user_id': wish.user_id,
            'consumer_type': wish.consumer_type or current_type,
        }

    def _record_change(self, before: Claim, now: Claim) -> None:
        if now == before:
            self._changes.same.append(before)
        else:
            self._changes.changed.append((before, _replace(now, updated_at=self._now)))

    def _new_claim(
        self, wish: WantedAllocations, anchor: int, taken: Shares, owner: Mapping[str, Any]
    ) -> Claim:
        return Claim(
            id=derived_id('allocated', wish.consumer, self._stamp, anchor),
            request_id=None,
            consumer=wish.consumer,
            provider_id=anchor,
            state=State.RESERVED,
            lifecycle=Lifecycle.API,
            allocations={pid: dict(amounts) for pid, amounts in sorted(taken.items())},
            reason=WRITTEN_REASON,
            created_at=self._now,
            updated_at=self._now,
            **owner,
        )


def _sum_shares(shares: Iterable[Shares]) -> dict[int, dict[str, int]]:
    total: dict[int, dict[str, int]] = {}
    for claim_shares in shares:
        add_allocations(total, claim_shares.items())
    return total
