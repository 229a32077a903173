# SPDX-License-Identifier: Apache-2.0
"""What a process remembers of the facts that hosts state."""

import msgspec

from gantt.core.messages.report import NumaCell, ReportedMetric
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostFacts
from gantt.db.hosts import details, rows
from tests.builders import a_host

NOTHING = details.details_of({}, [], [])
DISKS = {'DISK_GB': Inventory(total=9)}


def said(load: float) -> str:
    facts = HostFacts(metrics={'load': ReportedMetric(value=load)})
    return msgspec.json.encode(facts).decode()


def test_hosts_that_say_the_same_share_one_object():
    memory = rows.RowCache()
    first = memory.decode(said(0.5), NOTHING)
    assert memory.decode(said(0.5), NOTHING) is first
    assert memory.decode(said(0.6), NOTHING) is not first


def test_what_few_hosts_say_is_forgotten_soon():
    """All that is told apart by a metric is said once, and never again."""
    memory = rows.RowCache()
    first = memory.decode(said(0.0), NOTHING)
    for n in range(rows.FACTS_MIN - 1):
        memory.decode(said(1.0 + n), NOTHING)
    assert memory.decode(said(0.0), NOTHING) is first
    for n in range(rows.FACTS_MIN):
        memory.decode(said(2.0 + rows.FACTS_MIN + n), NOTHING)
    assert memory.decode(said(0.0), NOTHING) is not first


def cells(used):
    return [NumaCell(id=n, cpus=[2 * n, 2 * n + 1], cpu_used=used) for n in range(2)]


def test_hosts_of_one_model_share_their_cells():
    memory = details.DetailsCache()
    facts = [HostFacts(numa=cells(0), location=f'rack-{n}') for n in range(3)]
    shared = [memory.sharing(host_facts) for host_facts in facts]
    assert shared == facts
    assert all(host_facts.numa is facts[0].numa for host_facts in shared)
    assert memory.sharing(HostFacts(numa=cells(1))).numa == cells(1)


def test_as_many_different_parts_are_remembered_as_may_be():
    memory = details.DetailsCache()
    first = memory.sharing(HostFacts(numa=cells(0))).numa
    for used in range(1, details.PARTS_MAX + 1):
        memory.sharing(HostFacts(numa=cells(used)))
    assert memory.sharing(HostFacts(numa=cells(0))).numa is not first
    assert len(memory._parts) == details.PARTS_MAX


def test_what_many_have_is_remembered_once_and_not_for_ever():
    memory = details.DetailsCache()
    in_racks = [details.details_of(DISKS, ['HW_CPU_X86_AVX2'], [f'rack-{n}']) for n in range(3)]
    shared = [memory.shared(host_details, most=0) for host_details in in_racks]
    assert shared == in_racks
    assert len({id(host_details.inventories) for host_details in shared}) == 1
    assert len({id(host_details.traits) for host_details in shared}) == 1
    assert memory.by_digest(in_racks[0].digest) is shared[0]
    for n in range(details.DETAILS_MIN):
        memory.shared(details.details_of({}, [f'T{n}'], []), most=0)
    assert memory.by_digest(in_racks[0].digest) is None
    assert len(memory._details_by_digest) == details.DETAILS_MIN


def test_cells_are_shared_by_whoever_reports_and_whoever_reads(store):
    for name in ('one', 'two'):
        a_host(name).having(numa=cells(0)).on(store)
    numas = [change.row.facts.numa for change in store.feed.load_everything().hosts]
    assert numas == [cells(0), cells(0)]
    assert numas[0] is numas[1]
