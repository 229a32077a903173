# SPDX-License-Identifier: Apache-2.0
"""Group commit as values: the drafts of a batch, and the outcome of each.

A batch is a list of drafts in arrival order.  The store decides under the
locks of the touched providers and returns an outcome per request; see ``resolve_rivals`` and
``acceptance`` for the rules, which every implementation of the store must meet.
"""

import enum
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, overload

import msgspec

from gantt.core.claims.claim import Claim, is_replaceable, is_rival
from gantt.core.claims.reservations import (
    GroupPlanRecord,
    ReleasedReservation,
    ReplacedReservation,
    TakenReservation,
    released_from_plan,
)
from gantt.core.messages.request import Purpose
from gantt.core.resources.group_rule import GroupRule, rules_equal
from gantt.core.resources.host import HostKind, HostRow
from gantt.core.resources.provider import PoolUsage


class GroupPrecondition(msgspec.Struct, frozen=True):
    """Group as a plan was made with: its rule, and where that is hard its generation.

    The commit compares both under the lock of the group, and writes only where they are the same.

    :ivar generation: generation that was planned with, 0: not known yet; None: the rule is soft,
        and members that others place meanwhile invalidate nothing
    :ivar makes: the caller named the rule: it becomes the group's where none is stored
    :ivar policies: JSON of all policies, for a rule whose policy is ``policies``
    :ivar replaces: the rule becomes the group's whatever is stored, of the same generation
    """

    uuid: str
    generation: int | None
    policy: str
    max_per_host: int = 1
    makes: bool = True
    policies: str | None = None
    replaces: bool = False

    @property
    def is_guarded(self) -> bool:
        """True where the generation counts."""
        return self.generation is not None

    @property
    def may_be_first(self) -> bool:
        """True where the group is to be created if missing."""
        return self.makes and not self.generation


def is_behind(planned: GroupPrecondition, stored: GroupRule | None) -> bool:
    """Return whether a plan may not be committed: the group differs from the one planned with.

    :param stored: read under the lock of the group; None: there is none
    """
    if stored is None or not (planned.replaces or rules_equal(planned, stored)):
        return True
    if planned.generation == 0 and stored.is_untouched:
        return False  # it was not known yet, and has no member
    return planned.is_guarded and planned.generation != stored.generation


class ClaimDraft(msgspec.Struct, frozen=True, kw_only=True):
    """Claim to be created; ``generation`` is checked where a layout was chosen.

    :ivar served_by: ids of pools that it takes from because they serve its host, which is judged
        under the locks
    """

    claim: Claim
    generation: int | None = None
    served_by: tuple[int, ...] = ()


class ClaimColumns(Sequence[ClaimDraft]):
    """Claims of a request as columns: the one description of its picks after the ranking.

    The planner makes them of the members of a decision.  The table log writes them, and a commit
    reads its parameters from them.  What claims have in common is stored once: members that are
    alike get claims that differ in consumer and host.  Their ids, consumers and hosts are columns
    down to the parameters of statements; a claim itself is created on access.

    :ivar kinds: what the claims of a kind have in common, as the first of them
    :ivar kind: number of the kind of each claim; the other columns are its own
    """

    __slots__ = ('_drafts', 'consumers', 'hosts', 'ids', 'kind', 'kinds', 'members', 'providers')

    def __init__(self) -> None:
        self.kinds: list[ClaimDraft] = []
        self.kind: list[int] = []
        self.ids: list[str] = []
        self.members: list[int] = []
        self.consumers: list[str] = []
        self.providers: list[int] = []
        self.hosts: list[str] = []
        self._drafts: list[ClaimDraft] | None = None

    @classmethod
    def of(cls, drafts: Sequence[ClaimDraft]) -> 'ClaimColumns':
        """Return drafts of any kinds as columns."""
        if isinstance(drafts, ClaimColumns):
            return drafts
        columns = cls()
        for draft in drafts:
            columns.add(draft)
        return columns

    def add(self, draft: ClaimDraft) -> None:
        """Add a claim as a new kind; further claims of that kind may follow."""
        claim = draft.claim
        self.kinds.append(draft)
        self.add_like(claim.id, claim.member, claim.consumer, claim.provider_id, claim.host)

    def add_like(self, id: str, member: int, consumer: str, provider: int, host: str) -> None:
        """Add a claim of the last kind: the same amounts, of its own host and other providers."""
        self.kind.append(len(self.kinds) - 1)
        self.ids.append(id)
        self.members.append(member)
        self.consumers.append(consumer)
        self.providers.append(provider)
        self.hosts.append(host)
        self._drafts = None

    def provider_ids(self, at: Sequence[int] | None = None) -> set[int]:
        """Return the providers that claims take from: the claims at indices ``at``, or all."""
        places = range(len(self.ids)) if at is None else at
        touched = set(map(self.providers.__getitem__, places))
        if any(len(draft.claim.allocations) > 1 for draft in self.kinds):
            for kind in set(map(self.kind.__getitem__, places)):
                touched |= _amounts_outside_host(self.kinds[kind].claim).keys()
        return touched

    @property
    def pools(self) -> set[int]:
        """The providers that claims take from and that are not their host."""
        return {pid for draft in self.kinds for pid in _amounts_outside_host(draft.claim)}

    # -- as a sequence ---------------------------------------------------------------
    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> ClaimDraft: ...
    @overload
    def __getitem__(self, index: slice) -> list[ClaimDraft]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._all_drafts()[index]

    def __iter__(self) -> Iterator[ClaimDraft]:
        return iter(self._all_drafts())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return repr(list(self))

    def _all_drafts(self) -> list[ClaimDraft]:
        if self._drafts is None:
            self._drafts = [
                self._draft_like(*values)
                for values in zip(
                    self.kind,
                    self.ids,
                    self.members,
                    self.consumers,
                    self.providers,
                    self.hosts,
                    strict=True,
                )
            ]
        return self._drafts

    def _draft_like(
        self, kind: int, id: str, member: int, consumer: str, provider: int, host: str
    ) -> ClaimDraft:
        first = self.kinds[kind]
        claim = first.claim
        if claim.id == id:
            return first
        like = msgspec.structs.replace(
            claim,
            id=id,
            member=member,
            consumer=consumer,
            provider_id=provider,
            host=host,
            allocations={
                provider: claim.allocations[claim.provider_id],
                **_amounts_outside_host(claim),
            },
        )
        return msgspec.structs.replace(first, claim=like)


_NO_AMOUNTS: Mapping[int, Mapping[str, int]] = MappingProxyType({})


def _amounts_outside_host(claim: Claim) -> Mapping[int, Mapping[str, int]]:
    """Return what a claim takes of providers other than its host."""
    if len(claim.allocations) == 1:
        return _NO_AMOUNTS
    return {pid: amounts for pid, amounts in claim.allocations.items() if pid != claim.provider_id}


class RequestDraft(msgspec.Struct, frozen=True, kw_only=True):
    """Draft of a request of the batch.

    :ivar continues: the row is open and ours from an earlier batch: taken by
        compare-and-swap on (owner, attempt), never by insert
    :ivar takes_over: attempt to replace of an open row that is past its deadline, or that the
        owner left itself: a commit whose outcome it did not learn
    :ivar whole: accepted whole or not at all
    :ivar completes: all members not yet claimed are in this draft
    :ivar answer: stored when the request becomes placed by this commit
    :ivar decision: (id, outcome, packed) stored with it
    :ivar only_project: the one project whose consumers it may claim for; None: any
    :ivar groups: other groups than ``group`` that its hard policies concern: guarded as it is, and
        not counted up
    :ivar taken_reservations: reservations that it takes over, next to the claims that it creates
    :ivar replaced_reservations: those that end in exchange for its claims; of a request that is
        whole. In a create, each is a rival of the claim that its member gets, ends with
        that, and excludes other requests of the batch for the same one; its own consumer may have
        it by now
    :ivar plan: of ``group``, which is guarded: stored with the claims that are its reservations; a
        request with one is ``whole``, and these do not count as created: creates take them over
    :ivar released_reservations: those of that plan that end where it is stored.  Of a plan: no
        claim comes for them, so they are no rivals, and only such as no create has had meanwhile:
        the plan states that they are given back, and is void otherwise
    :ivar below: of a plan: the child zones where members of its group live, as it was planned
    :ivar lost_claims: ids of claims of members on down hosts: other reservations replace them
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
    claims: ClaimColumns
    group: GroupPrecondition | None = None
    answer: bytes = b''
    decision: 'DecisionRecord | None' = None
    groups: tuple[GroupPrecondition, ...] = ()
    taken_reservations: tuple[TakenReservation, ...] = ()
    replaced_reservations: tuple[ReplacedReservation, ...] = ()
    plan: GroupPlanRecord | None = None
    below: tuple[str, ...] = ()
    released_reservations: tuple[ReleasedReservation, ...] = ()
    lost_claims: tuple[str, ...] = ()


#: Largest number of consumers that index a decision without a commit.
INDEXED_CONSUMERS_MAX = 100


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Decision as it is stored: the columns to find it by, and the packed rest.

    ``created_at`` is filled in by the store when the record is read.

    :ivar origin: see ``SelectDestinations``
    :ivar consumers: consumers that it concerns, kept for decisions without a commit; for others
        the claims have them
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
    kind: str = HostKind.HOST.value
    consumers: list[str] = []


class CommitStatus(enum.StrEnum):
    """Outcome of a request of the batch."""

    PLACED = 'placed'  # all its claims are created and its answer stored
    PARTIAL = 'partial'  # some created, the row stays open and ours
    DROPPED = 'dropped'  # nothing created; plan again
    REJECTED = 'rejected'  # nothing created; a consumer runs already, or is of another project
    GROUP_CHANGED = 'group_changed'  # nothing created; read the group back first
    REPEAT = 'repeat'  # it was placed before: ``answer`` is the stored one
    OPEN = 'open'  # another worker is at it, until ``deadline``
    OVERDUE = 'overdue'  # left open past its deadline, or by ourselves: take over
    CANCELLED = 'cancelled'
    REUSED = 'reused'  # same id, other fingerprint
    LOST = 'lost'  # it continued a row that is no longer ours
    LOCKED = 'locked'  # nothing created; another transaction keeps rows locked that it needs


class RefusalKind(enum.StrEnum):
    """Obstacle to a claim under the locks, see ``acceptance``."""

    GONE = 'gone'  # a provider was deleted
    CLOSED = 'closed'  # a provider takes nothing new from schedulers
    DETACHED = 'detached'  # a pool does not serve the host any more
    ROOM = 'room'  # a class has too little left
    UNITS = 'units'  # a class may not be had in this amount
    LAYOUT = 'layout'  # its layout inside of the host is taken, or the host has changed since
    RESERVATION = 'reservation'  # of a plan: it has ended, or another request has it


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one request.

    :ivar accepted: indices into its ``claims``
    :ivar taken: indices into its ``taken_reservations``
    :ivar reason: why it was rejected, is locked, or why the first of its claims that was not
        accepted was not
    :ivar refused: the kind of that last reason
    :ivar places: hosts that it was rejected for, see ``exceptions.refused``
    """

    id: str
    outcome: CommitStatus
    accepted: list[int] = []
    answer: bytes = b''
    attempt: int = 1
    wait_seconds: float = 0.0
    reason: str = ''
    refused: RefusalKind | None = None
    taken: list[int] = []
    places: Sequence[str] = ()


class CommitPath(enum.StrEnum):
    """Way in which a batch was written; the outcome is the same."""

    OPTIMISTIC = 'optimistic'  # in one round trip, PostgreSQL only: no conflict
    PESSIMISTIC = 'pessimistic'  # in two round trips, PostgreSQL only
    PORTABLE = 'portable'  # by the statements that every database understands


class CommitResult(msgspec.Struct, frozen=True, kw_only=True):
    """Outcomes in the order of the drafts, and every touched host.

    A host is returned as it is now, or, where the batch had one way to go only, by the version at
    which it was written: its state before that is not read, and what was added is known.

    :ivar stepped: host -> version as this wrote it, of hosts that are not in ``hosts``
    :ivar pools: providers that are no hosts, as it wrote or read them
    :ivar freed: providers that claims have left: overtaken, or given way
    :ivar handed: hosts of reservations handed to another consumer: only the feed reports that
    :ivar locked: providers whose rows another transaction keeps locked, with their names
    """

    outcomes: list[RequestOutcome]
    hosts: list[HostRow] = []
    stepped: dict[int, int] = {}
    pools: list[PoolUsage] = []
    freed: list[int] = []
    handed: list[int] = []
    groups: dict[str, int] = {}  # group uuid -> generation now
    now: float = 0.0  # the database's clock
    locked: dict[int, str] = {}
    path: CommitPath = CommitPath.PORTABLE


def is_plain(draft: RequestDraft) -> bool:
    """Return whether a request needs nothing but its claims, as most do.

    It replaces no other attempt, and is in no group and for any project: the only checks left are
    whether the claims fit, and whether their consumers have others.
    """
    return (
        draft.takes_over is None
        and draft.group is None
        and draft.only_project is None
        and not draft.groups
        and not draft.taken_reservations
        and not draft.replaced_reservations
        and draft.plan is None
        and bool(draft.claims.ids)
    )


#: All requests are for any project.
NO_OWNERS: Mapping[str, str | None] = MappingProxyType({})


def consumers_to_own(requests: Iterable[RequestDraft]) -> set[str]:
    """Return the consumers of requests for one project, whose owners ``resolve_rivals`` reads."""
    limited = [request for request in requests if request.only_project is not None]
    return {consumer for request in limited for consumer in consumers_of(request)}


def consumers_of(request: RequestDraft) -> Iterator[str]:
    """Yield the consumers of a request: of its claims, and of reservations that it takes over.

    The placeholder consumers of the reservations that it replaces are included.
    """
    yield from request.claims.consumers
    for taken in request.taken_reservations:
        yield taken.consumer
    for replaced in request.replaced_reservations:
        yield replaced.consumer


def preconditions_of(request: RequestDraft) -> tuple[GroupPrecondition, ...]:
    """Return the groups that a request is guarded by: its own first."""
    return request.groups if request.group is None else (request.group, *request.groups)


def resolve_rivals(
    live: Iterable[Claim],
    requests: Iterable[RequestDraft],
    owners: Mapping[str, str | None] = NO_OWNERS,
) -> tuple[dict[str, list[Claim]], dict[str, RequestOutcome]]:
    """Enforce one live claim per (consumer, purpose): claims that give way, requests that end.

    A claim that an older request has reserved for a consumer gives way to the claim
    of a newer one for it; a guest that runs is not claimed for again.
    Of two requests of one batch the later is planned again after the first; so is
    one of a group that a member leaves by this: it was planned beside that member.
    A request for one project only cannot see consumers of other projects: they do not exist for it.
    A consumer stays its project's while an ended claim of it is stored: the claims of
    one consumer are shown, and counted, as those of one project.

    :param live: the live claims of the consumers, read after these were locked
    :param owners: consumer -> project, of those that requests for one project only name
    :returns: id of a new claim -> claims to be released where it is created, and
        the outcomes of requests that end here
    """
    of_consumer: dict[str, list[Claim]] = {}
    for claim in live:
        of_consumer.setdefault(claim.consumer, []).append(claim)
    ways: dict[str, list[Claim]] = {}
    outcomes: dict[str, RequestOutcome] = {}
    seen: set[tuple[str, str]] = set()
    left_groups: set[str | None] = set()
    for request in requests:
        giving_way: dict[str, list[Claim]] = {}
        keys = set()
        rejected: RequestOutcome | None = None
        for claim_id, consumer, purpose in _wanted_claims(request):
            keys.add((consumer, 'move' if purpose.is_move else purpose.value))
            existing = of_consumer.get(consumer, ())
            # The reservation that is taken over may be this consumer's already.
            rivals = [
                other for other in existing if is_rival(other, purpose) and other.id != claim_id
            ]
            if consumer in owners and is_foreign(owners[consumer], request.only_project):
                rejected = _unknown_consumer_outcome(request, consumer)
            rejected = _rejection(request, existing, rivals) or rejected
            if rivals:
                giving_way[claim_id] = rivals
        lost = _add_replaced(request, of_consumer, giving_way, keys)
        if rejected is not None:
            outcomes[request.id] = rejected
        elif lost or keys & seen:
            outcomes[request.id] = _end(request, CommitStatus.DROPPED, lost)
            if request.group is not None:
                left_groups.add(request.group.uuid)  # what follows was planned beside it
        elif (
            request.group is not None
            and request.group.is_guarded
            and request.group.uuid in left_groups
        ):
            outcomes[request.id] = _end(request, CommitStatus.GROUP_CHANGED)
        else:
            seen |= keys
            ways.update(giving_way)
            left_groups.update(claim.group for rivals in giving_way.values() for claim in rivals)
    return ways, outcomes


def _add_replaced(
    request: RequestDraft,
    of_consumer: Mapping[str, Sequence[Claim]],
    giving_way: dict[str, list[Claim]],
    keys: set[tuple[str, str]],
) -> str:
    """Add the reservations that a request replaces to the claims that its first claim releases.

    A reservation that its own consumer has under an older request is released with that, and for
    good: back in the plan, a create could take it, and be the same member.

    :param keys: (consumer, purpose) of the request's claims, which no other request of the batch
        may have; those of the reservations are added
    :returns: why one of them cannot be replaced, or ''
    """
    leaving = {claim.id for rivals in giving_way.values() for claim in rivals}
    for reservation in request.replaced_reservations:
        keys.add((reservation.consumer, Purpose.CREATE.value))
        free = [
            claim
            for claim in of_consumer.get(reservation.consumer, ())
            if claim.id == reservation.claim_id
        ]
        if free:
            giving_way.setdefault(request.claims.ids[0], []).extend(free)
        elif reservation.claim_id in leaving:
            for rivals in giving_way.values():
                rivals[:] = [
                    released_from_plan(claim, claim.updated_at)
                    if claim.id == reservation.claim_id
                    else claim
                    for claim in rivals
                ]
        else:
            return f'the place of {reservation.member_name!r} of group {reservation.group} is gone'
    return ''


def _wanted_claims(request: RequestDraft) -> Iterator[tuple[str, str, Purpose]]:
    """Yield id, consumer and purpose of each claim that a request creates or takes over."""
    claims = request.claims
    for claim_id, consumer, kind in zip(claims.ids, claims.consumers, claims.kind, strict=True):
        yield claim_id, consumer, claims.kinds[kind].claim.purpose
    for reservation in request.taken_reservations:
        yield reservation.claim_id, reservation.consumer, Purpose.CREATE


def requests_with_changed_group(
    batch: Iterable[RequestDraft], ended: Container[str], rules: Mapping[str, GroupRule]
) -> set[str]:
    """Return the requests that end because of their group.

    They were planned under another rule or on another generation of it, or beside a
    member that an earlier request of the batch was to get and does not: changes that come in
    the middle of a batch bring a newer generation to a table on which such a member still
    is stored.  For a soft rule only the rule itself counts.

    :param batch: all of it, in the order in which it was planned
    :param ended: requests that have an outcome already
    :param rules: of the groups, read under their locks
    """
    void_groups: set[str] = set()
    changed: set[str] = set()
    for request in batch:
        preconditions = preconditions_of(request)
        if request.id in ended:
            void_groups.update(group.uuid for group in preconditions)
        elif any(
            (group.is_guarded and group.uuid in void_groups)
            or is_behind(group, rules.get(group.uuid))
            for group in preconditions
        ):
            void_groups.update(group.uuid for group in preconditions)
            changed.add(request.id)
    return changed


def is_foreign(project: str | None, only_project: str | None) -> bool:
    """Return whether a project is not the one that the caller may act for."""
    return only_project is not None and project != only_project


def _unknown_consumer_outcome(request: RequestDraft, consumer: str) -> RequestOutcome:
    return _end(request, CommitStatus.REJECTED, f'consumer {consumer!r} was not found')


def _rejection(
    request: RequestDraft, known: Iterable[Claim], rivals: Iterable[Claim]
) -> RequestOutcome | None:
    """Return the status that refuses a consumer with these claims; None: it may be placed."""
    for claim in known:
        if is_foreign(claim.project_id, request.only_project):
            return _unknown_consumer_outcome(request, claim.consumer)
    obstacle = next((claim for claim in rivals if not is_replaceable(claim)), None)
    if obstacle is None:
        return None
    reason = f'consumer {obstacle.consumer} has a place already'
    return _end(
        request, CommitStatus.REJECTED, reason, [f'host {obstacle.host}, claim {obstacle.id}']
    )


def _end(
    request: RequestDraft, result: CommitStatus, reason: str = '', places: Sequence[str] = ()
) -> RequestOutcome:
    return RequestOutcome(
        id=request.id, outcome=result, attempt=request.attempt, reason=reason, places=places
    )
