# SPDX-License-Identifier: Apache-2.0
"""Hosts of a file: what is said of them, what is not, and a file that is wrong."""

import os
import time

import pytest

from gantt import exceptions
from gantt.compute.agent.host_agent import HostAgentSettings
from gantt.compute.agent.runner import Runner
from gantt.compute.report_only import ReportOnly, load
from gantt.core.messages.report import Running
from tests.compute.hosts_in_memory import SMALL, new_uuid

UUID = '11111111-1111-1111-1111-111111111111'
CELL = '22222222-2222-2222-2222-222222222222'

FILE = f"""
shapes:
  - {{name: blade, vcpus: 16, memory_mb: 65536, disk_gb: 500, traits: [CUSTOM_BLADE]}}
hosts:
  - name: compute-7
    node: compute-7.example.org
    uuid: {UUID}
    cell: {CELL}
    zone: az-2
    location: site.room.rack
    aggregates: [rack-4]
    traits: [CUSTOM_SSD]
    inventories: {{VCPU: {{total: 32, allocation_ratio: 4.0}}, MEMORY_MB: 131072}}
    used: {{VCPU: 5}}
  - name: compute-8
    shape: blade
    inventories: {{VCPU: 8}}
    running: []
"""


@pytest.fixture
def path(tmp_path):
    hosts_file = tmp_path / 'hosts.yaml'
    hosts_file.write_text(FILE)
    return hosts_file


def rows(memory_hosts):
    return {c.row.name: c.row for c in memory_hosts.store.feed.load_everything().hosts}


def turns(hosts: ReportOnly, count: int = 1) -> None:
    for _ in range(count):
        for member in hosts.host_agents.values():
            member.turn()


@pytest.fixture
def hosts(path, memory_hosts):
    """Nobody runs them: a test gives the turns."""
    reporter = ReportOnly(
        str(path), memory_hosts.port, Runner(threads=1), HostAgentSettings(report_seconds=60)
    )
    reporter.start()
    turns(reporter)
    return reporter


def rewrite(path, text: str) -> None:
    """A change that shows also where the clock of the file system is coarse."""
    path.write_text(text)
    later = time.time_ns() + 10**9
    os.utime(path, ns=(later, later))


def test_what_the_file_says_is_reported(memory_hosts, hosts):
    row = rows(memory_hosts)['compute-7']
    assert (row.node, row.uuid, row.cell, row.zone) == ('compute-7.example.org', UUID, CELL, 'az-2')
    assert row.facts.location == 'site.room.rack'
    assert row.facts.traits == ['CUSTOM_SSD']
    assert row.facts.inventories['VCPU'].cap == 128
    assert row.facts.inventories['MEMORY_MB'].total == 131_072
    assert row.foreign == {'VCPU': 5}
    blade = rows(memory_hosts)['compute-8']
    assert {n: i.total for n, i in blade.facts.inventories.items()} == {
        'VCPU': 8,
        'MEMORY_MB': 65_536,
        'DISK_GB': 500,
    }
    assert blade.facts.traits == ['CUSTOM_BLADE']


def test_a_host_of_which_nothing_is_said_frees_nothing(memory_hosts, hosts):
    build = memory_hosts.claim('compute-7', VCPU=2)
    words = hosts.host_agents['compute-7'].session
    stamp = words.stamp()
    from gantt.core.messages.report import ClaimUpdate

    memory_hosts.port.confirm(
        ClaimUpdate(
            name='compute-7', epoch=stamp.epoch, sequence=stamp.sequence, claim_ids=[build.claim_id]
        )
    )
    turns(hosts, 12)
    assert all(r.running is None for r in memory_hosts.port.reports if r.name == 'compute-7')
    assert memory_hosts.state(build) == 'confirmed'


def test_what_runs_is_adopted_and_what_is_gone_is_released(memory_hosts, path, hosts):
    guest = Running(consumer=new_uuid(), resources=SMALL)
    rewrite(
        path,
        FILE.replace(
            'running: []',
            f'running: [{{consumer: {guest.consumer}, '
            'resources: {VCPU: 2, MEMORY_MB: 1024, DISK_GB: 10}}]',
        ),
    )
    hosts.turn()
    turns(hosts)
    (claim,) = memory_hosts.adopted()
    assert (claim.consumer, claim.host) == (guest.consumer, 'compute-8')
    rewrite(path, FILE + '\n')
    hosts.turn()
    turns(hosts)
    assert memory_hosts.store.claims.load_claim(claim.id).state == 'released'


def test_a_change_of_the_file_is_taken_over(memory_hosts, path, hosts):
    rewrite(path, FILE.replace('zone: az-2', 'zone: az-3').replace('CUSTOM_SSD', 'CUSTOM_HDD'))
    hosts.turn()
    turns(hosts)
    row = rows(memory_hosts)['compute-7']
    assert (row.zone, row.facts.traits) == ('az-3', ['CUSTOM_HDD'])


def test_hosts_come_and_go_with_the_file(memory_hosts, path, hosts):
    head, _, _ = FILE.partition('  - name: compute-8')
    rewrite(path, head + '  - {name: compute-9, shape: blade}\n')
    hosts.turn()
    turns(hosts)
    assert sorted(hosts.host_agents) == ['compute-7', 'compute-9']
    assert 'compute-9' in rows(memory_hosts)
    reports_before = len([r for r in memory_hosts.port.reports if r.name == 'compute-8'])
    turns(hosts)
    assert len([r for r in memory_hosts.port.reports if r.name == 'compute-8']) == reports_before


def test_a_change_with_an_error_in_it_is_refused_whole(memory_hosts, path, hosts, caplog):
    rewrite(path, FILE.replace('zone: az-2', 'zone: az-3') + '  - {name: compute-9}\n')
    hosts.turn()
    turns(hosts)
    assert rows(memory_hosts)['compute-7'].zone == 'az-2'
    assert 'hosts[2] (compute-9).inventories: expected at least one class' in caplog.text
    path.unlink()
    hosts.turn()
    assert sorted(hosts.host_agents) == ['compute-7', 'compute-8']
    assert 'No such file' in caplog.text


@pytest.mark.parametrize(
    ('entry', 'problem'),
    [
        (
            '{name: a, inventory: {}}',
            r"hosts\[0\] \(a\).inventory: unknown field; did you mean 'inventories'",
        ),
        (
            '{name: a, inventories: {VCPU: -1}}',
            r'hosts\[0\] \(a\).inventories\S*: expected a whole number',
        ),
        (
            '{name: a, inventories: {VCPUS: 1}}',
            r"hosts\[0\] \(a\).inventories.VCPUS: resource class 'VCPUS'",
        ),
        (
            '{name: a, inventories: {VCPU: {total: 4, reserved: 5}}}',
            r'hosts\[0\] \(a\).inventories.VCPU.reserved: expected 0 to total',
        ),
        ('{name: a, uuid: x, inventories: {VCPU: 1}}', r'hosts\[0\] \(a\).uuid: expected a UUID'),
        (
            '{name: a, shape: none}',
            r'hosts\[0\] \(a\).shape: expected one of the shapes of this file',
        ),
        ('{inventories: {VCPU: 1}}', r'hosts\[0\].name: required field is missing'),
        (
            '{name: a, inventories: {VCPU: 1}}, {name: a, inventories: {VCPU: 1}}',
            r"hosts\[1\] \(a\).name: expected each host once; got 'a' twice",
        ),
        (
            '{name: a, inventories: {VCPU: 1}, used: {VCPU: 1}, foreign: {}}',
            r'hosts\[0\] \(a\).used: expected only one of foreign and used',
        ),
        (
            '{name: a, inventories: {VCPU: 1}, running: [{consumer: x}]}',
            r'hosts\[0\] \(a\).running\[0\].consumer: expected a UUID',
        ),
        ('', 'hosts: expected at least one'),
    ],
)
def test_a_wrong_file_is_refused_naming_file_entry_and_field(tmp_path, entry, problem):
    path = tmp_path / 'hosts.yaml'
    path.write_text(f'hosts: [{entry}]')
    with pytest.raises(exceptions.InvalidMessage, match=problem) as caught:
        load(str(path))
    assert str(caught.value).startswith(str(path))


def test_a_file_that_is_not_there_is_refused_naming_the_option(tmp_path):
    with pytest.raises(exceptions.Misconfigured, match='--report-only: .*No such file'):
        load(str(tmp_path / 'nothing.yaml'))
