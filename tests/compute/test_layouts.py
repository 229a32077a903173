# SPDX-License-Identifier: Apache-2.0
"""The second check of a layout, on the host itself."""

import msgspec
import pytest

from gantt.compute.agent import running_guests
from gantt.compute.agent.journal import PENDING, RUNNING, JournalEntry
from gantt.compute.ports import HostReadings
from gantt.core.messages.build import Build
from gantt.core.messages.report import NumaCell, NumaPages
from tests.compute.hosts_in_memory import new_uuid

CELL = NumaCell(
    id=0,
    pinned_cpus=[0, 1, 2, 3],
    memory_mb=4096,
    pages=[NumaPages(size_kb=2048, total=1024, used=512)],
)


def a_layout(*cpus, memory_mb=256, page_kb=2048):
    pins = [[i, cpu] for i, cpu in enumerate(cpus)]
    return {
        'cells': [
            {
                'cell': 0,
                'memory_mb': memory_mb,
                'page_kb': page_kb,
                'vcpus': list(range(len(cpus))),
                'pins': pins,
            }
        ]
    }


def a_build(layout):
    return Build(
        claim_id=new_uuid(), consumer=new_uuid(), host='cmp-1', resources={}, layout=layout
    )


def check(layout, *entries):
    facts = running_guests.outside_claims(HostReadings(inventories={}, numa=[CELL]), entries)
    return running_guests.check_build(a_build(layout), facts, {}, {}, entries).reason


def test_a_layout_that_nobody_else_has_is_fine():
    assert check(a_layout(0, 1)) == ''
    assert check(None) == ''


@pytest.mark.parametrize('state', [PENDING, RUNNING])
def test_cores_of_another_guest_are_not_given_again(state):
    other = JournalEntry(build=a_build(a_layout(1, 2)), state=state)
    assert check(a_layout(0, 3), other) == ''
    assert check(a_layout(0, 1), other) == 'processors 1 of NUMA cell 0 are not free'


def test_pages_that_a_guest_of_ours_uses_are_counted_once():
    running = JournalEntry(build=a_build(a_layout(0, memory_mb=1024)), state=RUNNING)
    assert check(a_layout(1, memory_mb=1024), running) == ''
    assert 'less than 1026 MiB' in check(a_layout(1, memory_mb=1026), running)
    assert 'less than 1026 MiB' in check(a_layout(1, memory_mb=1026))
    facts = running_guests.outside_claims(HostReadings(inventories={}, numa=[CELL]), [running])
    assert facts.numa[0].pages[0].used == 0
    pending = msgspec.structs.replace(running, state=PENDING)
    assert running_guests.outside_claims(facts, [pending]) is facts


def test_a_layout_that_cannot_be_read_is_refused_by_name():
    assert check({'cells': [{'cell': 0, 'colour': 1}]}).startswith('build.layout.cells[0].colour')


def test_the_agent_refuses_what_does_not_hold(memory_hosts, house):
    build = msgspec.structs.replace(memory_hosts.claim('cmp-1'), layout=a_layout(0))
    outcome = house.agent.build(build)
    assert (outcome.outcome, outcome.reason) == ('refused', 'the host has no NUMA cell 0')
    assert memory_hosts.state(build) == 'refused'
    assert house.machine.starts == []
