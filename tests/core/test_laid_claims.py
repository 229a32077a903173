# SPDX-License-Identifier: Apache-2.0
"""Layouts of claims, after the message of a host."""

from gantt.core.messages.report import NumaCell, Running
from gantt.core.resources.host import HostFacts
from tests.builders import a_report, changed
from tests.core.test_reconcile import ROW, a_claim, fold

CELL = NumaCell(id=0, pinned_cpus=[0, 1, 2, 3], memory_mb=4096)
NUMA_ROW = changed(ROW, facts=HostFacts(inventories=ROW.facts.inventories, numa=[CELL]))
LAYOUT = {'cells': [{'cell': 0, 'vcpus': [0, 1], 'pins': [[0, 0], [1, 1]]}]}
OTHER = {'cells': [{'cell': 0, 'vcpus': [0, 1], 'pins': [[0, 1], [1, 2]]}]}


def a_nova_report(**fields):
    return a_report('cmp-1').at(3, 11).having(running=None, pending=None, used={}, **fields)


def test_figures_that_contain_our_guests_settle_their_layouts():
    claim, waiting = a_claim(layout=LAYOUT), a_claim('reserved', layout=OTHER)
    effect = fold(a_nova_report(numa=[CELL]), claim, waiting, row=NUMA_ROW)
    assert [(settled.id, settled.layout) for settled in effect.claims] == [
        (claim.id, {**LAYOUT, 'reported': True})
    ]
    assert effect.row.generation > NUMA_ROW.generation
    again = fold(a_nova_report(numa=[CELL]), *effect.claims, row=NUMA_ROW)
    assert again.claims == []


def test_figures_of_what_is_outside_of_claims_settle_nothing():
    claim = a_claim(layout=LAYOUT)
    report = a_report('cmp-1').at(3, 11).listing([claim]).having(numa=[CELL])
    assert fold(report, claim, row=NUMA_ROW).claims == []


def test_a_report_without_cells_settles_nothing():
    claim = a_claim(layout=LAYOUT)
    assert fold(a_nova_report(), claim, row=NUMA_ROW).claims == []


def test_an_adopted_guest_has_its_layout_again_where_nobody_else_has_it():
    lost = a_claim('expired', layout=LAYOUT)
    guest = Running(consumer=lost.consumer, claim_id=lost.id, resources={'VCPU': 2})
    report = a_report('cmp-1').at(3, 11).listing([guest])
    (adopted,) = fold(report, known=[lost], row=NUMA_ROW).claims
    assert adopted.adopted and adopted.layout == LAYOUT
    there = a_claim(layout=OTHER)
    report = a_report('cmp-1').at(3, 11).listing([guest, there])
    (adopted,) = fold(report, there, known=[lost], row=NUMA_ROW).claims
    assert adopted.layout is None
