# SPDX-License-Identifier: Apache-2.0
"""One pass over both APIs: everything that is asked for each time, as one picture.

What cannot be read whole is not used at all: half a list of guests would look
like guests that are gone.
"""

import dataclasses
import logging
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from gantt import exceptions
from gantt.nova_source.api import Api
from gantt.nova_source.api import MalformedHandler as OddEntry
from gantt.nova_source.names import MANY_NODES
from gantt.nova_source.nova_api_types import (
    HOST_KEY,
    UNKNOWN,
    AllocatedAmounts,
    Allocation,
    Amounts,
    ApiAggregate,
    ApiHypervisor,
    ApiServer,
    ApiServerGroup,
    ApiService,
    Migration,
    Provider,
)


# -- Entries of a list that are of another shape than expected, and whom they leave in doubt.
class Odd:
    """The odd entries of one pass.

    :ivar about: service host, node or uuid of a node -> what is odd about it
    :ivar servers: uuid of a server -> its host
    :ivar aggregates: uuid -> what is odd; '': of one that has none
    :ivar groups: the same of server groups
    """

    def __init__(self) -> None:
        self.about: dict[str, str] = {}
        self.servers: dict[str, str | None] = {}
        self.aggregates: dict[str, str] = {}
        self.groups: dict[str, str] = {}

    def note(self, about: str | None, error: object) -> None:
        """Nothing is to be said of somebody."""
        if about:
            self.about.setdefault(about, str(error))
        else:
            LOG.warning('Skipped an entry that names no host or guest: %s', error)

    def about_field(self, key: str) -> OddEntry:
        """Of entries that name in one field whom they are about."""
        return lambda entry, error: self.note(_text(entry, key), error)

    def hypervisor(self, entry: Any, error: exceptions.InvalidMessage) -> None:
        """Of ``os-hypervisors``."""
        node = _text(entry, 'hypervisor_hostname')
        if _text(entry, 'hypervisor_type') in MANY_NODES:
            self.note(node, error)
        else:
            self.note(_text(entry, 'service', 'host') or node, error)

    def server(self, entry: Any, error: exceptions.InvalidMessage) -> None:
        """Of ``servers``: one less in a list would be a guest that is gone.

        :raises InvalidMessage: nobody can say which host that would be
        """
        uuid = _text(entry, 'id')
        if uuid is None or HOST_KEY not in entry:
            raise error
        host = _text(entry, HOST_KEY)
        if host is None and entry[HOST_KEY] is not None:
            raise error
        self.servers[uuid] = host
        if host is not None:
            self.note(host, error)

    def migration(self, entry: Any, error: exceptions.InvalidMessage) -> None:
        """Of ``os-migrations``: at either end a guest may be that is on its way.

        :raises InvalidMessage: nobody can say where it began
        """
        source = _text(entry, 'source_compute')
        if source is None:
            raise error
        for host in (source, _text(entry, 'dest_compute')):
            self.note(host or source, error)

    def left_as_is(self, found: dict[str, str], key: str) -> OddEntry:
        """Of aggregates and groups: one that cannot be read is none that is gone."""

        def note(entry: Any, error: exceptions.InvalidMessage) -> None:
            found[(_text(entry, key) or '').lower()] = str(error)

        return note


def _text(entry: Any, *keys: str) -> str | None:
    """What stands there, where it is text."""
    for key in keys:
        entry = entry.get(key) if isinstance(entry, dict) else None
    return entry if isinstance(entry, str) and entry else None


LOG = logging.getLogger(__name__)

T = TypeVar('T')
R = TypeVar('R')

#: All guests there are, also those that may be restored.  Those that come while the list is
#: read are at its end, and none is passed over.
ALL_SERVERS = {
    'all_tenants': '1',
    'deleted': 'False',
    'soft_deleted': 'True',
    'sort_key': 'created_at',
    'sort_dir': 'asc',
}
#: Guests that a list misses and that Nova is asked about one by one in a pass.
REQUESTED_MOST = 1000
#: In so many passes the allocations of each provider are read at least once.
EVERY_PASSES = 10


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """What both APIs said in one pass.

    :ivar asked_at: when reading began, seconds since 1970
    :ivar begun: the same by the database's clock, None where nobody told it
    :ivar services: by host
    :ivar open: migrations that are not over, by instance
    :ivar rooms: by uuid of the provider, which is that of the hypervisor
    :ivar doubtful: uuids of hypervisors that may have guests which ``servers`` misses
    :ivar doubled: hosts that several services have, each in a cell of its own
    :ivar odd: of whom something could not be read: see :class:`Odd`
    :ivar odd_aggregates: those that stay as they are, by uuid, and why
    :ivar odd_groups: those that are passed over, by uuid, and why
    """

    asked_at: float
    begun: float | None = None
    services: dict[str, ApiService]
    nodes: list[ApiHypervisor]
    servers: list[ApiServer]
    open: dict[str, list[Migration]]
    aggregates: list[ApiAggregate]
    groups: list[ApiServerGroup]
    rooms: dict[str, AllocatedAmounts]
    doubtful: frozenset[str] = frozenset()
    doubled: frozenset[str] = frozenset()
    odd: dict[str, str] = {}
    odd_aggregates: dict[str, str] = {}
    odd_groups: dict[str, str] = {}


class Whereabouts(msgspec.Struct, frozen=True):
    """Where one guest is.

    :ivar server: None: there is no such guest (any more)
    """

    server: ApiServer | None


@dataclasses.dataclass(eq=False)
class Reader:
    """Reads; remembers what Placement says unchanged, and who was where.

    A list of servers is not taken at its word: Nova leaves out, without saying so, what is in
    a cell that does not answer in time.  Whoever was listed before, or has an allocation, and is
    not listed now is asked for alone: then Nova says that it is gone, or that it cannot tell.

    :ivar page_size: entries of a page; Nova gives fewer where it is told to
    :ivar threads: how many requests are under way at once
    :ivar seconds: that all requests of a pass may take
    """

    nova: Api
    placement: Api
    page_size: int
    threads: int
    wall: Callable[[], float] = time.time
    seconds: float = 600.0

    def __post_init__(self) -> None:
        self._rooms: dict[str, AllocatedAmounts] = {}
        self._host_of: dict[str, str] = {}
        self._nobody: set[str] = set()
        self._passes = 0

    def read(self, begun: float | None = None) -> Picture:
        """Everything.

        :param begun: what the database's clock shows now, at the earliest
        :raises Misconfigured: credentials or addresses are wrong
        :raises Unavailable, InvalidMessage, NotFound: one of the answers cannot be used
        """
        for api in (self.nova, self.placement):
            api.begin(self.seconds)
        nova, asked_at, odd = self.nova, self.wall(), Odd()
        before, doubled = self._services(odd)
        nodes = list(
            nova.pages(
                '/os-hypervisors/detail',
                ApiHypervisor,
                'hypervisors',
                self.page_size,
                odd=odd.hypervisor,
            )
        )
        aggregates = nova.entries(
            '/os-aggregates', ApiAggregate, 'aggregates', odd.left_as_is(odd.aggregates, 'uuid')
        )
        groups = nova.pages(
            '/os-server-groups',
            ApiServerGroup,
            'server_groups',
            self.page_size,
            by='',
            odd=odd.left_as_is(odd.groups, 'id'),
            all_projects='True',
        )
        servers = list(
            nova.pages(
                '/servers/detail',
                ApiServer,
                'servers',
                self.page_size,
                odd=odd.server,
                **ALL_SERVERS,
            )
        )
        _refuse_hidden(servers)
        # A cell may have gone away while its guests were to be read.
        after, more_doubled = self._services(odd)
        services = {host: _worse(before.get(host), now) for host, now in after.items()}
        self._passes += 1
        rooms = self._read_rooms(nodes, servers, odd)
        more, doubtful = self._look_for_missing(servers, nodes, rooms, odd)
        servers += more
        moving = [server.id for server in servers if server.may_move] + list(odd.servers)
        found = self._each(lambda one: self.migrations(one, odd.migration), moving)
        moves = dict(zip(moving, found, strict=True))
        for server in odd.servers:
            for move in moves[server]:
                odd.note(move.source_compute, f'server {server}, which was there, cannot be read')
        return Picture(
            asked_at=asked_at,
            begun=begun,
            services=services,
            nodes=nodes,
            servers=servers,
            open=moves,
            aggregates=aggregates,
            groups=list(groups),
            rooms=rooms,
            doubtful=doubtful,
            doubled=doubled | more_doubled,
            odd=odd.about,
            odd_aggregates=odd.aggregates,
            odd_groups=odd.groups,
        )

    def _services(self, odd: Odd) -> tuple[dict[str, ApiService], frozenset[str]]:
        """By host, and the hosts that have several."""
        path = '/os-services'
        try:
            found = self.nova.entries(
                path, ApiService, 'services', odd.about_field('host'), binary='nova-compute'
            )
        except exceptions.NotFound:
            raise self.nova.misplaced(path) from None
        count = Counter(service.host for service in found)
        doubled = frozenset(host for host, times in count.items() if times > 1)
        return {service.host: service for service in found}, doubled

    # -- guests that a list misses ---------------------------------------------------
    def _look_for_missing(
        self,
        servers: Sequence[ApiServer],
        nodes: Iterable[ApiHypervisor],
        rooms: dict[str, AllocatedAmounts],
        odd: Odd,
    ) -> tuple[list[ApiServer], frozenset[str]]:
        """Those that are there all the same, and the hypervisors whose guests are not sure."""
        listed = {server.id for server in servers} | odd.servers.keys()
        nodes_of: dict[str, set[str]] = defaultdict(set)
        at: dict[str, set[str]] = defaultdict(set)
        for node in nodes:
            nodes_of[node.service.host].add(node.id)
            for consumer in rooms[node.id].allocations if node.id in rooms else ():
                at[consumer].add(node.id)
        # Migrations and leaks are no guests, and stay what they are.
        self._nobody &= at.keys()
        self._nobody -= listed
        for guest, host in self._host_of.items():
            at[guest] |= nodes_of[host]
        missing = [one for one in at if one not in listed and one not in self._nobody]
        batch = missing[:REQUESTED_MOST]
        answers = dict(zip(batch, self._each(self._server, batch), strict=True))
        gone = {one for one, server in answers.items() if server is None}
        more = [server for server in answers.values() if server is not None and server.is_known]
        unsure = set(missing) - gone - {server.id for server in more}
        if more or unsure:
            LOG.warning(
                'Nova did not list %d guests that it knows when asked for them, and does '
                'not say where %d others are',
                len(more),
                len(unsure),
            )
        # Those of a cell that is away are listed, and nothing is reported of where they are.
        unsure |= at.keys() & {server.id for server in servers if not server.is_known}
        self._nobody |= gone & at.keys()
        unsure_too = unsure | odd.servers.keys()
        known_hosts = {one: self._host_of[one] for one in unsure_too if one in self._host_of}
        self._host_of = known_hosts | {
            server.id: server.host for server in [*servers, *more] if server.host is not None
        }
        return more, frozenset().union(*(at[one] for one in unsure))

    def _server(self, instance: str) -> ApiServer | None:
        """None: there is no such guest (any more)."""
        try:
            server = self.nova.get(f'/servers/{instance}', ApiServer, 'server')
        except exceptions.NotFound:
            return None
        except exceptions.InvalidMessage as e:
            LOG.warning('Where guest %s is cannot be read: %s', instance, e)
            return ApiServer(id=instance, status=UNKNOWN)
        _refuse_hidden([server])
        return server

    def migrations(self, instance: str, odd: OddEntry | None = None) -> list[Migration]:
        """The newest one of an instance, where it is open.

        An older one that never ended does not go on: an instance has one at a time.
        """
        found = self.nova.entries(
            '/os-migrations', Migration, 'migrations', odd, instance_uuid=instance
        )
        newest = max(found, key=lambda one: one.age, default=None)
        return [newest] if newest is not None and newest.is_open else []

    def whereabouts(self, instance: str) -> Whereabouts | None:
        """Where an instance is that no migration is open of; None where that is not so, or
        cannot be said.

        :raises Unavailable, Misconfigured, InvalidMessage: not told
        """
        if self.migrations(instance):
            return None
        server = self._server(instance)
        if server is None:
            return Whereabouts(None)
        return None if server.may_move or not server.is_known else Whereabouts(server)

    # -- Placement -----------------------------------------------------------------
    def _read_rooms(
        self, nodes: Sequence[ApiHypervisor], servers: Iterable[ApiServer], odd: Odd
    ) -> dict[str, AllocatedAmounts]:
        """Inventories and traits that have the generation of before are as they were."""
        providers = {
            one.uuid: one
            for one in self.placement.entries(
                '/resource_providers', Provider, 'resource_providers', odd.about_field('uuid')
            )
        }
        on: dict[str, set[str]] = defaultdict(set)
        for server in servers:
            on[server.host or ''].add(server.id)
        mine = {
            node.id: (providers[node.id], on[node.service.host])
            for node in nodes
            if node.id in providers
        }
        news = [one for one, guests in mine.values() if not self._is_known(one, guests)]
        found = self._each(lambda one: self._room(one, odd), news)
        read = dict(zip([one.uuid for one in news], found, strict=True))
        rooms = {uuid: read[uuid] if uuid in read else self._rooms[uuid] for uuid in mine}
        self._rooms = {uuid: room for uuid, room in rooms.items() if room is not None}
        return self._rooms

    def _is_known(self, provider: Provider, guests: Set[str]) -> bool:
        """Whether nothing is to be read of it.

        That allocations were deleted its generation does not say: where there are some of
        others than the guests that are listed there, they are read.
        """
        room = self._rooms.get(provider.uuid)
        if room is None or room.generation != provider.generation:
            return False
        turn = zlib.crc32(provider.uuid.encode()) % EVERY_PASSES
        return room.allocations.keys() <= guests and self._passes % EVERY_PASSES != turn

    def _room(self, provider: Provider, odd: Odd) -> AllocatedAmounts | None:
        """None where the provider is gone meanwhile, or cannot be read."""
        try:
            return self._read_room(provider)
        except exceptions.NotFound:
            return None
        except exceptions.InvalidMessage as e:
            odd.note(provider.uuid, e)
            return None

    def _read_room(self, provider: Provider) -> AllocatedAmounts:
        before = self._rooms.pop(provider.uuid, None)
        path, get = f'/resource_providers/{provider.uuid}', self.placement.get
        if before is not None and before.generation == provider.generation:
            inventories, traits = before.inventories, before.traits
        else:
            inventories = get(f'{path}/inventories', dict[str, Amounts], 'inventories')
            traits = get(f'{path}/traits', list[str], 'traits')
        allocations_read = get(f'{path}/allocations', dict[str, Allocation], 'allocations')
        return AllocatedAmounts(
            # What was read may be newer than this: then it is read once more.
            generation=provider.generation,
            inventories=inventories,
            traits=traits,
            allocations={consumer: one.resources for consumer, one in allocations_read.items()},
        )

    def _each(self, fetch: Callable[[T], R], about: Sequence[T]) -> list[R]:
        """Ask about each, some at once; the first error ends it."""
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix='nova-source')
        try:
            return list(pool.map(fetch, about))
        finally:
            pool.shutdown(cancel_futures=True)


def _worse(before: ApiService | None, now: ApiService) -> ApiService:
    """A service whose cell was away once was away."""
    return now if before is None or before.is_known else before


def _refuse_hidden(servers: Iterable[ApiServer]) -> None:
    """Guests whose host is hidden would look like guests that have left."""
    if any(server.is_hidden for server in servers):
        raise exceptions.Misconfigured(
            option='[nova]',
            problem='the user may not see OS-EXT-SRV-ATTR:host of servers',
            fix='Let it pass the policy os_compute_api:os-extended-server-attributes of Nova',
        )
