# SPDX-License-Identifier: Apache-2.0
"""The group commit as values: what a batch asks for, and what became of it.

A batch is a list of drafts in arrival order.  The store decides under the
locks of the touched providers and answers per request; see ``judge_rivals`` and
``accept`` for the rules, which every implementation of the store must meet.
"""

import enum
from collections.abc import Container, Iterable, Mapping

import msgspec

from gantt.core.claims.claim import Claim, gives_way, is_rival
from gantt.core.messages.layout import readable
from gantt.core.resources.group_rule import GroupRule, agree
from gantt.core.resources.host import HostRow
from gantt.core.topology.free import FreeTopology

_RUNS = ' runs on '


class GroupSwap(msgspec.Struct, frozen=True):
    """Compare-and-swap of a group: its rule, and where that is hard its generation.

    :ivar generation: as planned with, 0: not known yet; None: the rule is soft, members
        that others place meanwhile void nothing
    :ivar makes: the caller named the rule: it becomes the group's where none is stored
    """

    uuid: str
    generation: int | None
    policy: str
    max_per_host: int = 1
    makes: bool = True

    @property
    def is_guarded(self) -> bool:
        """Whether the generation counts."""
        return self.generation is not None

    @property
    def may_be_first(self) -> bool:
        """Whether the group is to be made where it is not there."""
        return self.makes and not self.generation


def is_behind(planned: GroupSwap, stored: GroupRule | None) -> bool:
    """Whether what was planned may not be committed: the group is not as it was planned with.

    :param stored: read under the lock of the group; None: there is none
    """
    if stored is None or not agree(planned, stored):
        return True
    if planned.generation == 0 and stored.is_untouched:
        return False  # it was not known yet, and nobody is in it
    return planned.is_guarded and planned.generation != stored.generation


class ClaimDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A claim to be made; ``generation`` is checked where a layout was chosen."""

    claim: Claim
    generation: int | None = None


class RequestDraft(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the batch.

    :ivar continues: the row is open and ours from an earlier batch: taken by
        compare-and-swap on (owner, attempt), never by insert
    :ivar takes_over: attempt to replace of an open row that is past its deadline, or that the
        owner left itself: a commit whose outcome it did not learn
    :ivar whole: accepted whole or not at all
    :ivar completes: all members not yet claimed are in this draft
    :ivar answer: stored when the request becomes placed by this commit
    :ivar decision: (id, outcome, packed) stored with it
    :ivar only_project: of the one project that it may claim for consumers of; None: of any
    """

    id: str
    fingerprint: str
    owner: str
    attempt: int = 1
    continues: bool = False
    takes_over: int | None = None
    whole: bool = False
    completes: bool = True
    budget_seconds: float = 30.0
    lease_seconds: float = 120.0
    project_id: str | None = None
    only_project: str | None = None
    claims: list[ClaimDraft]
    group: GroupSwap | None = None
    answer: bytes = b''
    decision: 'DecisionRecord | None' = None


#: Consumers that a decision is found by, of those that no commit made.
CONSUMERS_MOST = 100


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A decision as it is kept: the columns to look for it by, and the packed rest.

    ``created_at`` is filled in by the store when the record is read.

    :ivar origin: see ``SelectDestinations``
    :ivar consumers: whom it is about.  Kept for a decision that no commit made: of others the
        claims tell
    """

    id: str
    request_id: str
    outcome: str
    project_id: str | None = None
    reason: str = ''
    worker: str = ''
    table_seq: int = 0
    packed: bytes = b''
    host_set: str = ''  # digest of provider_ids
    provider_ids: bytes = b''
    created_at: float = 0.0
    origin: str | None = None
    consumers: list[str] = []


class CommitStatus(enum.StrEnum):
    """What became of a request of the batch."""

    PLACED = 'placed'  # all its claims are made and its answer stored
    PARTIAL = 'partial'  # some made, the row stays open and ours
    DROPPED = 'dropped'  # nothing made; plan again
    BARRED = 'barred'  # nothing made; a consumer runs already, or belongs to others
    GROUP_CHANGED = 'group_changed'  # nothing made; read the group back first
    REPEAT = 'repeat'  # it was placed before: ``answer`` is the stored one
    OPEN = 'open'  # another worker is at it, until ``deadline``
    OVERDUE = 'overdue'  # left open past its deadline, or by ourselves: take over
    CANCELLED = 'cancelled'
    REUSED = 'reused'  # same id, other fingerprint
    LOST = 'lost'  # it continued a row that is no longer ours
    LOCKED = 'locked'  # nothing made; another transaction keeps rows locked that it needs


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Fate of one request; ``accepted`` are indices into its ``claims``."""

    id: str
    outcome: CommitStatus
    accepted: list[int] = []
    answer: bytes = b''
    attempt: int = 1
    wait_seconds: float = 0.0
    reason: str = ''


class CommitResult(msgspec.Struct, frozen=True, kw_only=True):
    """Fates in the order of the drafts, and every touched host as it is now.

    :ivar freed: providers that claims have left: overtaken, or given way
    :ivar locked: providers whose rows another transaction keeps locked, with their names
    """

    outcomes: list[RequestOutcome]
    hosts: list[HostRow] = []
    freed: list[int] = []
    groups: dict[str, int] = {}  # group uuid -> generation now
    now: float = 0.0  # the database's clock
    locked: dict[int, str] = {}


def judge_rivals(
    live: Iterable[Claim], requests: Iterable[RequestDraft]
) -> tuple[dict[str, list[Claim]], dict[str, RequestOutcome]]:
    """One live claim per (consumer, purpose): which claims give way, which requests end.

    What an older request has reserved for a consumer gives way to the claim
    that a newer one makes for it; a guest that runs is not claimed for again.
    Of two requests of one batch the later is planned again after the first; so is
    one of a group that a member leaves by this: it was planned beside that member.
    Who may claim for one project only meets nobody else's consumers: they are not there.

    :param live: the live claims of the consumers, read after these were locked
    :returns: id of a new claim -> claims to be released where it is made, and
        the fates of requests that go no further
    """
    of_consumer: dict[str, list[Claim]] = {}
    for claim in live:
        of_consumer.setdefault(claim.consumer, []).append(claim)
    ways: dict[str, list[Claim]] = {}
    outcomes: dict[str, RequestOutcome] = {}
    seen: set[tuple[str, str]] = set()
    left: set[str | None] = set()
    for request in requests:
        found: dict[str, list[Claim]] = {}
        keys = set()
        why = ''
        for made in (draft.claim for draft in request.claims):
            keys.add((made.consumer, 'move' if made.purpose.is_move else made.purpose.value))
            known = of_consumer.get(made.consumer, ())
            rivals = [claim for claim in known if is_rival(claim, made.purpose)]
            why = _bar(request, known, rivals) or why
            if rivals:
                found[made.id] = rivals
        if why:
            outcomes[request.id] = _end(request, CommitStatus.BARRED, why)
        elif keys & seen:
            outcomes[request.id] = _end(request, CommitStatus.DROPPED)
            if request.group is not None:
                left.add(request.group.uuid)  # what follows was planned beside it
        elif request.group is not None and request.group.is_guarded and request.group.uuid in left:
            outcomes[request.id] = _end(request, CommitStatus.GROUP_CHANGED)
        else:
            seen |= keys
            ways.update(found)
            left.update(claim.group for rivals in found.values() for claim in rivals)
    return ways, outcomes


def behind_others(
    batch: Iterable[RequestDraft], ended: Container[str], rules: Mapping[str, GroupRule]
) -> set[str]:
    """Requests that go no further for their group's sake.

    They were planned under another rule or on another generation of it, or beside a
    member that an earlier request of the batch was to get and does not: news that come in
    the middle of a batch bring a newer generation to a table on which such a member still
    stands.  Of a soft rule only the rule itself counts.

    :param batch: all of it, in the order in which it was planned
    :param ended: requests that have a fate already
    :param rules: of the groups, read under their locks
    """
    left: set[str] = set()
    changed: set[str] = set()
    for request in batch:
        group = request.group
        if group is None:
            continue
        shares_group = group.is_guarded and group.uuid in left
        if request.id in ended:
            left.add(group.uuid)
        elif shares_group or is_behind(group, rules.get(group.uuid)):
            left.add(group.uuid)
            changed.add(request.id)
    return changed


def is_foreign(claim: Claim, only_project: str | None) -> bool:
    """Whether a claim is not of the one project that somebody may act for."""
    return only_project is not None and claim.project_id != only_project


def _bar(request: RequestDraft, known: Iterable[Claim], rivals: Iterable[Claim]) -> str:
    """Why nothing is claimed for a consumer that has these claims; '' where it may be."""
    foreign = next((claim for claim in known if is_foreign(claim, request.only_project)), None)
    if foreign is not None:
        return f'consumer {foreign.consumer!r} is not known here'
    bar = next((claim for claim in rivals if not gives_way(claim)), None)
    return f'consumer {bar.consumer}{_RUNS}{bar.host} under claim {bar.id}' if bar else ''


def without_place(reason: str) -> str:
    """The reason of a refusal, for who may not know hosts."""
    who, runs, _ = reason.partition(_RUNS)
    return f'{who} has a place already' if runs else reason


def _end(request: RequestDraft, result: CommitStatus, reason: str = '') -> RequestOutcome:
    return RequestOutcome(id=request.id, outcome=result, attempt=request.attempt, reason=reason)


def accept(
    rooms: Mapping[int, Mapping[str, int]],
    generations: Mapping[int, int],
    closed: Iterable[int],
    requests: Iterable[RequestDraft],
    insides: Mapping[int, FreeTopology] | None = None,
) -> dict[str, list[int]]:
    """Which claims of each request may be written, in arrival order.

    The plain rule behind every group commit: a claim is accepted where each of
    its allocations fits beside what is used and what was accepted before it,
    every touched provider is open, and its layout takes nothing that is taken: what
    was free at one generation of a host need not be at another, so that is looked
    at again under the lock.  A refusal concerns only the request that asked; a
    request that is ``whole`` is accepted whole or not at all.

    :param rooms: provider id -> class -> cap - used - foreign, under the locks
    :param generations: provider id -> generation, under the locks
    :param closed: providers that take nothing new, or are gone
    :param insides: provider id -> what its live claims leave inside of it, of those that
        a layout of the batch is on; changed in place
    :returns: request id -> indices of its accepted claims
    """
    stock = _Stock(rooms, generations, closed, insides or {})
    accepted: dict[str, list[int]] = {}
    for request in requests:
        took: list[int] = []
        for index, draft in enumerate(request.claims):
            if stock.has(draft):
                stock.take(draft.claim, 1)
                took.append(index)
        if request.whole and len(took) < len(request.claims):
            for index in took:
                stock.take(request.claims[index].claim, -1)
            took = []
        accepted[request.id] = took
    return accepted


class _Stock:
    """What providers have left while a batch is gone through."""

    def __init__(
        self,
        rooms: Mapping[int, Mapping[str, int]],
        generations: Mapping[int, int],
        closed: Iterable[int],
        insides: Mapping[int, FreeTopology],
    ) -> None:
        self._left = {provider: dict(room) for provider, room in rooms.items()}
        self._generations = generations
        self._shut = set(closed)
        self._insides = insides

    def has(self, draft: ClaimDraft) -> bool:
        """Whether a claim may be written."""
        claim = draft.claim
        for provider, amounts in claim.allocations.items():
            room = self._left.get(provider)
            if room is None or provider in self._shut:
                return False
            if any(amount > room.get(name, 0) for name, amount in amounts.items()):
                return False
        layout = None if claim.layout is None else readable(claim.layout)
        if layout is not None:
            inside = self._insides.get(claim.provider_id)
            return inside is not None and inside.holds(layout)
        if draft.generation is None:
            return True
        # Members of one batch are planned on one working table and know of the members
        # before them; only what others changed since voids what was planned.
        return self._generations.get(claim.provider_id) == draft.generation

    def take(self, claim: Claim, sign: int) -> None:
        """Use what a claim takes, or with -1 give it back."""
        for provider, amounts in claim.allocations.items():
            room = self._left[provider]
            for name, amount in amounts.items():
                room[name] = room.get(name, 0) - sign * amount
        layout = None if claim.layout is None else readable(claim.layout)
        if layout is not None:
            self._insides[claim.provider_id].take(layout, sign)
