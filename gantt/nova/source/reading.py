# SPDX-License-Identifier: Apache-2.0
"""Pass over both APIs: everything that is read each time, as one snapshot; and the names of hosts.

An incomplete answer is not used at all: with half a list, the other guests
would seem deleted.

A host is named as its service.  Where a driver runs many nodes, as Ironic's does, each of
them is a host with its own name.  Ambiguous nodes get no name: guests name their host and
node, and those of one would be taken for those of the other.
"""

import dataclasses
import logging
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from gantt import exceptions
from gantt.nova.source.api import Api
from gantt.nova.source.api import MalformedHandler as OddEntry
from gantt.nova.source.nova_api_types import (
    HOST_KEY,
    UNKNOWN,
    Allocation,
    Amounts,
    ApiAggregate,
    ApiHypervisor,
    ApiProviderDetails,
    ApiServer,
    ApiServerGroup,
    ApiService,
    Migration,
    Provider,
)

#: Drivers whose service runs many nodes.
MANY_NODE_TYPES = frozenset({'ironic'})
AMBIGUOUS_NAME = (
    'Nova has several of this name, in several cells, and their guests cannot be told apart: '
    'give each nova-compute a [DEFAULT] host of its own'
)


class HostNames(msgspec.Struct, frozen=True):
    """Names of hosts.

    :ivar of: (service host, node) -> name; also (service host, '') where it has one node
    :ivar silent: name -> why it is not reported as a host
    """

    of: dict[tuple[str, str], str]
    silent: dict[str, str]

    def name_of(self, host: str | None, node: str | None) -> str | None:
        """Return the host name of a service host and node; None: it is not known."""
        return self.of.get((host or '', node or '')) or self.of.get((host or '', ''))


def host_names(
    nodes: Sequence[ApiHypervisor],
    doubled: Set[str],
    declared_hosts: Mapping[str, str],
    with_inventory: Set[str],
) -> HostNames:
    """Return the names of all nodes.

    :param doubled: hosts of more than one service
    :param declared_hosts: host -> uuid of the node that was taken for it before
    :param with_inventory: uuids of nodes that Placement has an inventory of
    """
    nodes_of_service: dict[str, list[ApiHypervisor]] = defaultdict(list)
    for node in nodes:
        nodes_of_service[node.service.host].append(node)
    nodes_of_name: dict[str, list[ApiHypervisor]] = defaultdict(list)
    silent = dict.fromkeys(doubled, AMBIGUOUS_NAME)
    for host, service_nodes in nodes_of_service.items():
        for node in service_nodes:
            if node.type in MANY_NODE_TYPES:
                nodes_of_name[node.node].append(node)
        single_nodes = [node for node in service_nodes if node.type not in MANY_NODE_TYPES]
        if len({node.node for node in single_nodes}) < len(single_nodes):
            silent[host] = AMBIGUOUS_NAME
        elif single_nodes:
            chosen = _node_in_use(single_nodes, declared_hosts.get(host), with_inventory)
            nodes_of_name[host].append(chosen)
            silent |= {
                f'{host} ({node.node})': _left_over_text(node, chosen)
                for node in single_nodes
                if node is not chosen
            }
    names: dict[tuple[str, str], str] = {}
    for name, candidates in nodes_of_name.items():
        if len(candidates) > 1 or candidates[0].service.host in doubled:
            silent[name] = AMBIGUOUS_NAME
            continue
        (node,) = candidates
        names[node.service.host, node.node] = name
        if node.type not in MANY_NODE_TYPES:
            names[node.service.host, ''] = name
    return HostNames(names, silent)


def _node_in_use(
    nodes: list[ApiHypervisor], before: str | None, with_inventory: Set[str]
) -> ApiHypervisor:
    """Return the node in use of a service that runs one node, where several are listed."""
    candidates = [node for node in nodes if node.id in with_inventory] or nodes
    candidates = [node for node in candidates if node.state != 'down'] or candidates
    unchanged = [node for node in candidates if node.id.lower() == before]
    # Nova lists them in the order of creation: the newest is the last.
    return (unchanged or candidates)[-1]


def _left_over_text(node: ApiHypervisor, taken: ApiHypervisor) -> str:
    return (
        f'service {node.service.host} runs one node, and {taken.node} ({taken.id}) is taken for '
        f'it: node {node.id} is left over, let Nova forget it. Is it the other way round, restart '
        'this source when that is done'
    )


# -- Entries of a list that are of another shape than expected, and the hosts they affect.
class MalformedEntries:
    """Malformed entries of the answers in one reading of Nova.

    :ivar about: service host, node or uuid of a node -> the problem
    :ivar servers: uuid of a server -> its host
    :ivar aggregates: uuid -> the problem; '': of one without uuid
    :ivar groups: uuid of a server group -> the problem; '': of one without uuid
    """

    def __init__(self) -> None:
        self.about: dict[str, str] = {}
        self.servers: dict[str, str | None] = {}
        self.aggregates: dict[str, str] = {}
        self.groups: dict[str, str] = {}

    def note(self, about: str | None, error: object) -> None:
        """Record a host or node of which nothing is to be reported, and the error."""
        if about:
            self.about.setdefault(about, str(error))
        else:
            LOG.warning('Entry names no host or guest and is skipped: error=%s', error)

    def about_field(self, key: str) -> OddEntry:
        """Return a handler of entries that name their subject in one field."""
        return lambda entry, error: self.note(_text_at(entry, key), error)

    def hypervisor(self, entry: Any, error: exceptions.InvalidMessage) -> None:
        """Record an entry of ``os-hypervisors``."""
        node = _text_at(entry, 'hypervisor_hostname')
        if _text_at(entry, 'hypervisor_type') in MANY_NODE_TYPES:
            self.note(node, error)
        else:
            self.note(_text_at(entry, 'service', 'host') or node, error)

    def server(self, entry: Any, error: exceptions.InvalidMessage) -> None:
        """Record an entry of ``servers``: a missing one would seem a deleted guest.

        :raises InvalidMessage: its host is unknown
        """
        uuid = _text_at(entry, 'id')
        if uuid is None or HOST_KEY not in entry:
            raise error
        host = _text_at(entry, HOST_KEY)
        if host is None and entry[HOST_KEY] is not None:
            raise error
        self.servers[uuid] = host
        if host is not None:
            self.note(host, error)

    def migration(self, entry: Any, error: exceptions.InvalidMessage) -> None:
        """Record an entry of ``os-migrations``: a guest on its way may be at either end.

        :raises InvalidMessage: its source is unknown
        """
        source = _text_at(entry, 'source_compute')
        if source is None:
            raise error
        for host in (source, _text_at(entry, 'dest_compute')):
            self.note(host or source, error)

    def record_problem(self, problems: dict[str, str], key: str) -> OddEntry:
        """Return a handler of aggregates and groups: an unreadable one is not deleted."""

        def note(entry: Any, error: exceptions.InvalidMessage) -> None:
            problems[(_text_at(entry, key) or '').lower()] = str(error)

        return note


def _text_at(entry: Any, *keys: str) -> str | None:
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
REQUESTED_GUESTS_MAX = 1000
#: Passes in which the allocations of each provider are read at least once.
FULL_READ_PASSES = 10


class NovaSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Answers of both APIs in one reading.

    :ivar requested_at: when reading began, seconds since 1970
    :ivar database_time: when reading began by the database's clock; None: unknown
    :ivar services: service host -> service
    :ivar open_migrations: migrations that are not over, by instance
    :ivar provider_details: by uuid of the provider, which is the hypervisor's
    :ivar doubtful: uuids of hypervisors that may have guests which ``servers`` misses
    :ivar doubled: hosts that several services have, each in a cell of its own
    :ivar malformed: subjects of unreadable entries: see :class:`MalformedEntries`
    :ivar aggregate_problems: aggregates that stay unchanged, by uuid, and the reason
    :ivar group_problems: server groups that are skipped, by uuid, and the reason
    """

    requested_at: float
    database_time: float | None = None
    services: dict[str, ApiService]
    nodes: list[ApiHypervisor]
    servers: list[ApiServer]
    open_migrations: dict[str, list[Migration]]
    aggregates: list[ApiAggregate]
    groups: list[ApiServerGroup]
    provider_details: dict[str, ApiProviderDetails]
    doubtful: frozenset[str] = frozenset()
    doubled: frozenset[str] = frozenset()
    malformed: dict[str, str] = {}
    aggregate_problems: dict[str, str] = {}
    group_problems: dict[str, str] = {}


class GuestLookup(msgspec.Struct, frozen=True):
    """Answer of Nova to a query for one guest.

    :ivar server: None: there is no such guest (any more)
    """

    server: ApiServer | None


@dataclasses.dataclass(eq=False)
class NovaReader:
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
        self._provider_details: dict[str, ApiProviderDetails] = {}
        self._host_by_guest: dict[str, str] = {}
        self._unknown_consumers: set[str] = set()
        self._passes = 0

    def read(self, database_time: float | None = None) -> NovaSnapshot:
        """Read everything.

        :param database_time: time of the database's clock now, at the earliest
        :raises Misconfigured: credentials or addresses are wrong
        :raises Unavailable, InvalidMessage, NotFound: one of the answers cannot be used
        """
        for api in (self.nova, self.placement):
            api.set_time_limit(self.seconds)
        nova, requested_at, malformed = self.nova, self.wall(), MalformedEntries()
        services_before, doubled = self._services(malformed)
        nodes = list(
            nova.pages(
                '/os-hypervisors/detail',
                ApiHypervisor,
                'hypervisors',
                self.page_size,
                on_malformed=malformed.hypervisor,
            )
        )
        aggregates = nova.entries(
            '/os-aggregates',
            ApiAggregate,
            'aggregates',
            malformed.record_problem(malformed.aggregates, 'uuid'),
        )
        groups = nova.pages(
            '/os-server-groups',
            ApiServerGroup,
            'server_groups',
            self.page_size,
            by='',
            on_malformed=malformed.record_problem(malformed.groups, 'id'),
            all_projects='True',
        )
        servers = list(
            nova.pages(
                '/servers/detail',
                ApiServer,
                'servers',
                self.page_size,
                on_malformed=malformed.server,
                **ALL_SERVERS,
            )
        )
        _refuse_hidden(servers)
        # A cell may have gone away while its guests were to be read.
        services_after, more_doubled = self._services(malformed)
        services = {
            host: _worse_state(services_before.get(host), service)
            for host, service in services_after.items()
        }
        self._passes += 1
        provider_details = self._read_providers(nodes, servers, malformed)
        missed, doubtful = self._look_for_missing(servers, nodes, provider_details, malformed)
        servers += missed
        moving = [server.id for server in servers if server.may_move] + list(malformed.servers)
        migration_lists = self._fetch_all(
            lambda server_id: self.migrations(server_id, malformed.migration), moving
        )
        moves = dict(zip(moving, migration_lists, strict=True))
        for server in malformed.servers:
            for move in moves[server]:
                malformed.note(
                    move.source_compute, f'server {server}, which was there, cannot be read'
                )
        return NovaSnapshot(
            requested_at=requested_at,
            database_time=database_time,
            services=services,
            nodes=nodes,
            servers=servers,
            open_migrations=moves,
            aggregates=aggregates,
            groups=list(groups),
            provider_details=provider_details,
            doubtful=doubtful,
            doubled=doubled | more_doubled,
            malformed=malformed.about,
            aggregate_problems=malformed.aggregates,
            group_problems=malformed.groups,
        )

    def _services(
        self, malformed: MalformedEntries
    ) -> tuple[dict[str, ApiService], frozenset[str]]:
        """Return services by host, and the hosts that have several."""
        path = '/os-services'
        try:
            services = self.nova.entries(
                path, ApiService, 'services', malformed.about_field('host'), binary='nova-compute'
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
        provider_details: dict[str, ApiProviderDetails],
        malformed: MalformedEntries,
    ) -> tuple[list[ApiServer], frozenset[str]]:
        """Return guests that the list missed, and the hypervisors whose guests are uncertain."""
        listed_ids = {server.id for server in servers} | malformed.servers.keys()
        nodes_of: dict[str, set[str]] = defaultdict(set)
        nodes_of_guest: dict[str, set[str]] = defaultdict(set)
        for node in nodes:
            nodes_of[node.service.host].add(node.id)
            for consumer in (
                provider_details[node.id].allocations if node.id in provider_details else ()
            ):
                nodes_of_guest[consumer].add(node.id)
        # Migrations and leaks are no guests, and stay none.
        self._unknown_consumers &= nodes_of_guest.keys()
        self._unknown_consumers -= listed_ids
        for guest, host in self._host_by_guest.items():
            nodes_of_guest[guest] |= nodes_of[host]
        unlisted = [
            guest_id
            for guest_id in nodes_of_guest
            if guest_id not in listed_ids and guest_id not in self._unknown_consumers
        ]
        batch = unlisted[:REQUESTED_GUESTS_MAX]
        answers = dict(zip(batch, self._fetch_all(self._server, batch), strict=True))
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
        self._unknown_consumers |= deleted & nodes_of_guest.keys()
        uncertain_ids = uncertain | malformed.servers.keys()
        known_hosts = {
            guest_id: self._host_by_guest[guest_id]
            for guest_id in uncertain_ids
            if guest_id in self._host_by_guest
        }
        self._host_by_guest = known_hosts | {
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

    def migrations(self, instance: str, on_malformed: OddEntry | None = None) -> list[Migration]:
        """Return the newest migration of an instance, where it is open.

        An older one that never ended does not go on: an instance has one at a time.
        """
        moves = self.nova.entries(
            '/os-migrations', Migration, 'migrations', on_malformed, instance_uuid=instance
        )
        newest = max(moves, key=lambda move: move.age, default=None)
        return [newest] if newest is not None and newest.is_open else []

    def find_guest(self, instance: str) -> GuestLookup | None:
        """Return where an instance without open migration is; None with one, or if unknown.

        :raises Unavailable, Misconfigured, InvalidMessage: the answer could not be read
        """
        if self.migrations(instance):
            return None
        server = self._server(instance)
        if server is None:
            return GuestLookup(None)
        return None if server.may_move or not server.is_known else GuestLookup(server)

    # -- Placement -----------------------------------------------------------------
    def _read_providers(
        self,
        nodes: Sequence[ApiHypervisor],
        servers: Iterable[ApiServer],
        malformed: MalformedEntries,
    ) -> dict[str, ApiProviderDetails]:
        """Read providers; inventories and traits of an unchanged generation are not read again."""
        providers = {
            provider.uuid: provider
            for provider in self.placement.entries(
                '/resource_providers', Provider, 'resource_providers', malformed.about_field('uuid')
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
            if not self._is_unchanged(provider, guests)
        ]
        details_read = self._fetch_all(
            lambda provider: self._read_if_readable(provider, malformed), changed
        )
        details_by_uuid = dict(
            zip([provider.uuid for provider in changed], details_read, strict=True)
        )
        provider_details = {
            uuid: details_by_uuid[uuid] if uuid in details_by_uuid else self._provider_details[uuid]
            for uuid in provider_of_node
        }
        self._provider_details = {
            uuid: details for uuid, details in provider_details.items() if details is not None
        }
        return self._provider_details

    def _is_unchanged(self, provider: Provider, guests: Set[str]) -> bool:
        """Return whether a provider need not be read.

        Its generation does not change when allocations are deleted: where it has some of
        other consumers than the guests listed there, they are read.
        """
        details = self._provider_details.get(provider.uuid)
        if details is None or details.generation != provider.generation:
            return False
        turn = zlib.crc32(provider.uuid.encode()) % FULL_READ_PASSES
        return details.allocations.keys() <= guests and self._passes % FULL_READ_PASSES != turn

    def _read_if_readable(
        self, provider: Provider, malformed: MalformedEntries
    ) -> ApiProviderDetails | None:
        """Read a provider; None where it was deleted meanwhile, or cannot be read."""
        try:
            return self._read_provider(provider)
        except exceptions.NotFound:
            return None
        except exceptions.InvalidMessage as e:
            malformed.note(provider.uuid, e)
            return None

    def _read_provider(self, provider: Provider) -> ApiProviderDetails:
        cached = self._provider_details.pop(provider.uuid, None)
        path, get = f'/resource_providers/{provider.uuid}', self.placement.get
        if cached is not None and cached.generation == provider.generation:
            inventories, traits = cached.inventories, cached.traits
        else:
            inventories = get(f'{path}/inventories', dict[str, Amounts], 'inventories')
            traits = get(f'{path}/traits', list[str], 'traits')
        allocations_read = get(f'{path}/allocations', dict[str, Allocation], 'allocations')
        return ApiProviderDetails(
            # The content may be newer than this: then it is read once more.
            generation=provider.generation,
            inventories=inventories,
            traits=traits,
            allocations={
                consumer: allocation.resources for consumer, allocation in allocations_read.items()
            },
        )

    def _fetch_all(self, fetch: Callable[[T], R], about: Sequence[T]) -> list[R]:
        """Fetch each item, several at once; the first error ends all."""
        pool = ThreadPoolExecutor(self.threads, thread_name_prefix='nova-source')
        try:
            return list(pool.map(fetch, about))
        finally:
            pool.shutdown(cancel_futures=True)


def _worse_state(before: ApiService | None, now: ApiService) -> ApiService:
    """Return a service as of two reads: that of the read in which its cell was away."""
    return now if before is None or before.is_known else before


def _refuse_hidden(servers: Iterable[ApiServer]) -> None:
    """Refuse guests whose host is hidden: they would seem to have left."""
    if any(server.is_hidden for server in servers):
        raise exceptions.Misconfigured(
            option='[nova]',
            problem='the user may not see OS-EXT-SRV-ATTR:host of servers',
            fix='Let it pass the policy os_compute_api:os-extended-server-attributes of Nova',
        )
