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
    memory = rows.Memory()
    first = memory.decode(said(0.5), NOTHING)
    assert memory.decode(said(0.5), NOTHING) is first
    assert memory.decode(said(0.6), NOTHING) is not first


def test_what_few_hosts_say_is_forgotten_soon():
    """All that is told apart by a metric is said once, and never again."""
    memory = rows.Memory()
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
    known = details.KnownDetails()
    facts = [HostFacts(numa=cells(0), location=f'rack-{n}') for n in range(3)]
    shared = [known.sharing(one) for one in facts]
    assert shared == facts
    assert all(one.numa is facts[0].numa for one in shared)
    assert known.sharing(HostFacts(numa=cells(1))).numa == cells(1)


def test_as_many_different_parts_are_remembered_as_may_be():
    known = details.KnownDetails()
    first = known.sharing(HostFacts(numa=cells(0))).numa
    for used in range(1, details.PARTS_MAX + 1):
        known.sharing(HostFacts(numa=cells(used)))
    assert known.sharing(HostFacts(numa=cells(0))).numa is not first
    assert len(known._parts) == details.PARTS_MAX


def test_what_many_have_is_remembered_once_and_not_for_ever():
    known = details.KnownDetails()
    made = [details.details_of(DISKS, ['HW_CPU_X86_AVX2'], [f'rack-{n}']) for n in range(3)]
    shared = [known.shared(one, most=0) for one in made]
    assert shared == made
    assert len({id(one.inventories) for one in shared}) == 1
    assert len({id(one.traits) for one in shared}) == 1
    assert known.known(made[0].digest) is shared[0]
    for n in range(details.DETAILS_MIN):
        known.shared(details.details_of({}, [f'T{n}'], []), most=0)
    assert known.known(made[0].digest) is None
    assert len(known._known) == details.DETAILS_MIN


def test_cells_are_shared_by_whoever_reports_and_whoever_reads(store):
    for name in ('one', 'two'):
        a_host(name).having(numa=cells(0)).on(store)
    found = [change.row.facts.numa for change in store.feed.load_everything().hosts]
    assert found == [cells(0), cells(0)]
    assert found[0] is found[1]
