# SPDX-License-Identifier: Apache-2.0
"""Zones in one process: a scheduler, an API on a port and a database each, nothing shared.

Calls between zones are real HTTP; conductors and hosts call the scheduler of their zone directly.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx2 as httpx

from gantt import plugin_loader
from gantt.cmd.http_app import make_app
from gantt.core.messages.report import ClaimUpdate, HostReport, RegisterHost
from gantt.core.messages.request import (
    CancelClaims,
    ConfirmRequest,
    ExtendClaims,
    ReleaseRequest,
    SelectDestinations,
)
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.decision import Answer, error_of
from gantt.db.schema import models
from gantt.groups.insights import HOOKS
from gantt.groups.service.group_members import GroupMembers
from gantt.http.server import HttpServer
from gantt.insights.read_model import Insights
from gantt.scheduler.host_cache import HostFollower
from gantt.scheduler.recorder import StoreRecorder
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from gantt.telemetry.metrics import MetricRegistry
from gantt.zones.client.credentials import ZoneCredentials
from gantt.zones.client.http_calls import HttpZones
from gantt.zones.conf import load_strategies
from gantt.zones.model.strategies import DEFAULT
from gantt.zones.service.context import ZoneContext
from gantt.zones.service.offers.evaluate import ZoneSelection
from gantt.zones.service.place_over_zones import place_over_zones

VERSION = {'OpenStack-API-Version': 'scheduler latest'}
#: A pipeline by which a zone prefers what zones are compared by, so that a tree may be held against
#: one zone: scales do not depend on other hosts, and what is being built has no weight, which the
#: scheduler that has placed it counts alone until hosts report it.
AS_BETWEEN_ZONES: Mapping[str, Any] = {
    'normalization': 'absolute',
    'options': {'io_ops_weight_multiplier': 0.0},
}


def until(check: Callable[[], Any], seconds: float = 20.0) -> None:
    """Until it holds; soon it has to."""
    end, rest = time.monotonic() + seconds, 0.05
    while not check():
        assert time.monotonic() < end, 'it did not come to it'
        # What takes long is asked for seldom: many a check is a call that others work for.
        time.sleep(rest)
        rest = min(1.2 * rest, 0.5)


class ZoneClient:
    """A requests client in the process of the scheduler, as gantt-api has one over RPC."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def select_destinations(self, request: SelectDestinations) -> Answer:
        answer = self._scheduler.select(request)
        error = error_of(answer)
        if error is not None:
            raise error
        return answer

    def cancel_claims(self, request_id: str, reason: str = '') -> object:
        return self._scheduler.cancel(CancelClaims(request_id=request_id, reason=reason))

    def extend_claims(self, request_id: str, seconds: int) -> object:
        return self._scheduler.extend(ExtendClaims(request_id=request_id, seconds=seconds))

    def confirm_request(self, request_id: str, consumers: Sequence[str] = ()) -> object:
        message = ConfirmRequest(request_id=request_id, consumers=list(consumers))
        return self._scheduler.confirm_request(message)

    def release_request(
        self, request_id: str, consumers: Sequence[str] = (), reason: str = ''
    ) -> object:
        message = ReleaseRequest(request_id=request_id, consumers=list(consumers), reason=reason)
        return self._scheduler.release_request(message)


class Zone:
    """One zone.  Its scheduler and its API have a follower of the database each."""

    def __init__(
        self,
        name: str,
        store: Any,
        strategies: Sequence[str] = DEFAULT,
        options: Mapping[str, Any] | None = None,
        pipeline: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.name, self.store = name, store
        self._strategies, self._options = strategies, options or {}
        self.metrics = MetricRegistry()
        loaded = plugin_loader.load_pipeline(**(pipeline or {}))
        scheduler_settings = SchedulerSettings(worker=f'{name}-{uuid.uuid4().hex[:6]}', **settings)
        self.recorder = StoreRecorder(store.records, self.metrics, 1000)
        self.scheduler = Scheduler(
            store, loaded, self.recorder, scheduler_settings, make_hook=GroupMembers
        )
        cache = HostFollower(store.feed, store.vocabulary, self.scheduler.clock)
        self.zones = self._parts(cache, loaded, scheduler_settings)
        self.over_zones = place_over_zones(store, self.scheduler, self.zones)
        self.insights = Insights(store, loaded, HOOKS, scheduler_settings, max_age=0.0)
        self.around = self._parts(self.insights.cache, loaded, scheduler_settings)
        self.client = ZoneClient(self.scheduler)
        self.app = make_app(
            self.insights, store, self.client, self.metrics, zone_context=self.around
        )
        self.server = HttpServer(self.app, '127.0.0.1', 0, 8)
        self._is_cut = False
        self.epochs: dict[str, int] = {}
        self.sequences: dict[str, int] = {}

    def _parts(
        self, cache: HostFollower, pipeline: Any, settings: SchedulerSettings
    ) -> ZoneContext:
        parts: Any = None
        credentials = ZoneCredentials('', lambda: parts.directory.own_uuid())
        calls = HttpZones(credentials, self.metrics.observe)
        parts = ZoneContext(
            self.store,
            calls,
            cache,
            lambda: pipeline,
            settings,
            self.metrics.count,
            ZoneSelection(load_strategies(self._strategies, self._options)),
        )
        return parts

    # -- life ------------------------------------------------------------------------
    def start(self) -> 'Zone':
        self.scheduler.start()
        self.server.start()
        return self

    def stop(self) -> None:
        self.cut()
        self.scheduler.stop(2.0)
        self.around.close()

    def cut(self) -> None:
        """Nobody reaches it any more; its scheduler goes on."""
        if not self._is_cut:
            self._is_cut = True
            self.server.stop(1.0)

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self.server.port}'

    @property
    def uuid(self) -> str:
        return self.around.directory.own_uuid()

    # -- who is around ---------------------------------------------------------------
    def put(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        return httpx.put(f'{self.url}{path}', json=body, headers=VERSION)

    def post(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        return httpx.post(f'{self.url}{path}', json=body, headers=VERSION, timeout=20.0)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f'{self.url}{path}', headers={**VERSION, **headers})

    def delete(self, path: str) -> httpx.Response:
        return httpx.delete(f'{self.url}{path}', headers=VERSION)

    def above(self, *children: 'Zone', **said: Any) -> 'Zone':
        """Put this zone above others, of the same owner."""
        fields = {'trusted': True, **said}
        for child in children:
            own = {'identity': self.uuid, 'project_id': f'of-{self.name}', 'trusted': True}
            assert child.put(f'/v1/parents/{self.name}', own).status_code == 200
            response = self.put(f'/v1/zones/{child.name}', {'url': child.url, **fields})
            assert response.status_code == 200, response.text
        self.zones.directory.refresh()
        return self

    def unseal(self, sealed_host: str) -> dict[str, Any]:
        """Return the host that a sealed host names in this zone."""
        response = httpx.post(
            f'{self.url}/v1/sealed-hosts', json={'sealed_host': sealed_host}, headers=VERSION
        )
        assert response.status_code == 200, response.text
        return response.json()

    def written(self) -> list[Any]:
        """What requests have written."""
        tables = (models.requests, models.claims, models.child_claims, models.decisions)
        with self.store.database.engine.connect() as connection:
            return [list(connection.execute(table.select())) for table in tables]

    def on_their_way(self) -> list[Any]:
        """Consumers of requests that may go down."""
        with self.store.database.engine.connect() as connection:
            return list(connection.execute(models.delegated_consumers.select()))

    def everything(self) -> str:
        """All that is in the database, as one text."""
        with self.store.database.engine.connect() as connection:
            return '\n'.join(
                repr(row)
                for table in models.metadata.sorted_tables
                for row in connection.execute(table.select())
            )

    # -- hosts -------------------------------------------------------------------------
    def hosts(self, count: int, vcpu: int = 8, used: int = 0, **facts: Any) -> 'Zone':
        for n in range(1, count + 1):
            self.host(f'{self.name}-{n}', vcpu, **facts)
        return self

    def host(self, name: str, vcpu: int = 8, **facts: Any) -> None:
        registered = self.scheduler.register_host(
            RegisterHost(name=name, boot_nonce=str(uuid.uuid4()))
        )
        self.epochs[name], self.sequences[name] = registered.epoch, 0
        self.report(name, vcpu, **facts)

    def report(self, name: str, vcpu: int = 8, running: Any = None, **facts: Any) -> None:
        self.sequences[name] += 1
        self.scheduler.report(
            HostReport(
                name=name,
                epoch=self.epochs[name],
                sequence=self.sequences[name],
                full=True,
                running=running,
                pending=None if running is None else [],
                inventories={
                    'VCPU': Inventory(total=vcpu),
                    'MEMORY_MB': Inventory(total=vcpu * 4096),
                    'DISK_GB': Inventory(total=1000),
                },
                **facts,
            ),
            10.0,
        )

    def confirm(self, claim_id: str) -> str:
        host = self.store.claims.load_claim(claim_id).host
        self.sequences[host] += 1
        update = ClaimUpdate(
            name=host,
            epoch=self.epochs[host],
            sequence=self.sequences[host],
            claim_ids=[claim_id],
        )
        return self.scheduler.confirm(update)[0].outcome

    # -- callers -----------------------------------------------------------------------
    def select(self, request: SelectDestinations) -> Answer:
        return self.scheduler.select(request)

    def cancel(self, request_id: str) -> None:
        self.scheduler.cancel(CancelClaims(request_id=request_id))

    def live(self) -> int:
        """Live claims here."""
        return sum(
            len(self.store.claims.list_claims(state=state, limit=1000))
            for state in ('reserved', 'confirmed')
        )
