# SPDX-License-Identifier: Apache-2.0
"""One zone of a tree: the production code of one over a table with no other writer."""

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

import msgspec

from devel.memory_store.stores import memory_stores
from gantt.core.messages.base import derived_id
from gantt.core.messages.request import OfferedPlace, SelectDestinations
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.members import placed_of
from gantt.core.table.host_table import HostTable
from gantt.core.zones import choice
from gantt.core.zones.choice import Choice
from gantt.core.zones.messages import ZoneEvaluated, ZoneEvaluation, ZoneInfo, ZoneRecord
from gantt.core.zones.strategy import ZoneStrategy
from gantt.scheduler.groups.group_members import GroupMembers
from gantt.scheduler.host_follower import HostFollower
from gantt.scheduler.ports import Clock, ZoneRegistry, ZoneRequests
from gantt.scheduler.ports.zones import ZoneIdentity, Zones
from gantt.scheduler.request.planner import Planner
from gantt.scheduler.request.queue import PendingRequest
from gantt.scheduler.settings import SchedulerSettings
from gantt.scheduler.zones.context import ZoneConcurrency, ZoneContext
from gantt.scheduler.zones.offers.evaluate import ZoneChoosing
from gantt.scheduler.zones.offers.local_hosts import LocalHosts
from gantt.scheduler.zones.offers.queries import CallRunner
from gantt.scheduler.zones.share_claimer import on_local_hosts

#: As what the zone above is registered.
ABOVE = 'above'


class ClaimInTree(NamedTuple):
    """A member that has a place."""

    zone: 'SimZone'
    host: str
    provider_id: int
    claim_id: str


class Links(Zones, Protocol):
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

    :ivar runner: builds what carries out the calls of one zone
    :ivar strategies: by which zones are queried
    :ivar watch: None: no observer
    """

    clock: Clock
    pipeline: Pipeline
    links: Links
    runner: Callable[[], CallRunner]
    strategies: Sequence[ZoneStrategy]
    dice: random.Random
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


class TableAsItIs(HostFollower):
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
    """One simulated zone; see the module docstring.

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
        self.cache = TableAsItIs(stores.feed, stores.vocabulary, around.clock)
        if table is not None:
            self.cache.working = table
        self.settings = settings = SchedulerSettings(worker=name)
        self.parts = ZoneContext(
            stores,
            around.links,
            self.cache,
            lambda: around.pipeline,
            settings,
            _not_counted,
            ZoneChoosing(around.strategies, around.dice),
            ZoneConcurrency(around.runner()),
        )
        # The simulation decides when something is read: no thread does.
        self.parts.summaries.close()
        self.parts.refresher.close()
        self.own = LocalHosts(
            stores, self.cache, lambda: around.pipeline, settings, self.parts.refresher.requested
        )
        self._planner = Planner(stores, self.cache, settings, GroupMembers)
        self._serial = itertools.count(1)
        self.laid: dict[int, dict[str, Mapping[str, int]]] = {}

    @property
    def table(self) -> HostTable:
        return self.cache.working

    @property
    def children(self) -> list[ZoneRecord]:
        """The zones directly below."""
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
        request = msgspec.structs.replace(body.request, parent=ABOVE)
        evaluated = self.parts.evaluator.evaluate(request, body.want, request.budget_ms / 1000)
        self.parts.note_requested(request.spec.resources)
        tokens = [
            self._token(msgspec.structs.replace(offered.place, fits=offered.room))
            for offered in evaluated.choices
        ]
        return evaluated.for_parent(tokens, len(request.consumers))

    def _token(self, place: OfferedPlace) -> str:
        # As sealed ones no two are the same.
        sealed = next(self._serial), self._marks(place), place
        return msgspec.json.encode(sealed).decode()

    def _marks(self, place: OfferedPlace) -> list[tuple[int, int]]:
        """Return marks of its hosts, other ones after each change of what is used there."""
        table = self.table
        rows = [table.hosts[table.host_state(name).row] for name in place.hosts]
        return [(row.version, len(table.pending_of(row.id))) for row in rows]

    def opened(self, tokens: Iterable[str]) -> list[OfferedPlace]:
        """Return the places of tokens, in the order in which they are tried."""
        offers = [msgspec.json.decode(token, type=_SimToken) for token in tokens]
        return choice.unchanged_first(
            (place, marks != self._marks(place)) for _, marks, place in offers
        )

    def claim(
        self, request: SelectDestinations, choices: Iterable[Choice]
    ) -> list[ClaimInTree] | None:
        """Claim places on own hosts for all members; None: there are none any more.

        :param choices: that a zone above was offered, if it is one of a zone above
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
        self.table.give(claim.provider_id, amounts, claim.claim_id)


_SimToken = tuple[int, list[tuple[int, int]], OfferedPlace]


def _not_counted(name: str, value: int = 1, **labels: str) -> None:
    pass
