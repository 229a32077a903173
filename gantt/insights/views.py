# SPDX-License-Identifier: Apache-2.0
"""Views for operators, as types: HTTP, the command line and metrics share them.

Every key is always there, so that programs can rely on the form.  Times are given twice: as UTC
text, and as an age by the database's clock, so that a reader's own clock does not matter.
"""

import collections
import datetime
import enum
from typing import Any, Generic, TypeVar

import msgspec

from gantt.core.claims.claim import LOST_STATE, Claim
from gantt.core.messages.zone_step import ZoneExplanation
from gantt.core.placement.host_trace import HostStep
from gantt.core.records.decision import Contradiction, ZoneStep
from gantt.core.records.process import MemoryUse
from gantt.core.resources.host import HostKind

T = TypeVar('T')
V = TypeVar('V', bound=msgspec.Struct)


class HostCondition(enum.StrEnum):
    """Condition of a host: the first one that applies, in this order."""

    DISABLED = 'disabled'  # by an operator, or by the service itself
    OVER_COMMITTED = 'over_committed'
    NEW = 'new'  # registered, has not reported yet
    STALE = 'stale'  # has not reported lately enough
    UP = 'up'


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the views."""


class ResourceUse(View, frozen=True, kw_only=True):
    """One resource class of a host, side by side.

    :ivar cap: floor((total - reserved) * allocation_ratio): what may be promised
    :ivar claimed: sum of the live claims
    :ivar reserved_claims: the part of ``claimed`` that no compute has confirmed yet
    :ivar foreign: use by what runs outside any claim, as the host reports
    :ivar reported: use that the host's reports account for: confirmed claims and foreign use
    :ivar believed: use that schedulers count
    """

    resource_class: str
    total: int
    reserved: int
    allocation_ratio: float
    cap: int
    claimed: int
    reserved_claims: int
    foreign: int
    reported: int
    believed: int
    free: int


class HostSummary(View, frozen=True, kw_only=True):
    """A host in a list.

    :ivar reason: why it is disabled, else empty
    :ivar report_age_seconds: None: it never reported
    :ivar free: cap less use, by class; negative where over-committed
    :ivar claims: live claims on it
    """

    name: str
    node: str
    uuid: str
    condition: HostCondition
    reason: str
    disabled_by: str
    zone: str | None
    aggregates: list[str]
    report_age_seconds: float | None
    free: dict[str, int]
    cap: dict[str, int]
    claims: int


class ClaimView(View, frozen=True, kw_only=True):
    """A claim as it is shown.

    :ivar host: name of the host or pool that it is on
    :ivar kind: host | pool: what it is on
    :ivar resources: all its amounts, on all providers
    :ivar host_resources: the part of them on the host, or pool, itself
    :ivar lease_seconds: remaining lease of a reserved claim, else None
    :ivar member_name: of a planned group, the member that it is, or was, reserved for
    :ivar taken_over: a create has this reservation of a plan, and its host has not confirmed it yet
    :ivar child: name of the child zone that it is in, which does not name its host
    :ivar problem: why it cannot be read: then only what can is shown, and it can only be released
    """

    id: str
    request_id: str | None
    attempt: int
    member: int
    consumer: str
    consumer_type: str
    host: str
    state: str
    lifecycle: str
    purpose: str
    resources: dict[str, int]
    lease_seconds: float | None
    group: str | None
    move_id: str | None
    project_id: str | None
    user_id: str | None
    adopted: bool
    absences: int
    reason: str
    created_at: str
    updated_at: str
    age_seconds: float
    member_name: str | None = None
    taken_over: bool = False
    host_resources: dict[str, int] = {}
    child: str = ''
    problem: str = ''
    kind: str = HostKind.HOST.value


class RequestSummary(View, frozen=True, kw_only=True):
    """A request in a list.

    :ivar state: open | placed | cancelled
    :ivar claims: number of its claims, ended ones included
    :ivar age_seconds: since it last changed
    """

    request_id: str
    state: str
    attempt: int
    claims: int
    updated_at: str
    age_seconds: float


class UseBelow(View, frozen=True, kw_only=True):
    """One resource class of a provider below a host."""

    provider: str
    uuid: str
    resource_class: str
    cap: int
    used: int
    free: int


class HostDetail(View, frozen=True, kw_only=True):
    """A host with all details.

    :ivar inventories_by: source of its inventories: reports | api
    :ivar key: fingerprint of the key that its messages are signed with, None: it has no key
    :ivar differences: why believed, reported and claimed differ, a sentence each
    :ivar below: inventories of the providers below it, by name
    """

    host: HostSummary
    kind: str
    cell: str | None
    location: str
    build_topic: str
    epoch: int
    sequence: int
    full_sequence: int
    generation: int
    reporter: str
    key: str | None = None
    inventories_by: str = 'reports'
    service_disabled: str | None
    traits: list[str]
    hypervisor_type: str
    hypervisor_version: int
    numa_cells: int
    devices: int
    metrics: dict[str, float]
    use: list[ResourceUse]
    differences: list[str]
    claims: list[ClaimView]
    claims_truncated: bool
    below: list[UseBelow] = []


class ObstacleKind(enum.StrEnum):
    """Reason why a live claim is still there; reasons that need an operator come first."""

    RUNNING = 'running'  # a guest that nobody has begun to move
    ALLOCATED = 'allocated'  # written through the API, whose word alone ends it
    MOVING = 'moving'  # its consumer has a claim on another host as well
    IN_FLIGHT = 'in_flight'  # of a request whose guest the host has not confirmed yet


class ObstacleView(View, frozen=True, kw_only=True):
    """A live claim on a host that is being emptied.

    :ivar remedy: what the claim waits for, a sentence
    """

    kind: ObstacleKind
    claim: ClaimView
    remedy: str


class HostDrain(View, frozen=True, kw_only=True):
    """Progress of a host towards being empty.

    :ivar is_draining: an operator has disabled it: nothing new lands
    :ivar is_empty: it has no live claim
    :ivar remaining: kind of obstacle -> number of claims
    :ivar foreign: resource class -> use by what runs outside any claim, which no drain ends
    :ivar obstacles: a sample where there are more than are read
    """

    host: HostSummary
    is_draining: bool
    is_empty: bool
    claims: int
    remaining: dict[str, int]
    foreign: dict[str, int]
    obstacles: list[ObstacleView]
    obstacles_truncated: bool


class HistoryEntry(View, frozen=True, kw_only=True):
    """One thing that happened to a host.

    :ivar kind: registered | disabled | enabled | service | facts | key | renamed | removed |
        claimed | confirmed | released | expired | refused
    :ivar actor: operator who did it, where that is known
    :ivar claim_id: id of the claim that it is about, if any
    """

    kind: str
    message: str
    actor: str
    claim_id: str | None
    at: str
    age_seconds: float


class HostHistory(View, frozen=True, kw_only=True):
    """Recent events of a host, newest first.

    :ivar truncated: there are more events than requested
    """

    host: str
    entries: list[HistoryEntry]
    truncated: bool


class EventEntry(View, frozen=True, kw_only=True):
    """One thing that happened to a host; see ``HistoryEntry``."""

    host: str
    kind: str
    message: str
    actor: str
    claim_id: str | None
    at: str


class EventPage(View, frozen=True, kw_only=True):
    """Page of events since a cursor, oldest first.

    :ivar cursor: for a query of the events after these
    """

    events: list[EventEntry]
    cursor: str


class ClassUsage(View, frozen=True, kw_only=True):
    """One resource class over all hosts, what is nested below them and the pools they share."""

    resource_class: str
    cap: int
    claimed: int
    foreign: int
    free: int
    unit: str


class RefusalGroup(View, frozen=True, kw_only=True):
    """Refusals of one shape with the same cause, within the window.

    :ivar reason: reason of the latest refusal, as are age and decision
    """

    shape: str
    count: int
    outcome: str
    reason: str
    last_age_seconds: float
    decision_id: str


class Configuration(View, frozen=True, kw_only=True):
    """Filters, weighers and their options that workers decided with last.

    :ivar digest: digest as in the decisions
    :ivar workers: their names
    :ivar is_local: whether this API makes explanations and dry runs with it
    """

    digest: str
    workers: list[str]
    is_here: bool
    last_age_seconds: float


class ServiceView(View, frozen=True, kw_only=True):
    """A process of the site.

    :ivar kind: scheduler | planner | api | source; a source reports for hosts of others, and is
        known by these reports alone
    :ivar is_silent: its last sign of life is long ago: it was killed, hangs, or is cut off
    :ivar configuration: digest of the options that decide what is answered, without secrets;
        empty of a source
    :ivar differs: most others run with another configuration
    :ivar problem: why the options that were read again last were not taken over, else empty
    :ivar alarm: problem for operators, such as forged messages; else empty
    :ivar up_seconds: since its start; None: not known
    :ivar configured_seconds: since the options in force were read; None: not known
    :ivar seen_seconds: since its last sign of life
    :ivar memory: as of its last note; None: it keeps no host table, or is of release 1.0
    """

    name: str
    kind: str
    host: str
    version: str
    is_silent: bool
    configuration: str
    differs: bool
    problem: str
    alarm: str
    up_seconds: float | None
    configured_seconds: float | None
    seen_seconds: float
    memory: MemoryUse | None = None


class Status(View, frozen=True, kw_only=True):
    """The service at a glance.

    :ivar configurations: of the workers that decided lately, the most common one first
    :ivar site: name of this site for operators; empty where it has none
    :ivar claims: number of live claims here, on hosts and on pools
    :ivar no_valid_pool: number of the outcomes ``no_valid_host`` that are of requests for a pool
    :ivar refusals_truncated: more refusals than were read; the counts are lower bounds
    :ivar child_claims: number of live claims of this zone's requests in child zones
    :ivar unreadable: host whose record cannot be read -> why: nothing is placed there; the first
    """

    version: str
    hosts: dict[str, int]
    hosts_total: int
    claims: int
    table_age_seconds: float
    usage: list[ClassUsage]
    outcomes: dict[str, int]
    window_seconds: float
    refusals: list[RefusalGroup]
    refusals_truncated: bool
    configurations: list[Configuration] = []
    site: str = ''
    child_claims: int = 0
    unreadable: dict[str, str] = {}
    no_valid_pool: int = 0


class DecisionSummary(View, frozen=True, kw_only=True):
    """A decision in a list.

    :ivar origin: the id that its request has elsewhere, such as that of Nova's API
    :ivar kind: host | pool: of what was requested
    """

    id: str
    request_id: str
    outcome: str
    reason: str
    project_id: str | None
    worker: str
    created_at: str
    age_seconds: float
    origin: str | None = None
    kind: str = HostKind.HOST.value


class Step(View, frozen=True, kw_only=True):
    """One filter of a funnel."""

    filter: str
    removed: int
    remaining: int
    reason: str


class ScoreRow(View, frozen=True, kw_only=True):
    """A finalist; ``weighted`` follows the explanation's ``weighers``."""

    host: str
    total: float
    raw: list[float]
    normalized: list[float]
    weighted: list[float]
    chosen: bool


class HostScore(View, frozen=True, kw_only=True):
    """Score of a host that no filter removed, compared with the others, for one member.

    :ivar rank: 1 is the best; equal ones in the order of the table
    :ivar survivors: hosts that no filter removed
    """

    member: int
    rank: int
    survivors: int
    score: ScoreRow


class MemberExplanation(View, frozen=True, kw_only=True):
    """Explanation of one member of the request: its host, or the reason why it has none.

    :ivar level: 0: a perfect match; else the last of the steps of rules that were given up
    :ivar given_up: the rules that its host does not meet
    """

    member: int
    consumer: str
    host: str | None
    alternates: list[str]
    resources: dict[str, int]
    funnel: list[Step]
    survivors: int
    level: int
    given_up: list[str]
    scores: list[ScoreRow]


class Explanation(View, frozen=True, kw_only=True):
    """A decision, explained: structured, and as lines for people.

    :ivar count: number of consumers of the request
    :ivar spread: picked by the seed among so many best, because races were lost; 1: the best one
    :ivar oldest_report_age_seconds: of the finalists' reports, when this was decided; the table
        itself is as old as ``table_age_seconds`` of other answers says. Pools never report: where
        there was no other finalist it is the age of the table
    :ivar origin: the id that its request has elsewhere, such as that of Nova's API
    :ivar trace: id of W3C Trace Context, the same in all zones
    :ivar kind: host | pool: of what ``hosts`` are counted
    :ivar added: additions of pre-filters to the request, and why
    :ivar contradiction: rules that no host meets together; without any one of them some does
    :ivar zones: of a request over zones: the query to each zone, and its answer
    :ivar zones_explained: explanations of the child zones that have members of it, by name
    :ivar host_verdicts: of the requested host, a sentence per member
    :ivar host_filters: of that host, the result of every filter on its own
    :ivar host_filters_when: then | now: whether these are results on the host as it was decided
    :ivar host_scores: of that host, for each member that no filter removed it for; none where the
        table of then is gone
    """

    id: str
    request_id: str
    outcome: str
    reason: str
    shape: str
    count: int
    hosts: int
    weighers: list[str]
    seed: int
    spread: int
    table_seq: int
    oldest_report_age_seconds: float
    config_digest: str
    attempts: int
    conflicts: list[str]
    relaxed: list[str]
    added: list[str]
    nearest: list[str]
    contradiction: Contradiction | None
    worker: str
    project_id: str | None
    created_at: str
    age_seconds: float
    members: list[MemberExplanation]
    host_verdicts: list[str]
    host_filters: list[HostStep]
    host_filters_when: str
    host_scores: list[HostScore] = []
    lines: list[str]
    origin: str | None = None
    zones: list[ZoneStep] = []
    zones_explained: dict[str, ZoneExplanation] = {}
    trace: str | None = None
    kind: str = 'host'


class RoomView(View, frozen=True, kw_only=True):
    """Number of further members of a shape that fit somewhere."""

    name: str
    count: int


class RoomBelow(View, frozen=True, kw_only=True):
    """Number of further members of a shape that fit in a child zone.

    :ivar count: null: it has not answered, as ``problem`` says
    :ivar complete: whether all zones below it have answered
    """

    zone: str
    count: int | None
    hosts: int
    complete: bool
    problem: str


class Capacity(View, frozen=True, kw_only=True):
    """Number of further members of a shape that fit, their hosts, and what runs out first.

    :ivar count: on hosts of this zone; those of child zones are in ``below``
    :ivar eligible: hosts that pass every filter now
    :ivar runs_out: resource class -> hosts that it is the first to run out on
    :ivar uncounted: hosts with so many cells, cores or devices that it was not worked out how
        many guests can be laid out there; where there are any, counts are the most that may fit
    :ivar funnel: filters that removed the other hosts
    :ivar verdict: why none fits, empty where one does
    """

    shape: str
    resources: dict[str, int]
    count: int
    hosts: int
    eligible: int
    by_zone: list[RoomView]
    by_aggregate: list[RoomView]
    by_host: list[RoomView]
    by_host_truncated: bool
    runs_out: dict[str, int]
    uncounted: int
    funnel: list[Step]
    verdict: str
    nearest: list[str]
    table_age_seconds: float
    below: list[RoomBelow] = []


class Change(View, Generic[T], frozen=True, kw_only=True):
    """Effect of a write, or with ``dry_run`` the effect that it would have.

    :ivar now: the object afterwards, None where it was removed
    """

    dry_run: bool
    message: str
    now: T | None


def utc_text(seconds: float) -> str:
    """Return seconds since the epoch as UTC text, empty for 0."""
    if not seconds:
        return ''
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec='milliseconds').replace('+00:00', 'Z')


def age_seconds(now: float, then: float) -> float:
    """Return the seconds from a moment to now, never below 0: a database's clock may go back.

    :param now: the database's clock, as ``then``
    """
    return round(max(0.0, now - then), 3)


def view_of(view: type[V], source: Any, **others: Any) -> V:
    """Return a view with the fields of ``source`` of the same names, and the given ones."""
    names = [name for name in view.__struct_fields__ if name not in others]
    return view(**{name: getattr(source, name) for name in names}, **others)


def claim_view(claim: Claim, now: float, child: str = '', host: str | None = None) -> ClaimView:
    """Return the view of a claim.

    :param now: the database's clock
    :param child: name of the child zone that it is in; '': it is here
    :param host: name of the host or pool that it is on; None: as the claim has it
    """
    resources: collections.Counter[str] = collections.Counter()
    for amounts in claim.allocations.values():
        resources.update(amounts)
    leased = claim.state == 'reserved' and claim.lease_until > 0
    return view_of(
        ClaimView,
        claim,
        state=LOST_STATE if claim.is_lost else claim.state.value,
        lifecycle=claim.lifecycle.value,
        purpose=claim.purpose.value,
        host=claim.host if host is None else host,
        resources=dict(resources),
        host_resources=claim.allocations.get(claim.provider_id, {}),
        lease_seconds=round(claim.lease_until - now, 3) if leased else None,
        created_at=utc_text(claim.created_at),
        updated_at=utc_text(claim.updated_at),
        age_seconds=age_seconds(now, claim.created_at),
        taken_over=claim.is_taken,
        child=child,
        kind=(HostKind.HOST if claim.host or child else HostKind.POOL).value,
    )
