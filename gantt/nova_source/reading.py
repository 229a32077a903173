# SPDX-License-Identifier: Apache-2.0
"""Pass over both APIs: everything that is read each time, as one picture.

An incomplete answer is not used at all: with half a list, the other guests
would seem deleted.
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


# -- Entries of a list that are of another shape than expected, and the hosts they affect.
class Odd:
    """Malformed entries of one pass.

    :ivar about: service host, node or uuid of a node -> the problem
    :ivar servers: uuid of a server -> its host
    :ivar aggregates: uuid -> the problem; '': of one without uuid
    :ivar groups: the same for server groups
    """

    def __init__(self) -> None:
        self.about: dict[str, str] = {}
        self.servers: dict[str, str | None] = {}
        self.aggregates: dict[str, str] = {}
        self.groups: dict[str, str] = {}

    def note(self, about: str | None, error: object) -> None:
        """Record a host or node that nothing is to be reported of."""
        if about:
            self.about.setdefault(about, str(error))
        else:
            LOG.warning('Entry names no host or guest and is skipped: error=%s', error)

    def about_field(self, key: str) -> OddEntry:
        """Return a handler of entries that name their subject in one field."""
        return lambda entry, error: self.note(_text(entry, key), error)

    def hypervisor(self, entry: Any, error: exceptions.InvalidMessage) -> None:
        """Record an entry of ``os-hypervisors``."""
        node = _text(entry, 'hypervisor_hostname')
        if _text(entry, 'hypervisor_type') in MANY_NODES:
            self.note(node, error)
        else:
            self.note(_text(entry, 'service', 'host') or node, error)

    def server(self, entry: Any, error: exceptions.InvalidMessage) -> None:
        """Record an entry of ``servers``: a missing one would seem a deleted guest.

        :raises InvalidMessage: its host is unknown
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
        """Record an entry of ``os-migrations``: a guest on its way may be at either end.

        :raises InvalidMessage: its source is unknown
        """
        source = _text(entry, 'source_compute')
        if source is None:
            raise error
        for host in (source, _text(entry, 'dest_compute')):
            self.note(host or source, error)

    def left_as_is(self, found: dict[str, str], key: str) -> OddEntry:
        """Return a handler of aggregates and groups: an unreadable one is not deleted."""

        def note(entry: Any, error: exceptions.InvalidMessage) -> None:
            found[(_text(entry, key) or '').lower()] = str(error)

        return note


def _text(entry: Any, *keys: str) -> str | None:
    """Return the value at a path of keys, where it is text."""
    for key in keys:
        entry = entry.get(key) if isinstance(entry, dict) else None
    return entry if isinstance(entry, str) and entry else None


LOG = logging.getLogger(__name__)

T = TypeVar('T')
R = TypeVar('R')

#: Query for all guests, also those that may be restored.  Those created while the list is read
#: are at its end, and none is skipped.
ALL_SERVERS = {
    'all_tenants': '1',
    'deleted': 'False',
    'soft_deleted': 'True',
    'sort_key': 'created_at',
    'sort_dir': 'asc',
}
#: Guests that a list misses and that are requested from Nova one by one in a pass.
REQUESTED_MOST = 1000
#: Passes in which the allocations of each provider are read at least once.
EVERY_PASSES = 10


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of both APIs in one pass.

    :ivar requested_at: when reading began, seconds since 1970
    :ivar begun: the same by the database's clock, None where that is unknown
    :ivar services: by host
    :ivar open: migrations that are not over, by instance
    :ivar rooms: by uuid of the provider, which is that of the hypervisor
    :ivar doubtful: uuids of hypervisors that may have guests which ``servers`` misses
    :ivar doubled: hosts that several services have, each in a cell of its own
    :ivar odd: subjects of unreadable entries: see :class:`Odd`
    :ivar odd_aggregates: aggregates that stay unchanged, by uuid, and the reason
    :ivar odd_groups: server groups that are skipped, by uuid, and the reason
    """

    requested_at: float
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
    """Location of one guest.

    :ivar server: None: there is no such guest (any more)
    """

    server: ApiServer | None


@dataclasses.dataclass(eq=False)
class Reader:
    """A reader of both APIs, with a cache of unchanged providers and of guests' hosts.

    A list of servers is not trusted: Nova silently leaves out the servers of a cell that does not
    answer in time.  A guest that was listed before, or has an allocation, and is not listed now is
    requested alone: then Nova answers that it is deleted, or that it is unknown.

    :ivar page_size: entries of a page; Nova gives fewer where it is configured to
    :ivar threads: how many requests are under way at once
    :ivar seconds: time that all requests of a pass may take
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
        """Read everything.

        :param begun: time of the database's clock now, at the earliest
        :raises Misconfigured: credentials or addresses are wrong
        :raises Unavailable, InvalidMessage, NotFound: one of the answers cannot be used
        """
        for api in (self.nova, self.placement):
            api.begin(self.seconds)
        nova, requested_at, malformed = self.nova, self.wall(), Odd()
        services_before, doubled = self._services(malformed)
        nodes = list(
            nova.pages(
                '/os-hypervisors/detail',
                ApiHypervisor,
                'hypervisors',
                self.page_size,
                odd=malformed.hypervisor,
            )
        )
        aggregates = nova.entries(
            '/os-aggregates',
            ApiAggregate,
            'aggregates',
            malformed.left_as_is(malformed.aggregates, 'uuid'),
        )
        groups = nova.pages(
            '/os-server-groups',
            ApiServerGroup,
            'server_groups',
            self.page_size,
            by='',
            odd=malformed.left_as_is(malformed.groups, 'id'),
            all_projects='True',
        )
        servers = list(
            nova.pages(
                '/servers/detail',
                ApiServer,
                'servers',
                self.page_size,
                odd=malformed.server,
                **ALL_SERVERS,
            )
        )
        _refuse_hidden(servers)
        # A cell may have gone away while its guests were to be read.
        services_after, more_doubled = self._services(malformed)
        services = {
            host: _worse(services_before.get(host), service)
            for host, service in services_after.items()
        }
        self._passes += 1
        rooms = self._read_rooms(nodes, servers, malformed)
        missed, doubtful = self._look_for_missing(servers, nodes, rooms, malformed)
        servers += missed
        moving = [server.id for server in servers if server.may_move] + list(malformed.servers)
        migration_lists = self._each(
            lambda server_id: self.migrations(server_id, malformed.migration), moving
        )
        moves = dict(zip(moving, migration_lists, strict=True))
        for server in malformed.servers:
            for move in moves[server]:
                malformed.note(
                    move.source_compute, f'server {server}, which was there, cannot be read'
                )
        return Picture(
            requested_at=requested_at,
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
            odd=malformed.about,
            odd_aggregates=malformed.aggregates,
            odd_groups=malformed.groups,
        )

    def _services(self, odd: Odd) -> tuple[dict[str, ApiService], frozenset[str]]:
        """Return services by host, and the hosts that have several."""
        path = '/os-services'
        try:
            services = self.nova.entries(
                path, ApiService, 'services', odd.about_field('host'), binary='nova-compute'
            )
        except exceptions.NotFound:
            raise self.nova.misplaced(path) from None
        count = Counter(service.host for service in services)
        doubled = frozenset(host for host, times in count.items() if times > 1)
        return {service.host: service for service in services}, doubled

    # -- guests that a list misses ---------------------------------------------------
    def _look_for_missing(
        self,
        servers: Sequence[ApiServer],
        nodes: Iterable[ApiHypervisor],
        rooms: dict[str, AllocatedAmounts],
        odd: Odd,
    ) -> tuple[list[ApiServer], frozenset[str]]:
        """Return guests that the list missed, and the hypervisors whose guests are uncertain."""
        listed_ids = {server.id for server in servers} | odd.servers.keys()
        nodes_of: dict[str, set[str]] = defaultdict(set)
        nodes_of_guest: dict[str, set[str]] = defaultdict(set)
        for node in nodes:
            nodes_of[node.service.host].add(node.id)
            for consumer in rooms[node.id].allocations if node.id in rooms else ():
                nodes_of_guest[consumer].add(node.id)
        # Migrations and leaks are no guests, and stay none.
        self._nobody &= nodes_of_guest.keys()
        self._nobody -= listed_ids
        for guest, host in self._host_of.items():
            nodes_of_guest[guest] |= nodes_of[host]
        unlisted = [
            guest_id
            for guest_id in nodes_of_guest
            if guest_id not in listed_ids and guest_id not in self._nobody
        ]
        batch = unlisted[:REQUESTED_MOST]
        answers = dict(zip(batch, self._each(self._server, batch), strict=True))
        deleted = {guest_id for guest_id, server in answers.items() if server is None}
        found_servers = [
            server for server in answers.values() if server is not None and server.is_known
        ]
        uncertain = set(unlisted) - deleted - {server.id for server in found_servers}
        if found_servers or uncertain:
            LOG.warning(
                'Nova omitted guests from its lists: existing=%d unknown=%d',
                len(found_servers),
                len(uncertain),
            )
        # Guests of a cell that is away are listed, and their hosts are not reported.
        uncertain |= nodes_of_guest.keys() & {
            server.id for server in servers if not server.is_known
        }
        self._nobody |= deleted & nodes_of_guest.keys()
        uncertain_ids = uncertain | odd.servers.keys()
        known_hosts = {
            guest_id: self._host_of[guest_id]
            for guest_id in uncertain_ids
            if guest_id in self._host_of
        }
        self._host_of = known_hosts | {
            server.id: server.host
            for server in [*servers, *found_servers]
            if server.host is not None
        }
        return found_servers, frozenset().union(
            *(nodes_of_guest[guest_id] for guest_id in uncertain)
        )

    def _server(self, instance: str) -> ApiServer | None:
        """Return a server; None: there is no such guest (any more)."""
        try:
            server = self.nova.get(f'/servers/{instance}', ApiServer, 'server')
        except exceptions.NotFound:
            return None
        except exceptions.InvalidMessage as e:
            LOG.warning('Location of a guest cannot be read: guest=%s error=%s', instance, e)
            return ApiServer(id=instance, status=UNKNOWN)
        _refuse_hidden([server])
        return server

    def migrations(self, instance: str, odd: OddEntry | None = None) -> list[Migration]:
        """Return the newest migration of an instance, where it is open.

        An older one that never ended does not go on: an instance has one at a time.
        """
        moves = self.nova.entries(
            '/os-migrations', Migration, 'migrations', odd, instance_uuid=instance
        )
        newest = max(moves, key=lambda move: move.age, default=None)
        return [newest] if newest is not None and newest.is_open else []

    def whereabouts(self, instance: str) -> Whereabouts | None:
        """Return where an instance without open migration is; None with one, or if unknown.

        :raises Unavailable, Misconfigured, InvalidMessage: it could not be read
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
        """Read providers; inventories and traits of an unchanged generation are not read again."""
        providers = {
            provider.uuid: provider
            for provider in self.placement.entries(
                '/resource_providers', Provider, 'resource_providers', odd.about_field('uuid')
            )
        }
        guests_of_host: dict[str, set[str]] = defaultdict(set)
        for server in servers:
            guests_of_host[server.host or ''].add(server.id)
        provider_of_node = {
            node.id: (providers[node.id], guests_of_host[node.service.host])
            for node in nodes
            if node.id in providers
        }
        changed = [
            provider
            for provider, guests in provider_of_node.values()
            if not self._is_known(provider, guests)
        ]
        rooms_read = self._each(lambda provider: self._room(provider, odd), changed)
        room_of = dict(zip([provider.uuid for provider in changed], rooms_read, strict=True))
        rooms = {
            uuid: room_of[uuid] if uuid in room_of else self._rooms[uuid]
            for uuid in provider_of_node
        }
        self._rooms = {uuid: room for uuid, room in rooms.items() if room is not None}
        return self._rooms

    def _is_known(self, provider: Provider, guests: Set[str]) -> bool:
        """Return whether a provider need not be read.

        Its generation does not change when allocations are deleted: where it has some of
        other consumers than the guests listed there, they are read.
        """
        room = self._rooms.get(provider.uuid)
        if room is None or room.generation != provider.generation:
            return False
        turn = zlib.crc32(provider.uuid.encode()) % EVERY_PASSES
        return room.allocations.keys() <= guests and self._passes % EVERY_PASSES != turn

    def _room(self, provider: Provider, odd: Odd) -> AllocatedAmounts | None:
        """Read a provider; None where it was deleted meanwhile, or cannot be read."""
        try:
            return self._read_room(provider)
        except exceptions.NotFound:
            return None
        except exceptions.InvalidMessage as e:
            odd.note(provider.uuid, e)
            return None

    def _read_room(self, provider: Provider) -> AllocatedAmounts:
        cached = self._rooms.pop(provider.uuid, None)
        path, get = f'/resource_providers/{provider.uuid}', self.placement.get
        if cached is not None and cached.generation == provider.generation:
            inventories, traits = cached.inventories, cached.traits
        else:
            inventories = get(f'{path}/inventories', dict[str, Amounts], 'inventories')
            traits = get(f'{path}/traits', list[str], 'traits')
        allocations_read = get(f'{path}/allocations', dict[str, Allocation], 'allocations')
        return AllocatedAmounts(
            # The content may be newer than this: then it is read once more.
            generation=provider.generation,
            inventories=inventories,
            traits=traits,
            allocations={
                consumer: allocation.resources for consumer, allocation in allocations_read.items()
            },
        )

    def _each(self, fetch: Callable[[T], R], about: Sequence[T]) -> list[R]:
        """Fetch each, some at once; the first error ends it."""
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix='nova-source')
        try:
            return list(pool.map(fetch, about))
        finally:
            pool.shutdown(cancel_futures=True)


def _worse(before: ApiService | None, now: ApiService) -> ApiService:
    """Return a service, the one of both reads whose cell was away."""
    return now if before is None or before.is_known else before


def _refuse_hidden(servers: Iterable[ApiServer]) -> None:
    """Refuse guests whose host is hidden: they would seem to have left."""
    if any(server.is_hidden for server in servers):
        raise exceptions.Misconfigured(
            option='[nova]',
            problem='the user may not see OS-EXT-SRV-ATTR:host of servers',
            fix='Let it pass the policy os_compute_api:os-extended-server-attributes of Nova',
        )
