# SPDX-License-Identifier: Apache-2.0
"""``gantt-nova-source`` as it is run: options, a broker, APIs over HTTP, a scheduler."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devel.doubles import MemoryRecorder
from gantt import client, plugin_loader
from gantt.nova.client import NovaClient
from gantt.nova.model.events import GuestLocation, NovaGuest
from gantt.nova.model.source import (
    GuestList,
    GuestListResult,
    GuestLocations,
    ListPendingMigrations,
)
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from tests.builders import a_draft, a_host, claimed, new_uuid
from tests.nemesis.site import until
from tests.nova_source.openstack import PASSWORD
from tests.rpc.bus import Bus, a_conf
from tests.world import sqlite_store

pytestmark = pytest.mark.rabbit


@pytest.fixture
def scheduler(rabbit_url: str) -> Iterator[Scheduler]:
    process = Scheduler(
        sqlite_store(SystemClock()),
        plugin_loader.load_pipeline(),
        MemoryRecorder(),
        SchedulerSettings(worker='worker-1'),
    )
    process.start()
    bus = Bus(rabbit_url, facade=process)
    yield process
    bus.close()
    process.stop(5.0)


def command(folder: Path, broker: str, openstack, password: str = PASSWORD) -> list[str]:
    path = folder / 'gantt.conf'
    path.write_text(f"""
[DEFAULT]
transport_url = {broker}
[nova_source]
interval_seconds = 5
[nova]
auth_type = password
auth_url = {openstack.url}/identity
username = gantt
password = {password}
project_name = service
user_domain_name = Default
project_domain_name = Default
region_name = one
""")
    code = 'import sys; from gantt.cmd import report_source; sys.exit(report_source.nova())'
    return [sys.executable, '-c', code, '--config-file', str(path)]


def test_a_process_tells_what_it_reads_and_stops_when_told(
    tmp_path, rabbit_url, openstack, scheduler
):
    openstack.host('cmp-1')
    guest = openstack.server('cmp-1')
    rack = openstack.aggregate('rack', 'cmp-1', availability_zone='north')
    group = openstack.group('affinity', guest)
    log = tmp_path / 'log'
    with log.open('wb') as out:
        process = subprocess.Popen(
            command(tmp_path, rabbit_url, openstack),
            stdout=out,
            stderr=out,
            env=os.environ | {'PYTHONWARNINGS': 'ignore'},
        )
    store = scheduler.stores
    try:
        (claim,) = until(
            lambda: store.claims.list_claims(consumer=guest), f'its guest: {log.read_text()}', 60
        )
        assert (claim.host, claim.state, claim.adopted) == ('cmp-1', 'confirmed', True)
        (host,) = until(
            lambda: [c.row for c in store.feed.load_everything().hosts if c.row.reported_at],
            f'its report: {log.read_text()}',
        )
        assert host.cap('MEMORY_MB') == 32768
        assert claim.group == group
        assert store.groups.load_group(group).policy == 'affinity'
        (aggregate,) = store.feed.load_everything().aggregates
        assert (aggregate.uuid, aggregate.hosts) == (rack['uuid'], ['cmp-1'])
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, log.read_text()


def test_moves_are_asked_for_and_settled_over_the_broker(rabbit_url, scheduler):
    store, carrier = scheduler.stores, client.get_transport(a_conf(rabbit_url))
    source, target = (a_host(name).on(store, reporter='nova') for name in ('cmp-1', 'cmp-2'))
    guest = new_uuid()
    nova = NovaClient(carrier, timeout=10.0)
    try:
        claimed(store, a_draft().taking(source, guest))
        for host in (source, target):
            guests = [NovaGuest(consumer=guest)] if host is source else []
            heard = nova.sync_guests(GuestList(host=host.name, requested_at=1.0, guests=guests))
            assert heard == GuestListResult()
        move = a_draft().taking(target, guest, purpose='resize', move_id=new_uuid())
        claimed(store, move)
        asked = nova.list_open_moves(ListPendingMigrations(seconds=0.0))
        assert [(m.consumer, m.source, m.target) for m in asked.moves] == [
            (guest, 'cmp-1', 'cmp-2')
        ]
        location = GuestLocation(consumer=guest, host='cmp-1', cutoff=asked.cutoff + 60.0)
        nova.update_guest_locations(GuestLocations(guests=[location]))
        live = [(c.host, c.state) for c in store.claims.list_claims(consumer=guest) if c.is_live]
        assert live == [('cmp-1', 'confirmed')]
        assert nova.list_open_moves(ListPendingMigrations(seconds=0.0)).moves == []
    finally:
        carrier.cleanup()


def test_wrong_credentials_end_it_with_one_line(tmp_path, rabbit_url, openstack):
    process = subprocess.run(
        command(tmp_path, rabbit_url, openstack, 'wrong'),
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {'PYTHONWARNINGS': 'ignore'},
    )
    assert process.returncode == 1
    (text,) = [
        line for line in process.stderr.splitlines() if line.startswith('gantt-nova-source: ')
    ]
    assert '[nova]' in text
    assert 'requires authentication' in text
