# SPDX-License-Identifier: Apache-2.0
"""A scheduler without threads and a source that reads for it: a test makes the passes."""

import dataclasses
from typing import Any

from oslo_config import cfg

from gantt import exceptions
from gantt.compute.agent.runner import Runner
from gantt.core.claims.claim import Claim
from gantt.core.messages.report import HostReport, Registered, RegisterHost
from gantt.core.resources.host import HostRow
from gantt.nova.service.facade import NovaFacade
from gantt.nova.source import api
from gantt.nova.source.cells import Cells
from gantt.nova.source.reading import NovaReader
from gantt.nova.source.source import Source
from tests.nova_source.openstack import PASSWORD, OpenStack
from tests.world import World, sqlite_store


def a_conf(openstack: OpenStack, password: str = PASSWORD) -> cfg.ConfigOpts:
    """[nova] and [placement] as an operator fills them in."""
    conf = cfg.ConfigOpts()
    conf([], project='gantt', default_config_files=[])
    from gantt.conf import keystone as options

    options.register_opts(conf)
    conf.set_override('auth_type', 'password', 'nova')
    from keystoneauth1 import loading

    conf.register_opts(loading.get_auth_plugin_conf_options('password'), group='nova')
    for name, value in {
        'auth_url': f'{openstack.url}/identity',
        'username': 'gantt',
        'password': password,
        'project_name': 'service',
        'user_domain_name': 'Default',
        'project_domain_name': 'Default',
    }.items():
        conf.set_override(name, value, 'nova')
    return conf


class Port:
    """The scheduler's own verbs, without a broker."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.reports: list[HostReport] = []

    def register(self, message: RegisterHost) -> Registered:
        return self._world.scheduler.register_host(message)

    def report(self, report: HostReport) -> str | None:
        intake = self._world.scheduler.report_queue
        future = intake.submit(report, notify=True)
        intake.step()
        assert future is not None
        fate = future.result(0)
        if fate.outcome == 'gone':
            (row,) = [
                c.row
                for c in self._world.store.feed.load_everything().hosts
                if c.row.name == report.name
            ]
            raise exceptions.StaleEpoch(host=row.name, epoch=report.epoch, current=row.epoch)
        self.reports.append(report)
        return fate.outcome

    def confirm(self, words: Any) -> dict[str, str]:
        raise AssertionError('a source confirms nothing')

    refuse = release = confirm


class Region:
    """Nova's hosts on one side, the scheduler's on the other."""

    def __init__(
        self, openstack: OpenStack, page_size: int = 1000, cells: str = '', cell: str = ''
    ) -> None:
        self.openstack = openstack
        self.world = World(sqlite_store)
        self.port = Port(self.world)
        self.counts: dict[tuple, float] = {}
        nova, placement = (
            dataclasses.replace(read_api, pause=0.01)
            for read_api in api.apis(a_conf(openstack), 10.0)
        )
        self.now = 2_000_000_000.0
        self.reader = NovaReader(nova, placement, page_size, 4, wall=lambda: self.now)
        self._cells = Cells(cells, cell)
        self.source = self.a_source()

    def a_source(self) -> Source:
        """One that knows nothing yet."""
        return Source(
            self.reader,
            self._cells,
            self.port,
            NovaFacade(self.world.store, self.world.scheduler).source,
            Runner(threads=1),
            300.0,
            self._count,
            self._gauge,
        )

    def _count(self, name: str, value: float = 1, **labels: str) -> None:
        key = (name, *labels.values())
        self.counts[key] = self.counts.get(key, 0) + value

    def _gauge(self, name: str, value: float, **labels: str) -> None:
        self.counts[name, *labels.values()] = value

    def passes(self, times: int = 1, by: Source | None = None) -> None:
        """Read everything and tell it; time goes by."""
        source = by or self.source
        for _ in range(times):
            self.now += 60.0
            self.world.turn(60.0)
            source.step()
            for member in list(source.host_agents.values()):
                member.turn()
        self.world.turn()

    def row(self, name: str) -> HostRow:
        (row,) = [
            c.row for c in self.world.store.feed.load_everything().hosts if c.row.name == name
        ]
        return row

    def rows(self) -> set[str]:
        return {c.row.name for c in self.world.store.feed.load_everything().hosts}

    def claims(self, consumer: str) -> list[Claim]:
        return self.world.store.claims.list_claims(consumer=consumer, limit=100)

    def live(self, consumer: str) -> list[tuple[str, str]]:
        """(host, state) of the live claims of a guest."""
        return sorted((c.host, c.state.value) for c in self.claims(consumer) if c.is_live)

    def audit(self) -> None:
        audit = self.world.store.claims.audit()
        assert not any(audit.values()), audit
