# SPDX-License-Identifier: Apache-2.0
"""What a process remembers of the facts that hosts state."""

import msgspec

from gantt.core.messages.report import NumaCell, ReportedMetric
from gantt.core.resources.host import HostFacts
from gantt.db.hosts import rows
from tests.builders import a_host


def said(load: float) -> str:
    facts = HostFacts(metrics={'load': ReportedMetric(value=load)})
    return msgspec.json.encode(facts).decode()


def test_hosts_that_say_the_same_share_one_object():
    memory = rows.Memory()
    first = memory.decode(said(0.5))
    assert memory.decode(said(0.5)) is first
    assert memory.decode(said(0.6)) is not first


def test_what_few_hosts_say_is_forgotten_soon():
    """All that is told apart by a metric is said once, and never again."""
    memory = rows.Memory()
    first = memory.decode(said(0.0))
    for n in range(rows.FACTS_MIN - 1):
        memory.decode(said(1.0 + n))
    assert memory.decode(said(0.0)) is first
    for n in range(rows.FACTS_MIN):
        memory.decode(said(2.0 + rows.FACTS_MIN + n))
    assert memory.decode(said(0.0)) is not first


def cells(used):
    return [NumaCell(id=n, cpus=[2 * n, 2 * n + 1], cpu_used=used) for n in range(2)]


def test_hosts_of_one_model_share_their_cells():
    memory = rows.Memory()
    facts = [HostFacts(numa=cells(0), location=f'rack-{n}') for n in range(3)]
    shared = [memory.sharing(one) for one in facts]
    assert shared == facts
    assert all(one.numa is facts[0].numa for one in shared)
    assert memory.sharing(HostFacts(numa=cells(1))).numa == cells(1)


def test_as_many_different_cells_are_remembered_as_may_be():
    memory = rows.Memory()
    first = memory.sharing(HostFacts(numa=cells(0))).numa
    for used in range(1, rows.CELLS_MAX + 1):
        memory.sharing(HostFacts(numa=cells(used)))
    assert memory.sharing(HostFacts(numa=cells(0))).numa is not first
    assert len(memory._cells) == rows.CELLS_MAX


def test_cells_are_shared_by_whoever_reports_and_whoever_reads(store):
    for name in ('one', 'two'):
        a_host(name).having(numa=cells(0)).on(store)
    found = [change.row.facts.numa for change in store.load_everything().hosts]
    assert found == [cells(0), cells(0)]
    assert found[0] is found[1]
