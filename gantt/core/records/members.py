# SPDX-License-Identifier: Apache-2.0
"""The members of a decision as columns: the picks of each evaluation of the hosts, with scores.

Equal members are evaluated once: their picks, their finalists and the lines of the score table
are columns from the ranking to the stored record.  The ``MemberDecision`` of a member is created
from them when it is read, and equals the one of a separate evaluation.
"""

import operator
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Annotated, Any, NamedTuple, overload

import msgspec
import numpy as np

from gantt.core.claims.claim import claim_ids
from gantt.core.records.decision import (
    CHOSEN,
    PASSED,
    Answer,
    Decision,
    FilterCount,
    MemberDecision,
    ProviderAllocation,
    Score,
    Selection,
)

#: Upper bound of verdict bytes shown of a decision; members beyond it have none.
VERDICT_BYTES_MAX = 1 << 22

_replace = msgspec.structs.replace


class LookResult:
    """An evaluation of the hosts, and the members that were placed by it.

    :ivar filters: number of hosts that each filter removed
    :ivar survivors: number of hosts that passed all filters
    :ivar verdicts: a byte for each host, ``PASSED`` for each survivor
    :ivar used: positions of the weighers that have a preference
    :ivar line_rows: rows of the hosts, by line of the score table
    :ivar lines: the total, then raw value, share and weight by each weigher with a preference
    :ivar members: numbers of the members; ``rows``: of the hosts that they were placed on
    :ivar claim_ids: ids of their claims, of members that were just placed, and of those that took
        over places of a plan
    :ivar finalists: numbers of lines, the same count for each member, best first
    :ivar layout: layout of the only member, if it has one
    :ivar allocations: allocations of each member by provider, empty if all are on its host; no
        entries if no pool has a requested class
    :ivar level: level of the rules that its host does not meet; ``given_up``: these rules
    """

    __slots__ = (
        *('allocations', 'claim_ids', 'filters', 'finalists', 'given_up', 'layout', 'level'),
        *('line_rows', 'lines', 'members', 'rows', 'survivors', 'used', 'verdicts'),
    )

    def __init__(
        self, filters: list[FilterCount], survivors: int, verdicts: np.ndarray, used: list[int]
    ) -> None:
        self.filters = filters
        self.survivors = survivors
        self.verdicts = verdicts
        self.used = used
        self.line_rows: list[int] = []
        self.lines: list[float] = []
        self.members: list[int] = []
        self.rows: list[int] = []
        self.claim_ids: list[str] = []
        self.finalists: list[int] = []
        self.layout: dict[str, Any] | None = None
        self.allocations: list[list[ProviderAllocation]] = []
        self.level = 0
        self.given_up: list[str] = []


class Place(NamedTuple):
    """A member and the host that it was placed on.

    :ivar host: without the member's own fields
    :ivar claim_id: None: nothing is claimed for it
    :ivar row: row of the host in the table; -1: not known any more
    """

    member: int
    consumer: str
    host: Selection
    claim_id: str | None
    layout: dict[str, Any] | None
    row: int
    allocations: Sequence[ProviderAllocation] = ()

    def selected(self, **of_claim: Any) -> Selection:
        """Return the selection of the member: its host, with its allocations and layout."""
        parts = list(self.allocations)
        total = total_of(parts) or self.host.resources
        return _replace(
            self.host,
            consumer=self.consumer,
            layout=self.layout,
            resources=self.host.resources if total == self.host.resources else total,
            allocations=parts if len(parts) > 1 else [],
            **of_claim,
        )

    def amounts(self, resources: dict[str, int]) -> dict[int, dict[str, int]]:
        """Return provider id -> class -> amount; the host is always included.

        :param resources: total amounts of the member
        """
        by_provider: dict[int, dict[str, int]] = {self.host.provider_id: {}}
        if not self.allocations:
            return {self.host.provider_id: resources}
        for part in self.allocations:
            of_provider = by_provider.setdefault(part.provider_id, {})
            for name, amount in part.resources.items():
                of_provider[name] = of_provider.get(name, 0) + amount
        return by_provider


class Finalist(NamedTuple):
    """A candidate host of a member, as it was when the member was placed.

    :ivar used: positions of the weighers that had a preference
    :ivar raw: their raw values for the host, in that order
    :ivar level: level of the picked host in the ladder of rules
    """

    row: int
    used: Sequence[int]
    raw: Sequence[float]
    level: int


def total_of(parts: Iterable[ProviderAllocation]) -> dict[str, int]:
    """Return class -> amount, over all providers."""
    amounts: dict[str, int] = {}
    for part in parts:
        for name, amount in part.resources.items():
            amounts[name] = amounts.get(name, 0) + amount
    return amounts


class MemberColumns(Sequence[MemberDecision]):
    """The members of a decision as a sequence whose items are created when they are read.

    :ivar looks: evaluations in order; each has at least one member
    :ivar failed: the member for which no host was found
    :ivar places: row -> host, of all picks and alternates
    :ivar hosts: row -> (name, id), of all lines of the score table
    :ivar alternates: row of a pick -> rows
    :ivar weighers: number of weighers
    :ivar claims: whether claims are created for them
    :ivar goes_on: whether the first member equals the last one of another request
    :ivar is_withdrawn: the request was not placed: selections of members are not shown
    :ivar takes_over: their claims are places of a plan, whose ids do not derive from the request
    """

    def __init__(
        self, request_id: str, attempt: int, consumers: Sequence[str], weighers: int, claims: bool
    ) -> None:
        self.request_id = request_id
        self.attempt = attempt
        self.consumers = consumers
        self.weighers = weighers
        self.claims = claims
        self.looks: list[LookResult] = []
        self.failed: MemberDecision | None = None
        self.places: dict[int, Selection] = {}
        self.hosts: dict[int, tuple[str, int]] = {}
        self.alternates: dict[int, list[int]] = {}
        self.goes_on = self.is_withdrawn = self.takes_over = False

    # -- as a sequence ---------------------------------------------------------------
    def __len__(self) -> int:
        return sum(len(look.members) for look in self.looks) + (self.failed is not None)

    @overload
    def __getitem__(self, index: int) -> MemberDecision: ...
    @overload
    def __getitem__(self, index: slice) -> list[MemberDecision]: ...
    def __getitem__(self, index: int | slice) -> MemberDecision | list[MemberDecision]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        at = position
        for look in self.looks:
            if at < len(look.members):
                return self._made(look, at, position)
            at -= len(look.members)
        assert self.failed is not None, 'the last one'
        return self.failed

    def __iter__(self) -> Iterator[MemberDecision]:
        position = 0
        for look in self.looks:
            for index in range(len(look.members)):
                yield self._made(look, index, position)
                position += 1
        if self.failed is not None:
            yield self.failed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return repr(list(self))

    # -- without making items ------------------------------------------------------------
    def placed(self) -> Iterator[Place]:
        """Yield the members that have a place."""
        if self.is_withdrawn:
            return
        for look in self.looks:
            ids: Sequence[str | None] = [None] * len(look.members)
            if self.claims:
                ids = look.claim_ids or claim_ids(self.request_id, self.attempt, look.members)
            columns = zip(
                look.members, look.rows, ids, look.allocations or repeat(()), strict=False
            )
            for member, row, claim_id, allocations in columns:
                host = self.places[row]
                consumer = self.consumers[member]
                yield Place(member, consumer, host, claim_id, look.layout, row, allocations)

    def alternates_of(self, row: int, consumer: str) -> list[Selection]:
        """Return the alternates of a member that was placed on a row."""
        if self.is_withdrawn:
            return []
        rows = self.alternates.get(row, ())
        return [_replace(self.places[other], consumer=consumer) for other in rows]

    def finalists(self) -> Iterator[list[Finalist]]:
        """Yield by placed member its host, then its other candidates."""
        for look in self.looks:
            width, size = 1 + 3 * len(look.used), len(look.finalists) // len(look.members)
            for index, pick in enumerate(look.rows):
                lines = look.finalists[index * size : (index + 1) * size]
                best = [line for line in lines if look.line_rows[line] == pick]
                others = [line for line in lines if look.line_rows[line] != pick]
                yield [
                    Finalist(
                        look.line_rows[line],
                        look.used,
                        look.lines[line * width + 1 : (line + 1) * width : 3],
                        look.level,
                    )
                    for line in (*best, *others)
                ] or [Finalist(pick, [], [], look.level)]  # a place of a plan is not weighed

    # -- inside ------------------------------------------------------------------------
    def _made(self, look: LookResult, at: int, position: int) -> MemberDecision:
        member, row = look.members[at], look.rows[at]
        consumer, size = self.consumers[member], len(look.verdicts)
        width = len(look.finalists) // len(look.members)
        selection = None
        if not self.is_withdrawn:
            claim_id = None
            if self.claims:
                claim_id = self._claim_id(look, at)
            parts = look.allocations[at] if look.allocations else ()
            place_fields = (look.layout, row, parts)
            selection = Place(member, consumer, self.places[row], claim_id, *place_fields).selected(
                claim_id=claim_id
            )
        verdicts = b''
        # Verdicts of the first members are enough for a request of many members.
        if not position or (position + 1) * size <= VERDICT_BYTES_MAX:
            bytes_ = look.verdicts.copy()
            bytes_[row] = PASSED if self.is_withdrawn else CHOSEN
            verdicts = bytes_.tobytes()
        return MemberDecision(
            member=member,
            consumer=consumer,
            selection=selection,
            alternates=self.alternates_of(row, consumer),
            filters=look.filters,
            survivors=look.survivors,
            scores=[
                self._score(look, line) for line in look.finalists[at * width : (at + 1) * width]
            ],
            verdicts=verdicts,
            level=0 if self.is_withdrawn else look.level,
            given_up=[] if self.is_withdrawn else look.given_up,
        )

    def _claim_id(self, look: LookResult, at: int) -> str:
        if self.takes_over:
            return look.claim_ids[at]
        (derived,) = claim_ids(self.request_id, self.attempt, [look.members[at]])
        return derived

    def _score(self, look: LookResult, line: int) -> Score:
        width = 1 + 3 * len(look.used)
        total, *values = look.lines[line * width : (line + 1) * width]
        columns = [[0.0] * self.weighers for _ in range(3)]
        for i, place in enumerate(look.used):
            for column, value in zip(columns, values[3 * i : 3 * i + 3], strict=True):
                column[place] = value
        return Score(*self.hosts[look.line_rows[line]], total, *columns)


def placed_of(decision: Decision) -> Iterator[Place]:
    """Yield the members of a decision that have a place, for either form of members."""
    members = decision.members
    if isinstance(members, MemberColumns):
        yield from members.placed()
        return
    for member in members:
        if member.selection is not None:
            host = member.selection
            yield Place(
                member.member,
                member.consumer,
                host,
                host.claim_id,
                host.layout,
                -1,
                host.allocations,
            )


# -- answered -----------------------------------------------------------------------------
class AnswerHost(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A host of an answer: the common fields of its Selections.

    A host that gives members different amounts, or amounts of pools, has an entry for each.

    :ivar child: as ``place``, see ``Selection``; a place in a child zone has no other fields
    """

    host: str
    node: str
    uuid: str
    provider_id: int
    cell: str | None = None
    zone: str | None = None
    build_topic: str = ''
    resources: dict[str, int] = {}
    allocations: list[ProviderAllocation] = []
    child: str = ''
    place: str = ''


class AnswerMember(msgspec.Struct, frozen=True, array_like=True):
    """Member of an answer, for one consumer; on the wire a list in this order.

    :ivar hosts: indices in the list of hosts: the chosen one, then alternates
    :ivar claim_id: of the chosen host, as all following fields
    """

    consumer: str
    hosts: list[Annotated[int, msgspec.Meta(ge=0)]]
    claim_id: str | None = None
    lease_seconds: float = 0.0
    layout: dict[str, Any] | None = None


class AnswerByHosts(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """An answer as it is sent over RPC: each host once, and no ``selections``.

    :ivar members: by consumer, as ``selections`` are
    """

    hosts: list[AnswerHost] = []
    members: list[AnswerMember] = []


class SelectionColumns(Sequence[list[Selection]]):
    """The selections of an answer: each host is stored once, and members refer to it.

    The lists are created from the columns when they are read; the columns themselves are sent
    over RPC.

    :ivar hosts: of all members, chosen and alternates
    :ivar members: by consumer
    """

    __slots__ = ('_made', 'hosts', 'members')

    def __init__(self, hosts: list[AnswerHost], members: list[AnswerMember]) -> None:
        self.hosts = hosts
        self.members = members
        self._made: list[list[Selection]] | None = None

    @classmethod
    def of(cls, members: MemberColumns, lease: float, *, claims: bool) -> 'SelectionColumns':
        """Create the selections of the members that were placed, sorted by member number.

        :param lease: seconds, of claims
        """
        index_of_row = {row: i for i, row in enumerate(members.places)}
        of_row = {
            row: [
                index_of_row[row],
                *map(index_of_row.__getitem__, members.alternates.get(row, ())),
            ]
            for row in {row for look in members.looks for row in look.rows}
        }
        answer_members = [
            AnswerMember(
                place.consumer,
                of_row[place.row],
                place.claim_id if claims else None,
                lease if claims and place.claim_id is not None else 0.0,
                place.layout,
            )
            for place in sorted(members.placed(), key=operator.attrgetter('member'))
        ]
        return cls([_host(host) for host in members.places.values()], answer_members)

    @classmethod
    def of_lists(cls, lists: Sequence[list[Selection]]) -> 'SelectionColumns':
        """Create the columns from lists of selections, as an answer has them."""
        hosts: list[AnswerHost] = []
        places: dict[tuple[int, str], int] = {}
        members = []
        for selections in lists:
            host_indices = []
            for selection in selections:
                key = selection.provider_id, selection.place
                index = places.get(key)
                if index is None or not _is_of(selection, hosts[index]):
                    index = places[key] = len(hosts)
                    hosts.append(_host(selection))
                host_indices.append(index)
            first = selections[0]
            chosen = (first.claim_id, first.lease_seconds, first.layout)
            members.append(AnswerMember(first.consumer, host_indices, *chosen))
        return cls(hosts, members)

    def __len__(self) -> int:
        return len(self.members)

    @overload
    def __getitem__(self, index: int) -> list[Selection]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[Selection]]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._all()[index]

    def __iter__(self) -> Iterator[list[Selection]]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # of lists

    def __repr__(self) -> str:
        return repr(self._all())

    def _all(self) -> list[list[Selection]]:
        """Return the lists of selections.

        :raises IndexError: a member refers to a missing host
        """
        if self._made is None:
            self._made = [_selections(member, self.hosts) for member in self.members]
        return self._made


def selections_of(
    members: MemberColumns, lease: float, *, claims: bool
) -> Sequence[list[Selection]]:
    """Return the selections of placed members by number: the chosen hosts, then alternates.

    :param lease: seconds, of claims
    """
    if not any(map(any, (look.allocations for look in members.looks))) and not any(
        place.allocations for place in members.places.values()
    ):
        return SelectionColumns.of(members, lease, claims=claims)
    selections: list[list[Selection]] = []
    for member in sorted(members.placed(), key=operator.attrgetter('member')):
        claim_id = member.claim_id if claims else None
        chosen = member.selected(
            claim_id=claim_id, lease_seconds=lease if claim_id is not None else 0.0
        )
        selections.append([chosen, *members.alternates_of(member.row, member.consumer)])
    return selections


def answer_of(decision: Decision, lease: float, *, claims: bool, dry_run: bool = False) -> Answer:
    """Return the answer to a request whose members were placed by one decision.

    :param lease: seconds, of its claims
    """
    members = decision.members
    assert isinstance(members, MemberColumns), 'decisions are made as columns'
    gave_way = sorted((min(look.members), look) for look in members.looks if look.given_up)
    return Answer(
        request_id=decision.request_id,
        decision_id=decision.id,
        outcome=decision.outcome,
        selections=selections_of(members, lease, claims=claims),
        reason=decision.reason,
        age_seconds=round(decision.age_seconds, 3),
        level=max((look.level for _, look in gave_way), default=0),
        given_up=list(dict.fromkeys(rule for _, look in gave_way for rule in look.given_up)),
        dry_run=dry_run,
    )


class AnswerReference(msgspec.Struct, frozen=True, array_like=True):
    """A reference that is stored in place of an answer that follows from a decision.

    :ivar lease_seconds: of its claims
    """

    decision_id: str
    lease_seconds: float


_encode = msgspec.msgpack.Encoder().encode
_answer = msgspec.msgpack.Decoder(Answer).decode
_reference = msgspec.msgpack.Decoder(AnswerReference).decode
#: The msgpack prefix of a list of two; answers are maps.
_OF_TWO = b'\x92'
#: Prefix of the answer about a planned group, which msgpack never emits.
GROUP_ANSWER = b'\xc1group'


def pack(answer: Answer | AnswerReference) -> bytes:
    """Return an answer, or a reference to it, as it is stored with its request."""
    return _encode(answer if isinstance(answer, AnswerReference) else plain(answer))


def unpack(stored: bytes) -> Answer | AnswerReference:
    """Return the stored answer or reference; for a planned group, an empty reference."""
    if stored.startswith(GROUP_ANSWER):
        return AnswerReference('', 0.0)
    return _reference(stored) if stored.startswith(_OF_TWO) else _answer(stored)


def plain(answer: Answer) -> Answer:
    """Return an answer that can be encoded: its selections in lists."""
    selections = answer.selections
    if not isinstance(selections, SelectionColumns):
        return answer
    return _replace(answer, selections=list(selections))


def by_hosts(answer: Answer) -> AnswerByHosts:
    """Return an answer in which each host is stored once."""
    selections = answer.selections
    columns = (
        selections
        if isinstance(selections, SelectionColumns)
        else SelectionColumns.of_lists(selections)
    )
    return AnswerByHosts(**_rest(answer), hosts=columns.hosts, members=columns.members)


def in_lists(answer: AnswerByHosts) -> Answer:
    """Return an answer with a list of selections for each member.

    :raises IndexError: a member refers to a missing host
    """
    return Answer(**_rest(answer), selections=list(SelectionColumns(answer.hosts, answer.members)))


_REST = tuple(name for name in Answer.__struct_fields__ if name != 'selections')


def _rest(answer: Answer) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in _REST}


_OF_HOST = AnswerHost.__struct_fields__
_of_host = operator.attrgetter(*_OF_HOST)


def _host(selection: Selection) -> AnswerHost:
    return AnswerHost(**dict(zip(_OF_HOST, _of_host(selection), strict=True)))


def _is_of(selection: Selection, host: AnswerHost) -> bool:
    """Return whether a selection has the same host fields."""
    return bool(_of_host(selection) == _of_host(host))


def _selections(member: AnswerMember, hosts: list[AnswerHost]) -> list[Selection]:
    selections = []
    claim_id, lease_seconds, layout = member.claim_id, member.lease_seconds, member.layout
    for place in member.hosts:
        host = hosts[place]
        selections.append(
            Selection(
                host=host.host,
                node=host.node,
                uuid=host.uuid,
                provider_id=host.provider_id,
                consumer=member.consumer,
                claim_id=claim_id,
                cell=host.cell,
                zone=host.zone,
                build_topic=host.build_topic,
                resources=host.resources,
                layout=layout,
                lease_seconds=lease_seconds,
                allocations=host.allocations,
                child=host.child,
                place=host.place,
            )
        )
        claim_id, lease_seconds, layout = None, 0.0, None
    return selections
