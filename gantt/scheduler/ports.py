# SPDX-License-Identifier: Apache-2.0
"""The outside world as the service sees it: four small ports.

Each has a real and an in-memory implementation that pass ``tests/contract``.  Stores raise
``DatabaseUnavailable`` after their own bounded retries, ``Busy`` where another process keeps rows
locked that nothing can be done without; nothing else leaks out.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import msgspec

from gantt.core.claims.adoption import Guest, GuestFate
from gantt.core.claims.claim import Claim
from gantt.core.claims.commit import CommitResult, DecisionRecord, RequestDraft
from gantt.core.claims.host_event import HostEvent
from gantt.core.claims.quota import Limit, ProjectUsage, Usage
from gantt.core.claims.reconcile import Registration, RegistrationFate
from gantt.core.messages.report import ClaimWords, HostReport, RegisterHost
from gantt.core.nova.events import Cast, GuestSettled
from gantt.core.records.decision import Answer
from gantt.core.records.history import ClaimCounts, History
from gantt.core.records.process import Service, ServiceNote
from gantt.core.resources.group_rule import GroupRule
from gantt.core.resources.host import Aggregate, Group, HostChange
from gantt.core.resources.host_keys import HostKey
from gantt.core.table.metrics import DeclaredMetric
from gantt.scheduler.beside import FactsStore


class StoredRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request row as ``get_request`` shows it.

    :ivar wait_seconds: until an open one is past its deadline
    """

    id: str
    state: str  # open | placed | cancelled
    fingerprint: str
    attempt: int  # 0: never placed; a cancelled one may have its refusal as answer then
    owner: str = ''
    wait_seconds: float = 0.0
    answer: bytes = b''
    claims: list[Claim] = []


class RequestLine(msgspec.Struct, frozen=True, kw_only=True):
    """A request in a list; ``updated_at`` in seconds of the database's clock."""

    id: str
    state: str  # open | placed | cancelled
    attempt: int
    claims: int  # how many it made
    updated_at: float


class ReportFate(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one report.

    ``fate``: applied | stale | gone (old epoch) | unknown_host | needs_full | locked (others
    keep the host's row locked: give it to the store again).
    ``changed`` says whether a claim, usage or a fact changed (the generation grew).
    """

    name: str
    fate: str
    changed: bool = False
    confirmed: list[str] = []
    released: list[str] = []
    adopted: list[str] = []
    current_epoch: int = 0
    current_sequence: int = 0


class ReportResult(msgspec.Struct, frozen=True, kw_only=True):
    """Fates in the order given, and the touched hosts with what is placed there."""

    fates: list[ReportFate]
    hosts: list[HostChange] = []
    now: float = 0.0


class ClaimFate(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a word about one claim: ok | gone (final, unknown, of another host) | kept.

    :ivar reason: why a claim that is live is gone for who asks
    """

    claim_id: str
    fate: str
    state: str = ''
    reason: str = ''


class ClaimResult(msgspec.Struct, frozen=True, kw_only=True):
    """Fates of the claims named, and the touched hosts as they are now."""

    fates: list[ClaimFate]
    hosts: list[HostChange] = []
    #: claim -> why it could not be read: by the sweeper alone, and each time it finds so
    unreadable: dict[str, str] = {}


class HeardResult(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of the claims that words of Nova changed, and the touched hosts as they are now."""

    confirmed: list[str] = []
    released: list[str] = []
    adopted: list[str] = []
    hosts: list[HostChange] = []
    not_novas: list[str] = []  # hosts of words that do not count: agents speak for them
    locked: list[str] = []  # hosts whose rows others keep locked: their words were not folded


class OpenMove(msgspec.Struct, frozen=True, kw_only=True):
    """A guest on hosts of Nova with a claim at both ends of a move, for ``seconds``."""

    source: Claim
    target: Claim
    seconds: float


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of the feed that are missing: not committed yet, or never.

    :ivar first: the first of them; ``last`` is the last
    :ivar since: the database's clock when they were missed first
    :ivar before: transactions from this number on have not drawn them; 0: not known
    """

    first: int
    last: int
    since: float
    before: int = 0


class Feed(msgspec.Struct, frozen=True, kw_only=True):
    """News since a position, as read by one poll.

    :ivar groups: generations, 0 of a group that is gone
    :ivar rules: of those of them that are there
    :ivar whole: these are all groups that there are
    :ivar now: the database's clock at the read
    :ivar incarnation: another number than before: reload everything
    :ivar gaps: numbers up to the position that are missing, to be given to the next poll
    :ivar is_lost: the feed alone does not lead on from here: compare everything
    :ivar went_back: the database is at an older state than was known: reload everything
    """

    position: int
    hosts: list[HostChange] = []
    aggregates: list[Aggregate] | None = None  # whole list where any changed
    metrics: list[DeclaredMetric] | None = None  # the same
    groups: dict[str, int] = {}
    rules: dict[str, GroupRule] = {}
    whole: bool = False
    now: float = 0.0
    incarnation: int = 1
    gaps: list[Gap] = []
    is_lost: bool = False
    went_back: bool = False


class Everything(msgspec.Struct, frozen=True, kw_only=True):
    """The whole state that a host table is built from, with its feed position."""

    position: int
    hosts: list[HostChange]
    aggregates: list[Aggregate]
    groups: dict[str, int]
    resource_classes: frozenset[str]
    now: float
    incarnation: int
    metrics: list[DeclaredMetric] = []
    rules: dict[str, GroupRule] = {}
    gaps: list[Gap] = []


class Store(FactsStore, Protocol):
    """The database, in terms of core types.  Every method is one transaction.

    Times are seconds of the database's clock.  All methods may be called from
    any thread.
    """

    # -- the group commit and the life of requests -------------------------
    def commit(self, batch: Sequence[RequestDraft]) -> CommitResult:
        """Commit a batch of requests; see ``core.claims.commit`` for the rule."""

    def give_up(self, request_id: str, owner: str, attempt: int) -> ClaimResult:
        """Release everything this attempt of an open request has claimed; delete its row."""

    def load_request(self, request_id: str) -> StoredRequest | None:
        """The request row with its claims, or None."""

    def bar_request(self, request_id: str, fingerprint: str, answer: bytes) -> StoredRequest | None:
        """Keep a refusal, so that no copy is placed any more; where the row is known, that one."""

    def cancel_request(self, request_id: str, reason: str) -> tuple[StoredRequest, ClaimResult]:
        """Set it cancelled (inserting it if need be) and release its reserved claims."""

    def extend_request(
        self, request_id: str, seconds: float, most: float, most_of_plans: float | None = None
    ) -> ClaimResult:
        """Lengthen the leases of its reserved claims to now + seconds, at most ``most``.

        :param most_of_plans: at most, of claims of a plan; None: as of all others
        """

    # -- hosts ------------------------------------------------------------------
    def register_host(self, message: RegisterHost) -> Registration:
        """Hand out the next epoch; the same nonce again gets the same epoch.

        :raises StaleRegistration: a later one of the same journal was there before
        """

    def register_hosts(self, messages: Sequence[RegisterHost]) -> list[RegistrationFate]:
        """The same for hosts that differ, in one transaction.

        Of a host whose row others keep locked the error is ``Busy``.
        """

    def apply_reports(self, reports: Sequence[HostReport]) -> ReportResult:
        """Fold reports into their hosts and claims, in the order given."""

    def confirm_claims(self, words: ClaimWords) -> ClaimResult:
        """Reserved -> confirmed; already confirmed is ok; anything else is gone."""

    def refuse_claims(self, words: ClaimWords) -> ClaimResult:
        """Reserved -> refused, counted against the host."""

    def release_claims(self, words: ClaimWords) -> ClaimResult:
        """Live -> released, for claims of this host, in order of (epoch, sequence)."""

    def sweep(self, limit: int) -> ClaimResult:
        """Expire reserved claims past their lease, at most ``limit``; name those at fault."""

    # -- hosts that an unmodified Nova runs -----------------------------------
    def hear_guests(self, casts: Sequence[Cast]) -> HeardResult:
        """Fold broadcasts about guests, each once; see ``core.nova.host_words``."""

    def hear_aggregates(self, cast: Cast) -> bool:
        """Take over aggregates as Nova's API says they are; whether it was news."""

    def settle_guest(self, said: GuestSettled) -> HeardResult:
        """End the claims of a guest where Nova's API says that it is not."""

    def open_moves(self, seconds: float, limit: int, reserved: bool = False) -> list[OpenMove]:
        """Moves between hosts of Nova that have been open for longer, oldest first.

        At most ``limit`` are looked at.  ``reserved``: and claims awaited, as from host to itself.
        """

    # -- for operators ------------------------------------------------------
    def force_release(self, claim_id: str, reason: str) -> ClaimResult:
        """An operator's release of a live claim."""

    def disable_host(self, name: str, reason: str, by: str) -> HostChange:
        """Nothing new lands here.  :raises NotFound:"""

    def enable_host(self, name: str, by: str = '') -> HostChange:
        """:raises NotFound:"""

    def revoke_host_key(self, name: str) -> HostChange:
        """Nobody speaks for the host until its key is forgotten; that one is never taken again.

        :raises NotFound: the host is not known, or has no key
        """

    def load_host_key(self, name: str) -> HostKey | None:
        """The key of a host as it is now; None: it has none, or is not known."""

    def forget_host_key(self, name: str) -> HostChange:
        """The next key that the host registers with is taken.  :raises NotFound:"""

    def remove_host(self, name: str) -> HostChange:
        """Forget a host without live claims.  :raises NotFound, Refused:"""

    def rename_host(self, old: str, new: str) -> HostChange:
        """Claims, history and aggregates follow; who speaks for it registers by ``new``.

        :raises NotFound:
        :raises Refused: there is a host ``new``
        """

    def decommission_host(self, name: str) -> HostChange:
        """As ``remove_host``, and it leaves its aggregates.  :raises NotFound, Refused:"""

    def adopt_guests(self, guests: Sequence[Guest], *, dry_run: bool = False) -> list[GuestFate]:
        """Claims for guests that run already, fitting or not; fates in the order given."""

    def save_aggregate(
        self,
        name: str,
        metadata: dict[str, str | None],
        hosts: list[str] | None,
        uuid: str | None = None,
    ) -> Aggregate:
        """Create or change an aggregate; a None value removes its key."""

    def remove_aggregate(self, name: str) -> None:
        """:raises NotFound:"""

    def save_group(self, group: Group) -> Group:
        """Create a server group, or return it unchanged where it is the same.

        :raises Refused: it exists with another rule
        """

    def remove_group(self, uuid: str) -> None:
        """:raises NotFound, Refused: it has live claims"""

    def declare_class(self, name: str) -> None:
        """Declare a CUSTOM_ resource class."""

    def declared_classes(self) -> frozenset[str]:
        """The CUSTOM_ resource classes declared so far."""

    def save_metric(self, metric: DeclaredMetric) -> DeclaredMetric:
        """Declare a metric, or change what is declared.

        :raises InvalidMessage: a field that says nothing
        :raises Refused: there are too many already
        """

    def remove_metric(self, name: str) -> None:
        """:raises NotFound:"""

    def declared_metrics(self) -> list[DeclaredMetric]:
        """All declarations, by name."""

    # -- quotas of projects ---------------------------------------------------
    def quotas(self) -> list[Limit]:
        """All limits that are stored, by project and name."""

    def set_quotas(self, project: str, limits: Mapping[str, int | None]) -> None:
        """Set limits of a project by their names; None takes one away, others stay.

        :raises InvalidMessage: there is no such limit, or it is out of bounds
        :raises Refused: there are too many already
        """

    def quota_usage(
        self, projects: Collection[str], classes: Collection[str] = ()
    ) -> dict[str, Usage]:
        """What each of these projects has, of all that is committed; see ``core.claims.quota``.

        :param classes: resource classes whose amounts are wanted
        """

    def count_groups(self, project: str) -> int:
        """Server groups of a project."""

    # -- reading ------------------------------------------------------------
    @property
    def connections_lost(self) -> int:
        """How many connections broke so far: who answers since may be another server."""

    def load_everything(self) -> Everything:
        """All hosts with what is placed on them, aggregates and groups."""

    def poll(self, position: int, known: dict[int, int], gaps: Sequence[Gap] = ()) -> Feed:
        """What changed since ``position``, or appeared in ``gaps``.

        :param known: provider id -> version, of hosts whose news we have
            written ourselves; entries not newer are left out.  A database with an older
            version, or without the position, went back
        :returns: with the generation of a group, the hosts that its members are on
        """

    def compare(self, known: dict[int, int]) -> Feed:
        """The whole comparison: every host whose version is not as ``known``, those that
        are gone, all aggregates and all generations of groups.

        :param known: a copy: versions that were known before this began
        """

    def load_group(self, uuid: str) -> Group | None:
        """The group with the consumers of its live claims."""

    def read_groups(
        self, uuids: Collection[str], beside: Collection[int] = ()
    ) -> tuple[dict[str, GroupRule], list[HostChange]]:
        """Rules of those that are there, and the hosts that members are on.

        :param beside: hosts to be read with them, where members were
        """

    def groups(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[Group]:
        """Groups by uuid, after ``marker``; of one project, or of all."""

    def claims(
        self,
        *,
        state: str | None = None,
        host: str | None = None,
        consumer: str | None = None,
        request_id: str | None = None,
        limit: int = 100,
        marker: str | None = None,
        project: str | None = None,
    ) -> list[Claim]:
        """Claims by id, after ``marker``; of one project, or of all."""

    def requests(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[RequestLine]:
        """Requests by id, after ``marker``; those with claims of one project, or all."""

    def live_claims_of(self, consumers: Collection[str]) -> list[Claim]:
        """The live claims of all these consumers, in one look."""

    def usages(
        self, limit: int, marker: str | None = None, project: str | None = None
    ) -> list[ProjectUsage]:
        """Projects with live claims by id, after ``marker``; one of them, or all."""

    def host_history(self, name: str, limit: int) -> list[HostEvent]:
        """What happened to a host lately, newest first; [] of one that nothing is kept of."""

    def recent_events(
        self, hosts: Collection[str], since: float, limit: int
    ) -> list[tuple[str, HostEvent]]:
        """What happened to these hosts, with the name of each, oldest first.

        :param since: by the database's clock when it began; what is older is left out
        :param limit: of lines and of claims, the newest each
        """

    def load_claim(self, claim_id: str) -> Claim | None:
        """One claim, live or tombstone."""

    def audit(self) -> dict[str, list[str]]:
        """Violations of P1 to P4 by query.

        Keys: ``over_commit``, ``lost``, ``leaked``, ``doubled``; a line each.
        """

    # -- decisions ------------------------------------------------------------
    def save_decisions(self, records: Sequence[DecisionRecord]) -> None:
        """Keep decisions that were not stored by a commit (refusals)."""

    def load_decision(
        self, id_or_request: str, project: str | None = None
    ) -> tuple[bytes, bytes, float] | None:
        """Packed decision, provider ids, created at; by decision or newest of a request id.

        A unique prefix of at least 6 characters will do.  Else the newest of the id that its
        request has elsewhere (``DecisionRecord.origin``), or about that consumer.

        :param project: only decisions of this project: others may have been given any
            request id
        """

    def decisions(
        self,
        *,
        outcome: str | None = None,
        project: str | None = None,
        limit: int = 100,
        marker: str | None = None,
        consumer: str | None = None,
    ) -> list[DecisionRecord]:
        """Newest first, without the packed part; of one project, or of all.

        :param consumer: only those about this one
        """

    def history(self, *, seconds: float, parts: int, most: int) -> History:
        """The last ``seconds`` in ``parts``; of the newest ``most`` decisions at most."""

    def count_claims(self) -> ClaimCounts:
        """Claims by state, tombstones included; reads every claim."""

    def purge(
        self,
        *,
        decisions: int,
        tombstone_seconds: float,
        request_seconds: float,
        limit: int,
        again: bool = False,
        decision_bytes: int | None = None,
    ) -> int:
        """Delete what is past its bound, at most ``limit`` rows of a kind; how many went.

        :param decisions: how many of these stay, the newest
        :param decision_bytes: of what is packed of them; None: no bound
        :param again: look only at kinds of which ``limit`` rows went the last time
        """

    # -- processes of the site ------------------------------------------------
    def note_service(self, note: ServiceNote) -> None:
        """Keep what a process says of itself, in place of what it said before."""

    def forget_service(self, name: str) -> None:
        """Forget a process that ends."""

    def services(self) -> list[Service]:
        """Those that noted themselves within the last day, the one seen last first."""

    # -- the change logs of host tables ---------------------------------------
    def save_table_log(
        self, worker: str, first: int, last: int, checkpoint: bool, chunks: list[bytes]
    ) -> None:
        """Keep events ``first`` to ``last`` of a worker's table; see ``table_log``."""

    def load_table_log(self, worker: str, position: int) -> list[list[bytes]]:
        """Parts from the last checkpoint before ``position`` on, in order; [] where it is gone."""

    def purge_table_log(self, keep_seconds: float) -> int:
        """Forget what no decision of the last ``keep_seconds`` needs; how many logs were cut."""

    def ping(self) -> float:
        """The database's clock.  :raises DatabaseUnavailable:"""

    def silent_for(self) -> float:
        """Seconds that the longest wait for the database, under way now, has lasted.

        Reads that are known to be long do not count.  Cheap: it asks the database nothing,
        and may be called by any thread while others wait.
        """


class Clock(Protocol):
    """Time for liveness only; safety never depends on it."""

    def monotonic(self) -> float:
        """Seconds, never going back."""

    def wall(self) -> float:
        """Seconds since the epoch, UTC."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class Recorder(Protocol):
    """Where decisions go that no commit stores, and what is counted."""

    def record(self, record: DecisionRecord) -> None:
        """Keep a decision; bounded, never blocks, drops the oldest and counts it."""

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Add to a counter."""

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""


class Replies(Protocol):
    """How answers go back; the RPC adapter writes a batch in one go."""

    def send(self, answers: Sequence[tuple[object, Answer]]) -> None:
        """Send each answer to the caller that its handle stands for; never raises."""
