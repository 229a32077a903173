# SPDX-License-Identifier: Apache-2.0
"""Deltas may be lost, repeated and overtaken: the next one that is applied says it all."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt.compute.agent.host_agent import Reporter
from gantt.compute.agent.running_guests import GuestInventory
from gantt.compute.agent.session import Session
from gantt.compute.ports import HostReadings
from gantt.core.messages.report import HostReport, RegisterHost, ReportedMetric
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostFacts
from tests.compute.hosts_in_memory import HostsInMemory, Port

FIELDS = {
    'inventories': [{'VCPU': Inventory(total=n)} for n in (4, 8, 16)],
    'foreign': [{}, {'VCPU': 1}, {'VCPU': 3}],
    'traits': [[], ['CUSTOM_A'], ['CUSTOM_A', 'CUSTOM_B']],
    'zone': [None, 'az-1', 'az-2'],
    'location': ['', 'site.room'],
    'metrics': [{}, {'load': ReportedMetric(value=0.5)}, {'load': ReportedMetric(value=1.5)}],
    'disabled': [None, 'being repaired'],
    'cell': [None, '11111111-1111-1111-1111-111111111111'],
}

change = st.sampled_from([(f, i) for f, values in FIELDS.items() for i in range(len(values))])
#: What happens to a report on its way: it arrives, is lost, arrives twice, or
#: stays behind and arrives after so many others.
fate = st.one_of(st.sampled_from(['arrives', 'lost', 'twice']), st.integers(1, 6))
story = st.lists(st.tuples(st.lists(change, max_size=3), fate), min_size=1, max_size=30)


class Network(Port):
    """Loses, repeats and delays deltas; full reports are calls and are answered, or not."""

    def __init__(self, store) -> None:
        super().__init__(store)
        self.outcome = 'arrives'
        self.behind: list[tuple[int, HostReport]] = []

    def report(self, report):
        kept, due = [], []
        for waits, held in self.behind:
            (due if waits <= 1 else kept).append((waits - 1, held))
        self.behind = kept
        try:
            if isinstance(self.outcome, int) and not report.full:
                self.behind.append((self.outcome, report))
                return None
            if self.outcome == 'lost':
                self.away = report.full
                return super().report(report) if report.full else None
            if self.outcome == 'twice':
                self.store.reports.apply_reports([report])
                return super().report(report)
            return super().report(report)
        finally:
            self.away = False
            for _, late in due:
                self.store.reports.apply_reports([late])


def believed(row) -> dict[str, object]:
    """What the store holds of a host, in the fields of a report."""
    facts: HostFacts = row.facts
    return {
        'inventories': facts.inventories,
        'foreign': row.foreign,
        'traits': facts.traits,
        'zone': row.zone,
        'location': facts.location,
        'metrics': facts.metrics,
        'disabled': row.service_disabled,
        'cell': row.cell,
    }


@settings(max_examples=150, deadline=None)
@given(story)
def test_whatever_happens_to_deltas_the_next_accepted_one_tells_the_truth(story):
    memory_hosts = HostsInMemory()
    network = Network(memory_hosts.store)
    truth = {field: values[0] for field, values in FIELDS.items()}
    session = Session(RegisterHost(name='cmp-1', boot_nonce='-'), network)
    session.register()
    reporter = Reporter(session, network, lambda: (GuestInventory([], []), HostReadings(**truth)))
    reporter.send()
    for changes, network.outcome in story:
        for field, index in changes:
            truth[field] = FIELDS[field][index]
        try:
            reporter.send()
        except Exception as e:
            assert 'the line is cut' in str(e)
        (row,) = [c.row for c in memory_hosts.store.feed.load_everything().hosts]
        if row.sequence == session._sequence:  # this very report was applied
            assert believed(row) == truth
    # Whatever is still under way, and however it went: one report that arrives is enough,
    # unless the scheduler never accepted its full one; then the next is full.
    for _, late in network.behind:
        memory_hosts.store.reports.apply_reports([late])
    network.behind, network.outcome = [], 'arrives'
    reporter.send()
    (row,) = [c.row for c in memory_hosts.store.feed.load_everything().hosts]
    assert believed(row) == truth


def test_reports_that_arrive_twice_are_taken_for_what_they_are():
    """A lost answer, a repeat: that is nobody else who reports for the host."""
    network = Network(HostsInMemory().store)
    session = Session(RegisterHost(name='cmp-1', boot_nonce='-'), network)
    epoch = session.register().epoch
    facts = HostReadings(inventories={'VCPU': Inventory(total=4)})
    reporter = Reporter(session, network, lambda: (GuestInventory([], []), facts), full_every=1)
    network.outcome = 'twice'
    for _ in range(4):
        assert not reporter.send(), 'no other one is due soon'
    assert session.epoch == epoch


def test_a_delta_states_what_changed_and_went_back(memory_hosts):
    """A field that is as it was in the full report, but was not in between, is stated."""
    truth = {'inventories': {'VCPU': Inventory(total=4)}, 'zone': 'az-1'}
    session = Session(RegisterHost(name='cmp-1', boot_nonce='-'), memory_hosts.port)
    session.register()
    reporter = Reporter(
        session, memory_hosts.port, lambda: (GuestInventory([], []), HostReadings(**truth))
    )
    reporter.send()
    truth['zone'] = 'az-2'
    reporter.next_report()  # lost
    truth['zone'] = 'az-1'
    report = reporter.next_report()
    assert not report.full
    assert report.zone == 'az-1'
    assert report.inventories is msgspec.UNSET


def test_a_field_that_is_no_longer_said_makes_the_report_full(memory_hosts):
    truth = {'inventories': {'VCPU': Inventory(total=4)}, 'aggregates': ['rack-1']}
    session = Session(RegisterHost(name='cmp-1', boot_nonce='-'), memory_hosts.port)
    session.register()
    reporter = Reporter(
        session, memory_hosts.port, lambda: (GuestInventory([], []), HostReadings(**truth))
    )
    reporter.send()
    del truth['aggregates']
    assert reporter.next_report().full


def test_a_report_is_never_newer_than_a_confirmation_it_does_not_list(memory_hosts, house):
    """The place in the order is taken before looking: here a build happens while looking."""
    build = memory_hosts.claim('cmp-1')
    look = house.machine.facts
    once = iter([True])

    def facts(guests):
        if next(once, False):
            assert house.agent.build(build).outcome == 'running'
        return look(guests)

    house.machine.facts = facts
    house.member.turn()
    assert memory_hosts.port.reports[-1].running == []  # it looked before the build
    assert memory_hosts.state(build) == 'confirmed'
    house.member.turn()
    assert memory_hosts.state(build) == 'confirmed'
    memory_hosts.audit()
