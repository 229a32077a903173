# SPDX-License-Identifier: Apache-2.0
"""Decisions: the chosen hosts, and the reason for every other host.

A Decision is recorded while deciding, never reconstructed.  ``verdicts`` has one
byte per host in the order of ``provider_ids``: k < len(filters) means that
filter k removed the host, ``CHOSEN_VERDICT`` that it was chosen, ``PASSED_VERDICT`` that it
survived.  The counts of ``removed`` add up: sum(removed) + survivors == hosts.
"""

import collections
import enum
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.claims.quota import Excess
from gantt.core.messages.build import Build
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.zone_step import ZoneStep


class OfferedReservation(msgspec.Struct, frozen=True, array_like=True):
    """A reservation of a plan that is free for a create.

    :ivar name: name of its member, such as ``web-2``
    :ivar claim_id: id of the claim that holds it
    :ivar allocations: provider id -> class -> amount
    :ivar layout: layout of that claim
    """

    name: str
    claim_id: str
    provider_id: int
    allocations: dict[int, dict[str, int]]
    layout: dict | None = None


class OfferedReservations(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reservations of a group's plan that were offered to a create.

    :ivar group: uuid of the group; ``revision`` of its plan
    :ivar named: the member that the create names; None: it matches the reservations' description
    :ivar planned: spec that the named member was planned with, if the create differs
    :ivar free: the reservations that it may have, one for each of its members
    :ivar why: '' or the reason why it gets none of them
    :ivar replaces: the reservations that are released for the create's reservations elsewhere
    :ivar note: '' or what a decision of filters and weighers says of the plan that a hint names
    """

    group: str
    revision: int
    named: str | None = None
    planned: RequestSpec | None = None
    free: list[OfferedReservation] = []
    why: str = ''
    replaces: list[OfferedReservation] = []
    note: str = ''

    @property
    def decides(self) -> bool:
        """True where the create gets these reservations or is refused: no host is evaluated."""
        return not (self.replaces or self.note)


#: Sources of the rules of a caller, and of the policies of a server group.
USER_SOURCE = 'user'
GROUP_SOURCE = 'group'
_RULE_SOURCES = (
    (re.compile(r' \(configuration, rule ([0-9]+)\)\Z'), 'rule {} of the configuration'),
    (re.compile(r' \(flavor rule:([^()]+)\)\Z'), 'rule {} of the flavor'),
    (re.compile(r' \(aggregate .*, rule:([^,()]+)\)\Z', re.DOTALL), 'rule {} of an aggregate'),
)
_OPERATOR_RULE = re.compile(
    "an operator's rule|the operator's rule [^()]+ of (the configuration|the flavor|an aggregate)"
)


def is_rule_of_user(shown: str) -> bool:
    """Return whether a rule, shown with its source, is a user's or a group's."""
    return shown.endswith((f' ({USER_SOURCE})', f' ({GROUP_SOURCE})'))


def plain_text(shown: str) -> str:
    """Return a rule for the caller, from its form for operators; converted texts stay."""
    if is_rule_of_user(shown) or _OPERATOR_RULE.fullmatch(shown):
        return shown
    for place, template in _RULE_SOURCES:
        matched = place.search(shown)
        if matched:
            return f"the operator's {template.format(matched[1])}"
    return "an operator's rule"


PASSED_VERDICT = 254
CHOSEN_VERDICT = 255


class Outcome(enum.StrEnum):
    """Outcome of a decision."""

    PLACED = 'placed'
    NO_VALID_HOST = 'no_valid_host'
    CONFLICT = 'conflict'
    BUSY = 'busy'
    EXPIRED = 'expired'
    UNKNOWN = 'unknown'  # hosts unknown, which is not "no room"
    CANCELLED = 'cancelled'
    REUSED = 'reused'
    REFUSED = 'refused'  # it requests what does not exist
    FAILED = 'failed'


class FilterCount(msgspec.Struct, frozen=True):
    """Result of one filter, in the order of execution.

    :ivar detail: numbers that help to read it, e.g. ``{"best": {"MEMORY_MB": 6348}}``
    """

    name: str
    removed: int
    reason: str  # e.g. "too little free MEMORY_MB (need 8 GiB, best has 6.2 GiB)"
    detail: dict = {}


class Score(msgspec.Struct, frozen=True):
    """Scores of a finalist; the three lists follow ``Decision.weighers``."""

    host: str
    provider_id: int
    total: float
    raw: list[float]
    normalized: list[float]
    weighted: list[float]


class ProviderAllocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Amounts from one provider for a group of resources of a request.

    A provider that serves several groups has one for each.

    :ivar group: suffix of the group; '': what is asked for without one
    """

    provider_id: int
    uuid: str
    name: str
    resources: dict[str, int]
    group: str = ''


class Selection(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A host for one member: chosen and claimed, or an unclaimed alternate.

    :ivar resources: all that the member gets, of whatever provider
    :ivar allocations: amounts by provider and group; empty where all of it is the host's own
    :ivar child: name of the child zone that has the host, whose own conductor decrypts
        ``sealed_host``: ``host``, ``node`` and ``uuid`` are empty then
    """

    host: str
    node: str
    uuid: str
    provider_id: int
    consumer: str
    claim_id: str | None = None  # None: an alternate, or a dry run
    cell: str | None = None
    zone: str | None = None
    build_topic: str = ''
    resources: dict[str, int] = {}
    layout: dict | None = None
    lease_seconds: float = 0.0
    allocations: list[ProviderAllocation] = []
    child: str = ''
    sealed_host: str = ''

    @property
    def host_resources(self) -> dict[str, int]:
        """Amounts of the host itself, without nested providers and shared pools."""
        if not self.allocations:
            return self.resources
        host_amounts: collections.Counter[str] = collections.Counter()
        for allocation in self.allocations:
            if allocation.provider_id == self.provider_id:
                host_amounts.update(allocation.resources)
        return dict(host_amounts)

    def build(self, request_id: str | None = None) -> Build:
        """Return the message by which the agent of the host starts the guest.

        :raises InvalidMessage: nothing is claimed: it is an alternate, of a dry run, or of a child
        """
        if not self.claim_id or self.child:
            raise exceptions.invalid('selection', 'expected a claim on a host of this zone')
        return Build(
            claim_id=self.claim_id,
            consumer=self.consumer,
            host=self.host,
            resources=self.host_resources,
            lease_seconds=self.lease_seconds,
            layout=self.layout,
            request_id=request_id,
        )


class Contradiction(msgspec.Struct, frozen=True):
    """Rules that no host meets together; without any one of them that would not be so.

    :ivar says: which hosts do not meet them
    :ivar rules: each with its source, as operators see them
    """

    says: str
    rules: list[str]

    @property
    def line(self) -> str:
        """Contradiction as a sentence for the caller."""
        return f'{self.says}: {"; ".join(map(plain_text, self.rules))}'


class MemberDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision for one member of a request.

    :ivar selection: None if no host fits
    :ivar level: 0: a perfect match; else the last of the steps that had to be given up
    :ivar given_up: the rules that the chosen host does not meet
    """

    member: int
    consumer: str
    selection: Selection | None
    alternates: list[Selection] = []
    filters: list[FilterCount] = []
    survivors: int = 0
    scores: list[Score] = []  # finalists, best first
    verdicts: bytes = b''
    level: int = 0
    given_up: list[str] = []


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of ``place()``, and the input of explain and replay.

    :ivar hosts: number of hosts evaluated
    :ivar cause: reason of a refusal, without numbers: refusals with equal causes are alike; '' if
        a host was found
    :ivar silent: some of the hosts that fit except that they have not reported lately
    :ivar spread: minimum number of best hosts picked among, after lost races; 1: none was lost
    :ivar provider_ids: host ids as packed int64, in the order of the verdicts
    :ivar age_seconds: maximum age of the host states used (promise P5)
    :ivar attempts: number of times that the request was planned, this one included
    :ivar attempt: of the request's row: claim ids derive from it
    :ivar held: consumer -> provider id -> class -> amount, of pools, that members of a move had
    :ivar planned: number of members to place; the last of ``members`` may have failed
    :ivar zones: of a request over zones: the query to each zone, and its answer
    :ivar places: of a create in a planned group: the places of the plan offered to it
    """

    id: str
    request_id: str
    outcome: Outcome
    hosts: int
    members: Sequence[MemberDecision]  # see core.records.members
    weighers: list[str] = []
    seed: int = 0
    spread: int = 1
    table_seq: int = 0
    age_seconds: float = 0.0
    config_digest: str = ''
    attempts: int = 1
    conflicts: list[str] = []
    relaxed: list[str] = []
    added: list[str] = []  # to the request, by pre-filters
    reason: str = ''  # the one-line verdict
    cause: str = ''
    nearest: list[str] = []
    silent: list[str] = []
    contradiction: Contradiction | None = None
    provider_ids: bytes = b''
    worker: str = ''
    created_at: float = 0.0
    project_id: str | None = None
    attempt: int = 1
    planned: int = 0
    held: dict[str, dict[int, dict[str, int]]] = {}
    zones: list[ZoneStep] = []
    places: OfferedReservations | None = None

    @property
    def is_placed(self) -> bool:
        return self.outcome is Outcome.PLACED


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer for the caller, which is also stored for a repeat of the request.

    :ivar excess: the limit of the project that it was refused for
    :ivar zones_not_queried: of an unknown: child zones that are not queried for such a request
    :ivar places: of a refusal: hosts and zones that it is about, see ``exceptions.refused``
    :ivar kind: of a refusal of a request for a pool: ``pool``
    """

    request_id: str
    decision_id: str
    outcome: Outcome
    selections: Sequence[list[Selection]] = []  # per consumer: the chosen, then alternates
    reason: str = ''
    retry_after_ms: int | None = None
    age_seconds: float = 0.0
    level: int = 0  # of the ladder of rules; 0: every member has a perfect match
    given_up: list[str] = []
    dry_run: bool = False
    excess: Excess | None = None
    zones_not_queried: list[str] = []
    places: list[str] = []
    kind: str = ''


class Answered(NamedTuple):
    """A request that was answered.

    :ivar seconds: from its arrival to its answer
    :ivar origin: its id in another service, such as Nova's API
    :ivar trace: trace id of W3C Trace Context
    """

    answer: Answer
    seconds: float
    origin: str | None = None
    trace: str | None = None


def unknown_request_reason(reason: str, zones: Sequence[str]) -> str:
    """Return the reason of a refusal, with the child zones that the caller may query.

    :param zones: child zones that may have room, and are not queried for such a request
    """
    zones_text = f'zone{"s" * (len(zones) > 1)} {", ".join(zones)}'
    return f'{reason}; zones below are not asked for such a request: ask {zones_text}'


def answer_for_caller(answer: Answer) -> Answer:
    """Return an answer for the caller: rules of operators by name or number only."""
    if not answer.given_up:
        return answer
    names = list(dict.fromkeys(map(plain_text, answer.given_up)))
    return msgspec.structs.replace(answer, given_up=names)


def _unknown_outcome_error(answer: Answer) -> exceptions.GanttError:
    reason, zones = answer.reason, answer.zones_not_queried
    if not zones:
        return exceptions.HostsUnknown(problem=reason)
    return exceptions.NotKnownHere(reason=reason, zones=zones, decision_id=answer.decision_id)


def error_of(answer: Answer) -> exceptions.GanttError | None:
    """Return the error for the caller if an answer is not a placement."""
    reason = answer.reason
    match answer.outcome:
        case Outcome.PLACED:
            return None
        case Outcome.NO_VALID_HOST:
            kind = {'kind': answer.kind} if answer.kind else {}
            return exceptions.NoValidHost(reason=reason, decision_id=answer.decision_id, **kind)
        case Outcome.CONFLICT:
            return exceptions.Conflict(reason, request_id=answer.request_id)
        case Outcome.BUSY:
            return exceptions.Busy(reason=reason, retry_after_ms=answer.retry_after_ms or 1000)
        case Outcome.EXPIRED:
            return exceptions.Expired(reason, request_id=answer.request_id)
        case Outcome.CANCELLED:
            return exceptions.RequestCancelled(request_id=answer.request_id)
        case Outcome.REUSED:
            return exceptions.RequestIdReused(request_id=answer.request_id)
        case Outcome.REFUSED:
            refusal = exceptions.refused(reason, answer.places, request_id=answer.request_id)
            return refusal if answer.excess is None else answer.excess.error()
        case Outcome.UNKNOWN:
            return _unknown_outcome_error(answer)
    return exceptions.Unavailable(reason, request_id=answer.request_id)
