# SPDX-License-Identifier: Apache-2.0
"""One zone of a tree: the production code of one over a table with no other writer."""

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

import msgspec

from devel.memory_store.stores import memory_stores
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import OfferedPlace, SelectDestinations
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.members import placed_of
from gantt.core.table.host_table import HostTable
from gantt.groups.service.group_members import GroupMembers
from gantt.scheduler.host_cache import HostFollower
from gantt.scheduler.ports.process import Clock
from gantt.scheduler.request.planner import Planner
from gantt.scheduler.request.queue import PendingRequest
from gantt.scheduler.settings import SchedulerSettings
from gantt.zones.model import choice
from gantt.zones.model.choice import ZoneChoice
from gantt.zones.model.messages import ZoneEvaluated, ZoneEvaluation, ZoneInfo, ZoneRecord
from gantt.zones.model.strategies import ZoneStrategy
from gantt.zones.ports import ZoneCalls, ZoneIdentity, ZoneRegistry, ZoneRequests
from gantt.zones.service.context import ZoneContext
from gantt.zones.service.offers.evaluate import ZoneSelection
from gantt.zones.service.offers.local_hosts import LocalHosts
from gantt.zones.service.share_claimer import on_local_hosts
from gantt.zones.service.threads import MakeThreads

#: As what the parent zone is registered.
PARENT_NAME = 'above'


class ClaimInTree(NamedTuple):
    """A member that has a place."""

    zone: 'SimZone'
    host: str
    provider_id: int
    claim_id: str


class Links(ZoneCalls, Protocol):
    """Calls from a zone to those below it."""

    def claims(self, key: str) -> list[ClaimInTree]:
        """Return what was claimed under a key."""


class ClaimWatch(Protocol):
    """An observer of claims."""

    def before(self, request: SelectDestinations) -> object:
        """Note that members of a request are about to be claimed somewhere."""

    def after(self, noted: object, claims: list[ClaimInTree]) -> None:
        """Note the claims; ``noted`` is what ``before`` returned."""


class Surroundings(NamedTuple):
    """The parts that all zones of a tree share.

    :ivar threads: creates those of the calls of one zone
    :ivar strategies: by which zones are queried
    :ivar watch: None: no observer
    """

    clock: Clock
    pipeline: Pipeline
    links: Links
    threads: MakeThreads
    strategies: Sequence[ZoneStrategy]
    rng: random.Random
    watch: ClaimWatch | None = None


class TreeZones:
    """The zones that a zone knows: those below it."""

    def __init__(self, uuid: str) -> None:
        self.uuid, self.children = uuid, list[ZoneRecord]()

    def zone_identity(self) -> ZoneIdentity:
        return ZoneIdentity(uuid=self.uuid, secret=b'', incarnation=1)

    def child_zones(self) -> list[ZoneRecord]:
        return list(self.children)

    def parent_zones(self) -> list[object]:
        return []


class GroupsAnywhere:
    """Groups that are in no zone yet: each request brings a group of its own."""

    def zone_of_group(self, group: str, own: str) -> str:
        return ''


class TrueTable(HostFollower):
    """A table that is the truth: there is no database that it could be older than."""

    def table(self, max_age: float = 1.0) -> HostTable:
        return self.working

    @contextlib.contextmanager
    def borrowed(self, max_age: float) -> Iterator[HostTable]:
        yield self.working

    def declared_classes(self, names: Iterable[str]) -> frozenset[str]:
        return self.classes

    @property
    def age_seconds(self) -> float:
        return 0.0

    @property
    def read_seconds_ago(self) -> float:
        return 0.0


class SimZone:
    """One simulated zone: its table, its planner, its evaluation and summary.

    :ivar parts: its evaluation of requests, and its summary
    :ivar own: its own hosts alone
    :ivar laid: what was claimed and is not in the rows of the hosts, by host and claim
    """

    def __init__(self, name: str, around: Surroundings, table: HostTable | None = None) -> None:
        self.name, self.uuid = name, derived_id('zone', name)
        self.around, self.links = around, around.links
        self._zones = TreeZones(self.uuid)
        self.stores = stores = dataclasses.replace(
            memory_stores(around.clock),
            zones=cast(ZoneRegistry, self._zones),
            zone_requests=cast(ZoneRequests, GroupsAnywhere()),
        )
        self.cache = TrueTable(stores.feed, stores.vocabulary, around.clock)
        if table is not None:
            self.cache.working = table
        self.settings = settings = SchedulerSettings(worker=name)
        self.parts = ZoneContext(
            stores,
            around.links,
            self.cache,
            lambda: around.pipeline,
            settings,
            _ignore_count,
            ZoneSelection(around.strategies, around.rng),
            around.threads,
        )
        # The simulation decides when something is read: no thread does.
        self.parts.summaries.close()
        self.parts.refresher.close()
        self.own = LocalHosts(
            stores, self.cache, lambda: around.pipeline, settings, self.parts.refresher.note_request
        )
        self._planner = Planner(stores, self.cache, settings, GroupMembers)
        self._serial = itertools.count(1)
        self.laid: dict[int, dict[str, Mapping[str, int]]] = {}

    @property
    def table(self) -> HostTable:
        return self.cache.working

    @property
    def children(self) -> list[ZoneRecord]:
        """The child zones."""
        return self._zones.children

    def put_above(self, child: 'SimZone', last_resort: bool = False) -> None:
        """Put another zone directly below this one."""
        record = ZoneRecord(
            uuid=child.uuid, name=child.name, url=child.name, last_resort=last_resort
        )
        self._zones.children.append(record)
        self.parts.directory.refresh()

    def info(self) -> ZoneInfo:
        """Return its identity."""
        return ZoneInfo(
            uuid=self.uuid,
            name=self.name,
            minor=0,
            score_set=self.parts.score_set(),
            candidates_max=20,
            lease_seconds_max=600,
            facts=self.parts.facts(),
            now=0.0,
        )

    def evaluate(self, body: ZoneEvaluation) -> ZoneEvaluated:
        """Return its offers for a request of the parent zone."""
        request = msgspec.structs.replace(body.request, parent=PARENT_NAME)
        evaluated = self.parts.evaluator.evaluate(request, body.want, request.budget_ms / 1000)
        self.parts.note_requested(request.spec.resources)
        tokens = [
            self._token(msgspec.structs.replace(offered.place, fits=offered.room))
            for offered in evaluated.choices
        ]
        return evaluated.for_parent(tokens, len(request.consumers))

    def _token(self, place: OfferedPlace) -> str:
        # As sealed ones no two are the same.
        sealed = next(self._serial), self._usage_digests(place), place
        return msgspec.json.encode(sealed).decode()

    def _usage_digests(self, place: OfferedPlace) -> list[tuple[int, int]]:
        """Return marks of its hosts, other ones after each change of what is used there."""
        table = self.table
        rows = [table.hosts[table.host_state(name).row] for name in place.hosts]
        return [(row.version, len(table.pending_claims_of(row.id))) for row in rows]

    def opened(self, tokens: Iterable[str]) -> list[OfferedPlace]:
        """Return the places of tokens, in the order in which they are tried."""
        offers = [msgspec.json.decode(token, type=_SimToken) for token in tokens]
        return choice.unchanged_first(
            (place, digests != self._usage_digests(place)) for _, digests, place in offers
        )

    def claim(
        self, request: SelectDestinations, choices: Iterable[ZoneChoice]
    ) -> list[ClaimInTree] | None:
        """Claim places on own hosts for all members; None: there are none any more.

        :param choices: that a parent zone was offered, if it is one of a parent zone
        """
        watch = self.around.watch
        noted = None if watch is None else watch.before(request)
        request = on_local_hosts(request, choices)
        numbered = msgspec.structs.replace(request, request_id=self.next_key(request.request_id))
        plan = self._planner.plan(PendingRequest(numbered, float('inf')), self.around.pipeline)
        if not plan.is_placed:
            return None
        claims = []
        for placed in placed_of(plan.decision):
            assert placed.claim_id is not None
            host = placed.host
            claims.append(ClaimInTree(self, host.host, host.provider_id, placed.claim_id))
            on_host = self.laid.setdefault(host.provider_id, {})
            on_host[placed.claim_id] = request.spec.resources
        if watch is not None:
            watch.after(noted, claims)
        return claims

    def next_key(self, request_id: str) -> str:
        """Return an id for a share of a request, another one each time."""
        return derived_id('share', request_id, self.name, next(self._serial))

    def release(self, claim: ClaimInTree) -> None:
        """Give a place back."""
        amounts = self.laid[claim.provider_id].pop(claim.claim_id)
        self.table.remove_pick(claim.provider_id, amounts, claim.claim_id)


_SimToken = tuple[int, list[tuple[int, int]], OfferedPlace]


def _ignore_count(name: str, value: int = 1, **labels: str) -> None:
    pass
