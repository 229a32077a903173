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
    CHOSEN_VERDICT,
    PASSED_VERDICT,
    Answer,
    Decision,
    FilterCount,
    MemberDecision,
    ProviderAllocation,
    Score,
    Selection,
)
from gantt.core.resources.amounts import add_allocations, add_amounts

#: Upper bound of verdict bytes shown of a decision; members beyond it have none.
VERDICT_BYTES_MAX = 1 << 22

_replace = msgspec.structs.replace


class MemberEvaluation(msgspec.Struct, eq=False):
    """An evaluation of the hosts, and the members that were placed by it.

    :ivar filters: number of hosts that each filter removed
    :ivar survivors: number of hosts that passed all filters
    :ivar verdicts: a byte for each host, ``PASSED_VERDICT`` for each survivor
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

    filters: list[FilterCount]
    survivors: int
    verdicts: np.ndarray
    used: list[int]
    line_rows: list[int] = []
    lines: list[float] = []
    members: list[int] = []
    rows: list[int] = []
    claim_ids: list[str] = []
    finalists: list[int] = []
    layout: dict[str, Any] | None = None
    allocations: list[list[ProviderAllocation]] = []
    level: int = 0
    given_up: list[str] = []


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
        if not self.allocations:
            return {self.host.provider_id: resources}
        by_provider: dict[int, dict[str, int]] = {self.host.provider_id: {}}
        add_allocations(
            by_provider, ((part.provider_id, part.resources) for part in self.allocations)
        )
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
    total: dict[str, int] = {}
    for part in parts:
        add_amounts(total, part.resources)
    return total


class MemberColumns(Sequence[MemberDecision]):
    """The members of a decision as a sequence whose items are created when they are read.

    :ivar evaluations: evaluations in order; each has at least one member
    :ivar failed: the member for which no host was found
    :ivar places: row -> host, of all picks and alternates
    :ivar hosts: row -> (name, id), of all lines of the score table
    :ivar alternates: row of a pick -> rows
    :ivar weighers: number of weighers
    :ivar claims: whether claims are created for them
    :ivar goes_on: whether the first member equals the last one of another request
    :ivar is_withdrawn: the request was not placed and all picks were removed: selections of members
        are not shown
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
        self.evaluations: list[MemberEvaluation] = []
        self.failed: MemberDecision | None = None
        self.places: dict[int, Selection] = {}
        self.hosts: dict[int, tuple[str, int]] = {}
        self.alternates: dict[int, list[int]] = {}
        self.goes_on = self.is_withdrawn = self.takes_over = False

    # -- as a sequence ---------------------------------------------------------------
    def __len__(self) -> int:
        return sum(len(evaluation.members) for evaluation in self.evaluations) + (
            self.failed is not None
        )

    @overload
    def __getitem__(self, index: int) -> MemberDecision: ...
    @overload
    def __getitem__(self, index: slice) -> list[MemberDecision]: ...
    def __getitem__(self, index: int | slice) -> MemberDecision | list[MemberDecision]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        at = position
        for evaluation in self.evaluations:
            if at < len(evaluation.members):
                return self._member_decision(evaluation, at, position)
            at -= len(evaluation.members)
        assert self.failed is not None, 'the last one'
        return self.failed

    def __iter__(self) -> Iterator[MemberDecision]:
        position = 0
        for evaluation in self.evaluations:
            for index in range(len(evaluation.members)):
                yield self._member_decision(evaluation, index, position)
                position += 1
        if self.failed is not None:
            yield self.failed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return repr(list(self))

    # -- without making items ------------------------------------------------------------
    def placed(self) -> list[Place]:
        """Return the members that have a place."""
        places: list[Place] = []
        if self.is_withdrawn:
            return places
        for evaluation in self.evaluations:
            ids: Sequence[str | None] = [None] * len(evaluation.members)
            if self.claims:
                ids = evaluation.claim_ids or claim_ids(
                    self.request_id, self.attempt, evaluation.members
                )
            columns = zip(
                evaluation.members,
                evaluation.rows,
                ids,
                evaluation.allocations or repeat(()),
                strict=False,
            )
            for member, row, claim_id, allocations in columns:
                host, consumer = self.places[row], self.consumers[member]
                places.append(
                    Place(member, consumer, host, claim_id, evaluation.layout, row, allocations)
                )
        return places

    def alternates_of(self, row: int, consumer: str) -> list[Selection]:
        """Return the alternates of a member that was placed on a row."""
        if self.is_withdrawn:
            return []
        rows = self.alternates.get(row, ())
        return [_replace(self.places[other], consumer=consumer) for other in rows]

    def finalists(self) -> Iterator[list[Finalist]]:
        """Yield by placed member its host, then its other candidates."""
        for evaluation in self.evaluations:
            width, size = (
                1 + 3 * len(evaluation.used),
                len(evaluation.finalists) // len(evaluation.members),
            )
            for index, pick in enumerate(evaluation.rows):
                lines = evaluation.finalists[index * size : (index + 1) * size]
                best = [line for line in lines if evaluation.line_rows[line] == pick]
                others = [line for line in lines if evaluation.line_rows[line] != pick]
                yield [
                    Finalist(
                        evaluation.line_rows[line],
                        evaluation.used,
                        evaluation.lines[line * width + 1 : (line + 1) * width : 3],
                        evaluation.level,
                    )
                    for line in (*best, *others)
                ] or [Finalist(pick, [], [], evaluation.level)]  # a place of a plan is not weighed

    # -- inside ------------------------------------------------------------------------
    def _member_decision(
        self, evaluation: MemberEvaluation, at: int, position: int
    ) -> MemberDecision:
        member, row = evaluation.members[at], evaluation.rows[at]
        consumer, size = self.consumers[member], len(evaluation.verdicts)
        width = len(evaluation.finalists) // len(evaluation.members)
        selection = None
        if not self.is_withdrawn:
            claim_id = None
            if self.claims:
                claim_id = self._claim_id(evaluation, at)
            parts = evaluation.allocations[at] if evaluation.allocations else ()
            place_fields = (evaluation.layout, row, parts)
            selection = Place(member, consumer, self.places[row], claim_id, *place_fields).selected(
                claim_id=claim_id
            )
        verdicts = b''
        # Verdicts of the first members are enough for a request of many members.
        if not position or (position + 1) * size <= VERDICT_BYTES_MAX:
            bytes_ = evaluation.verdicts.copy()
            bytes_[row] = PASSED_VERDICT if self.is_withdrawn else CHOSEN_VERDICT
            verdicts = bytes_.tobytes()
        return MemberDecision(
            member=member,
            consumer=consumer,
            selection=selection,
            alternates=self.alternates_of(row, consumer),
            filters=evaluation.filters,
            survivors=evaluation.survivors,
            scores=[
                self._score(evaluation, line)
                for line in evaluation.finalists[at * width : (at + 1) * width]
            ],
            verdicts=verdicts,
            level=0 if self.is_withdrawn else evaluation.level,
            given_up=[] if self.is_withdrawn else evaluation.given_up,
        )

    def _claim_id(self, evaluation: MemberEvaluation, at: int) -> str:
        if self.takes_over:
            return evaluation.claim_ids[at]
        (derived,) = claim_ids(self.request_id, self.attempt, [evaluation.members[at]])
        return derived

    def _score(self, evaluation: MemberEvaluation, line: int) -> Score:
        width = 1 + 3 * len(evaluation.used)
        total, *values = evaluation.lines[line * width : (line + 1) * width]
        columns = [[0.0] * self.weighers for _ in range(3)]
        for i, place in enumerate(evaluation.used):
            for column, value in zip(columns, values[3 * i : 3 * i + 3], strict=True):
                column[place] = value
        return Score(*self.hosts[evaluation.line_rows[line]], total, *columns)


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
class AnswerHost(msgspec.Struct, frozen=True, omit_defaults=True):
    """A host of an answer: the common fields of its Selections.

    A host that gives members different amounts, or amounts of pools, has an entry for each.

    :ivar child: as ``sealed_host``, see ``Selection``; a place in a child zone has no other fields
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
    sealed_host: str = ''


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

    :ivar members: members by consumer, as ``selections`` are
    """

    hosts: list[AnswerHost] = []
    members: list[AnswerMember] = []


class SelectionColumns(Sequence[list[Selection]]):
    """The selections of an answer: each host is stored once, and members refer to it.

    The lists are created from the columns when they are read; the columns themselves are sent
    over RPC.

    :ivar hosts: hosts of all members, chosen and alternates, whatever they have of a member
    :ivar members: members by consumer
    """

    __slots__ = ('_selection_lists', 'hosts', 'members')

    def __init__(self, hosts: list[Selection], members: list[AnswerMember]) -> None:
        self.hosts = hosts
        self.members = members
        self._selection_lists: list[list[Selection]] | None = None

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
            for row in {row for evaluation in members.evaluations for row in evaluation.rows}
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
        return cls(list(members.places.values()), answer_members)

    @classmethod
    def of_lists(cls, lists: Sequence[list[Selection]]) -> 'SelectionColumns':
        """Create the columns from lists of selections, as an answer has them."""
        hosts: list[Selection] = []
        places: dict[tuple[int, str], int] = {}
        members = []
        for selections in lists:
            host_indices = []
            for selection in selections:
                key = selection.provider_id, selection.sealed_host
                index = places.get(key)
                if index is None or _host_fields(selection) != _host_fields(hosts[index]):
                    index = places[key] = len(hosts)
                    hosts.append(selection)
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
        return self._all_lists()[index]

    def __iter__(self) -> Iterator[list[Selection]]:
        return iter(self._all_lists())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # of lists

    def __repr__(self) -> str:
        return repr(self._all_lists())

    def _all_lists(self) -> list[list[Selection]]:
        """Return the lists of selections.

        :raises IndexError: a member refers to a missing host
        """
        if self._selection_lists is None:
            self._selection_lists = [
                _member_selections(member, self.hosts) for member in self.members
            ]
        return self._selection_lists


def selections_of(
    members: MemberColumns, lease: float, *, claims: bool
) -> Sequence[list[Selection]]:
    """Return the selections of placed members by number: the chosen hosts, then alternates.

    :param lease: seconds, of claims
    """
    if not any(
        map(any, (evaluation.allocations for evaluation in members.evaluations))
    ) and not any(place.allocations for place in members.places.values()):
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
    gave_way = sorted(
        (min(evaluation.members), evaluation)
        for evaluation in members.evaluations
        if evaluation.given_up
    )
    return Answer(
        request_id=decision.request_id,
        decision_id=decision.id,
        outcome=decision.outcome,
        selections=selections_of(members, lease, claims=claims),
        reason=decision.reason,
        age_seconds=round(decision.age_seconds, 3),
        level=max((evaluation.level for _, evaluation in gave_way), default=0),
        given_up=list(
            dict.fromkeys(rule for _, evaluation in gave_way for rule in evaluation.given_up)
        ),
        dry_run=dry_run,
    )


class AnswerReference(msgspec.Struct, frozen=True, array_like=True):
    """A reference that is stored in place of an answer that follows from a decision.

    :ivar lease_seconds: of its claims
    """

    decision_id: str
    lease_seconds: float


_encode = msgspec.msgpack.Encoder().encode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode
_decode_reference = msgspec.msgpack.Decoder(AnswerReference).decode
#: The msgpack prefix of a list of two; answers are maps.
_TWO_ITEM_LIST = b'\x92'
#: Prefix of the answer about a planned group, which msgpack never emits.
GROUP_ANSWER_PREFIX = b'\xc1group'


def pack(answer: Answer | AnswerReference) -> bytes:
    """Return an answer, or a reference to it, as it is stored with its request."""
    return _encode(answer if isinstance(answer, AnswerReference) else encodable_answer(answer))


def unpack(stored: bytes) -> Answer | AnswerReference:
    """Return the stored answer or reference; for a planned group, an empty reference."""
    if stored.startswith(GROUP_ANSWER_PREFIX):
        return AnswerReference('', 0.0)
    return (
        _decode_reference(stored) if stored.startswith(_TWO_ITEM_LIST) else _decode_answer(stored)
    )


class _ReplacedGuests(msgspec.Struct):
    """The part of a stored plan that audits read."""

    given_up: list[str] = []


_decode_replaced_guests = msgspec.msgpack.Decoder(_ReplacedGuests).decode


def replaced_guests(plan: bytes) -> frozenset[str]:
    """Return claims of guests that a stored plan of a group has replaced, and these guests."""
    if not plan.startswith(GROUP_ANSWER_PREFIX):
        return frozenset()
    return frozenset(_decode_replaced_guests(plan[len(GROUP_ANSWER_PREFIX) :]).given_up)


def encodable_answer(answer: Answer) -> Answer:
    """Return an answer that can be encoded: its selections in lists."""
    selections = answer.selections
    if not isinstance(selections, SelectionColumns):
        return answer
    return _replace(answer, selections=list(selections))


def chosen_hosts(answer: Answer) -> list[str]:
    """Return the name of the chosen host of each member."""
    selections = answer.selections
    if isinstance(selections, SelectionColumns):
        hosts = selections.hosts
        return [hosts[member.hosts[0]].host for member in selections.members]
    return [of_member[0].host for of_member in selections if of_member]


def answer_by_hosts(answer: Answer) -> AnswerByHosts:
    """Return an answer in which each host is stored once."""
    selections = answer.selections
    columns = (
        selections
        if isinstance(selections, SelectionColumns)
        else SelectionColumns.of_lists(selections)
    )
    hosts = [AnswerHost(*_host_fields(host)) for host in columns.hosts]
    return AnswerByHosts(**_fields_without_selections(answer), hosts=hosts, members=columns.members)


def answer_in_lists(answer: AnswerByHosts) -> Answer:
    """Return an answer with a list of selections for each member.

    :raises IndexError: a member refers to a missing host
    """
    hosts = [
        Selection(consumer='', **dict(zip(_HOST_FIELDS, _host_fields(host), strict=True)))
        for host in answer.hosts
    ]
    return Answer(
        **_fields_without_selections(answer),
        selections=list(SelectionColumns(hosts, answer.members)),
    )


_ANSWER_FIELDS = tuple(name for name in Answer.__struct_fields__ if name != 'selections')


def _fields_without_selections(answer: Answer) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in _ANSWER_FIELDS}


_HOST_FIELDS = AnswerHost.__struct_fields__
_host_fields = operator.attrgetter(*_HOST_FIELDS)


def _member_selections(member: AnswerMember, hosts: list[Selection]) -> list[Selection]:
    selections = []
    claim_id, lease_seconds, layout = member.claim_id, member.lease_seconds, member.layout
    for place in member.hosts:
        selections.append(
            _replace(
                hosts[place],
                consumer=member.consumer,
                claim_id=claim_id,
                layout=layout,
                lease_seconds=lease_seconds,
            )
        )
        claim_id, lease_seconds, layout = None, 0.0, None
    return selections
