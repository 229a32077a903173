# SPDX-License-Identifier: Apache-2.0
"""What a writer of allocations wants, made into changes of claims: pure.

A consumer's allocations are its live claims.  There is one for each host tree, which lies on the
host that is the root; where nothing of any host's tree is wanted there is one alone, on the lowest
root.  What lies on providers that are in no host's tree belongs to the claim that had it, else to
the newest.  A wish says all that a consumer is to have; what it has already stays as it is, and of
the rest no more changes than differs.

Where one consumer is to have nothing, and another one exactly what the first has, the claims are
handed over: they keep their ids, states and leases.  To lists, groups and hints they stay those of
the guest that they were made for, see ``Claim.guest``.
"""

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from gantt import exceptions
from gantt.core.claims import inheritance
from gantt.core.claims.claim import Claim, State, guest_of, stepped
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import Lifecycle

#: The type of consumers that none was said of: no type that is said has small letters.
UNKNOWN_TYPE = 'unknown'
#: What a generation that nobody has written may differ by, see ``ConsumerState.generation``.
SPREAD = 1 << 30
WRITTEN = 'written by the allocation API'
#: provider id -> class -> amount
Shares = Mapping[int, Mapping[str, int]]
_replace = msgspec.structs.replace


class AllocationWish(msgspec.Struct, frozen=True, kw_only=True):
    """All that a consumer is to have.

    :ivar allocations: uuid of a provider -> class -> amount, at least 1; empty: nothing
    :ivar consumer_type: None: the one it has, of a new one none is known
    :ivar generation: the consumer's, as the writer knows it; None: it does not exist.  UNSET: it
        is not asked for
    """

    consumer: str
    allocations: dict[str, dict[str, int]]
    project_id: str
    user_id: str
    consumer_type: str | None = None
    generation: int | None | UnsetType = UNSET


class ProviderRoot(NamedTuple):
    """The root of a provider's tree."""

    id: int
    is_host: bool


class ConsumerState(NamedTuple):
    """What is remembered of a consumer that somebody has written allocations of.

    :ivar generation: as of the last write
    :ivar digest: of what it had then
    """

    generation: int
    digest: str

    @classmethod
    def none(cls) -> 'ConsumerState':
        """Nobody has written any."""
        return cls(0, '')


class ClaimChanges(msgspec.Struct, kw_only=True):
    """What becomes of claims; those that stay as they are are in ``same``.

    :ivar changed: as they were, and as they become
    :ivar gone: as they were
    """

    same: list[Claim] = []
    changed: list[tuple[Claim, Claim]] = []
    gone: list[Claim] = []
    new: list[Claim] = []

    def extend(self, more: 'ClaimChanges') -> None:
        """What becomes of the claims of further consumers."""
        self.same += more.same
        self.changed += more.changed
        self.gone += more.gone
        self.new += more.new

    def rewrite(self, was: Claim, claim: Claim) -> None:
        """A claim that stays becomes another one."""
        for at, (before, now) in enumerate(self.changed):
            if now.id == was.id:
                self.changed[at] = (before, claim)
                return
        self.same = [one for one in self.same if one.id != was.id]
        self.changed.append((was, claim))

    def of(self, consumer: str) -> list[Claim]:
        """The live claims that a consumer has afterwards."""
        now = [*self.same, *(claim for _, claim in self.changed), *self.new]
        return [claim for claim in now if claim.consumer == consumer]

    def ended(self, now: float) -> list[tuple[Claim, Claim]]:
        """Those that are gone, and what they become."""
        return [(claim, stepped(claim, State.RELEASED, WRITTEN, now)) for claim in self.gone]


def guests_concerned(changes: ClaimChanges) -> set[str]:
    """Guests of whom claims end, or take other amounts of pools: somebody may inherit them."""
    ended = [claim for claim in changes.gone if inheritance.of_pools(claim)]
    other = [
        was for was, now in changes.changed if inheritance.held([was]) != inheritance.held([now])
    ]
    return {guest_of(claim) for claim in (*ended, *other)}


def resolve_heirs(
    changes: ClaimChanges, theirs: Iterable[Claim], consumers: Container[str], now: float
) -> list[tuple[Claim, Claim]]:
    """Let claims that inherit be what they are to be after a write.

    :param changes: those of its consumers, which are changed accordingly
    :param theirs: the live claims of ``guests_concerned``, as they were before
    :param consumers: of whom the write says all that they are to have
    :returns: claims of other consumers that take something over, as they were and as they become
    """
    of: dict[str, list[Claim]] = {}
    for claim in theirs:
        of.setdefault(guest_of(claim), []).append(claim)
    gone = {claim.id for claim in changes.gone}
    becomes = {was.id: claim for was, claim in changes.changed}
    heirs: list[tuple[Claim, Claim]] = []
    for guest in sorted(of):
        after = [becomes.get(claim.id, claim) for claim in of[guest] if claim.id not in gone]
        after += [claim for claim in changes.new if guest_of(claim) == guest]
        told = {claim.id for claim in after if claim.consumer in consumers}
        for was, claim in inheritance.settled(of[guest], after, told):
            if was.id in told:
                changes.rewrite(was, _replace(claim, updated_at=now))
            else:
                heirs.append((was, _replace(claim, updated_at=now)))
    return heirs


# -- what a consumer has ----------------------------------------------------------------
def shares_of(claims: Iterable[Claim]) -> dict[int, dict[str, int]]:
    """What claims take together: provider id -> class -> amount; zeros are left out."""
    found: dict[int, dict[str, int]] = {}
    for claim in claims:
        for pid, amounts in claim.allocations.items():
            for name, amount in amounts.items():
                if amount:
                    here = found.setdefault(pid, {})
                    here[name] = here.get(name, 0) + amount
    return found


def digest_of(claims: Iterable[Claim]) -> str:
    """What the live claims of a consumer are known by: which they are, and what they take."""
    parts = []
    for claim in claims:
        parts.append(claim.id)
        for pid, amounts in claim.allocations.items():
            parts += [f'{claim.id} {pid} {name} {amount}' for name, amount in amounts.items()]
    return hashlib.blake2b('\n'.join(sorted(parts)).encode(), digest_size=16).hexdigest()


def visible_generation(claims: Sequence[Claim], written: ConsumerState | None) -> int | None:
    """The generation of a consumer; None: it does not exist, as it has no live claim.

    Each write of allocations steps the one that is written.  Where schedulers, hosts or time have
    changed the claims since, it is another number, which follows from what they are now: nobody
    but writers of allocations has to count.

    :param written: None: nobody has written allocations of it
    """
    if not claims:
        return None
    digest = digest_of(claims)
    known = written or ConsumerState.none()
    if known.digest == digest:
        return known.generation
    return known.generation + 1 + int(digest[:16], 16) % SPREAD


def check_generation(wish: AllocationWish, visible: int | None) -> None:
    """
    :raises ConsumerChanged: the writer knows another one
    """
    if wish.generation is UNSET or wish.generation == visible:
        return
    raise exceptions.ConsumerChanged(
        consumer=wish.consumer,
        expected='null' if visible is None else visible,
        given='null' if wish.generation is None else wish.generation,
    )


def next_state(visible: int | None, now: Sequence[Claim]) -> ConsumerState:
    """What is remembered after a write; a consumer that comes to exist begins anew.

    :param visible: its generation before
    :param now: its live claims afterwards
    """
    return ConsumerState(1 if visible is None else visible + 1, digest_of(now))


# -- what becomes of its claims ---------------------------------------------------------------
class WishCompiler:
    """Wishes of one transaction, all of different consumers.

    :param roots: of every provider that wishes or claims name
    :param ids: uuid -> id, of the providers that wishes name
    :param stamp: of the transaction: ids of new claims follow from it
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

    def compile(self, wishes: Sequence[AllocationWish]) -> ClaimChanges:
        """What is to be done."""
        wanted = {wish.consumer: self._shares(wish) for wish in wishes}
        heirs = self._heirs(wanted)
        given = set(heirs.values())
        for wish in wishes:
            if wish.consumer in given:
                continue
            if wish.consumer in heirs:
                self._hand_over(wish, heirs[wish.consumer])
            else:
                self._change(wish, wanted[wish.consumer])
        return self._changes

    def _shares(self, wish: AllocationWish) -> dict[int, dict[str, int]]:
        return {self._ids[uuid]: dict(of) for uuid, of in wish.allocations.items() if of}

    def _mine(self, consumer: str) -> list[Claim]:
        found = self._live.get(consumer, ())
        return sorted(found, key=lambda claim: (claim.created_at, claim.id))

    # -- handed over ---------------------------------------------------------------------
    def _heirs(self, wanted: Mapping[str, Shares]) -> dict[str, str]:
        """Who gets the claims of whom: each once."""
        leaving = {
            consumer: shares_of(self._mine(consumer))
            for consumer in sorted(wanted)
            if not wanted[consumer] and shares_of(self._mine(consumer))
        }
        found: dict[str, str] = {}
        for heir in sorted(wanted):
            of = next((one for one, shares in leaving.items() if shares == wanted[heir]), None)
            if of is not None:
                found[heir] = of
                del leaving[of]
        return found

    def _hand_over(self, wish: AllocationWish, of: str) -> None:
        self._changes.gone += self._mine(wish.consumer)
        for claim in self._mine(of):
            guest = guest_of(claim)
            self._becomes(
                claim,
                _replace(
                    claim,
                    consumer=wish.consumer,
                    guest=None if guest == wish.consumer else guest,
                    **self._owner(wish, self._mine(of)),
                ),
            )

    # -- changed --------------------------------------------------------------------------
    def _change(self, wish: AllocationWish, shares: Shares) -> None:
        mine = self._mine(wish.consumer)
        trees: dict[int, dict[int, Mapping[str, int]]] = {}
        rest: dict[int, Mapping[str, int]] = {}
        for pid, amounts in shares.items():
            root = self._roots[pid]
            (trees.setdefault(root.id, {}) if root.is_host else rest)[pid] = amounts
        becomes: dict[str, dict[int, Mapping[str, int]]] = {}
        anchors: dict[int, dict[int, Mapping[str, int]]] = {}
        for host, tree in sorted(trees.items()):
            staying = self._of_tree(host, [one for one in mine if one.provider_id == host], tree)
            becomes |= staying
            if not staying:
                anchors[host] = dict(tree)
        self._share_out(rest, mine, becomes, anchors)
        owner = self._owner(wish, mine)
        for claim in mine:
            if claim.id in becomes:
                taken = {pid: dict(of) for pid, of in becomes[claim.id].items()}
                for pid in claim.inherits:
                    taken.setdefault(pid, {})  # that it does not take from there is what it says
                self._becomes(claim, _replace(claim, allocations=taken, **owner))
            else:
                self._changes.gone.append(claim)
        for anchor, taken_there in sorted(anchors.items()):
            self._changes.new.append(self._new(wish, anchor, taken_there, owner))

    def _of_tree(
        self, host: int, here: Sequence[Claim], tree: Shares
    ) -> dict[str, dict[int, Mapping[str, int]]]:
        """Which claims of a host tree stay, and what they take in it.

        :param here: those that lie on the host, by age
        """
        own = {claim.id: self._inside(claim, host) for claim in here}
        if not here:
            return {}
        if _sums(own.values()) == tree:
            return own
        equal = [claim for claim in here if own[claim.id] == tree]
        return {(equal or here)[-1].id: dict(tree)}

    def _inside(self, claim: Claim, host: int) -> dict[int, Mapping[str, int]]:
        taken = shares_of([claim])
        roots = self._roots
        return {pid: of for pid, of in taken.items() if pid in roots and roots[pid].id == host}

    def _share_out(
        self,
        rest: Shares,
        mine: Sequence[Claim],
        becomes: dict[str, dict[int, Mapping[str, int]]],
        anchors: dict[int, dict[int, Mapping[str, int]]],
    ) -> None:
        """Let what is in no host's tree belong to a claim."""
        if not becomes and not anchors:
            self._without_hosts(rest, mine, becomes, anchors)
            return
        staying = [claim for claim in mine if claim.id in becomes]
        for pid, amounts in sorted(rest.items()):
            had = [claim for claim in staying if shares_of([claim]).get(pid)]
            if had and shares_of(had)[pid] == amounts:
                for claim in had:
                    becomes[claim.id][pid] = shares_of([claim])[pid]
            elif had:
                becomes[had[-1].id][pid] = amounts
            elif anchors:
                anchors[min(anchors)][pid] = amounts
            else:
                becomes[staying[-1].id][pid] = amounts

    def _without_hosts(
        self,
        rest: Shares,
        mine: Sequence[Claim],
        becomes: dict[str, dict[int, Mapping[str, int]]],
        anchors: dict[int, dict[int, Mapping[str, int]]],
    ) -> None:
        """One claim, on the lowest root of what is taken."""
        if not rest:
            return
        anchor = min(self._roots[pid].id for pid in rest)
        here = [claim for claim in mine if claim.provider_id == anchor]
        if here:
            equal = [claim for claim in here if shares_of([claim]) == rest]
            becomes[(equal or here)[-1].id] = dict(rest)
        else:
            anchors[anchor] = dict(rest)

    # -- claims -------------------------------------------------------------------------------
    def _owner(self, wish: AllocationWish, claims: Sequence[Claim]) -> dict[str, Any]:
        known = claims[-1].consumer_type if claims else UNKNOWN_TYPE
        return {
            'project_id': wish.project_id,
            'user_id': wish.user_id,
            'consumer_type': wish.consumer_type or known,
        }

    def _becomes(self, before: Claim, now: Claim) -> None:
        if now == before:
            self._changes.same.append(before)
        else:
            self._changes.changed.append((before, _replace(now, updated_at=self._now)))

    def _new(
        self, wish: AllocationWish, anchor: int, taken: Shares, owner: Mapping[str, Any]
    ) -> Claim:
        return Claim(
            id=derived_id('allocated', wish.consumer, self._stamp, anchor),
            request_id=None,
            consumer=wish.consumer,
            provider_id=anchor,
            state=State.RESERVED,
            lifecycle=Lifecycle.API,
            allocations={pid: dict(of) for pid, of in sorted(taken.items())},
            reason=WRITTEN,
            created_at=self._now,
            updated_at=self._now,
            **owner,
        )


def _sums(shares: Iterable[Shares]) -> dict[int, dict[str, int]]:
    found: dict[int, dict[str, int]] = {}
    for one in shares:
        for pid, amounts in one.items():
            here = found.setdefault(pid, {})
            for name, amount in amounts.items():
                here[name] = here.get(name, 0) + amount
    return found
