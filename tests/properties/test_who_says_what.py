# SPDX-License-Identifier: Apache-2.0
"""Rows of hosts equal what was said of them last by whoever speaks, beside a model of two words.

Every reader is asked: the host as all read it, the provider, and the rows themselves.
"""

import functools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gantt import exceptions
from gantt.core.messages.base import derived_id
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import INVENTORIES_BY_API
from gantt.db.hosts import details
from tests.builders import CLEAN, a_host, set_inventories, uuid_of
from tests.properties.claim_world import a_store

LENIENT = {'deadline': None, 'print_blob': True, 'suppress_health_check': list(HealthCheck)}
HOSTS = ('cmp-1', 'cmp-2')
HOST = st.sampled_from(HOSTS)
NAMED = ('rack-1', 'rack-2')
TRAITS = st.lists(st.sampled_from(['COMPUTE_NODE', 'HW_CPU_X86_AVX2', 'MISC_SHARES_VIA_AGGREGATE']))
CLASSES = st.dictionaries(
    st.sampled_from(['VCPU', 'DISK_GB', 'VGPU', 'FPGA']),
    st.builds(
        Inventory,
        total=st.integers(1, 4),
        reserved=st.integers(0, 1),
        max_unit=st.none() | st.integers(2, 9),
        allocation_ratio=st.sampled_from([0.5, 1.0, 16.0]),
    ),
    max_size=3,
)
BARE = st.lists(st.sampled_from([uuid_of('a'), uuid_of('b'), derived_id('aggregate', 'rack-1')]))
RACKS = st.lists(st.sampled_from(NAMED))
SAID = st.fixed_dictionaries({}, optional={'inventories': CLASSES, 'traits': TRAITS})
WORDS = st.one_of(
    st.tuples(st.just('report'), HOST, SAID, st.none() | RACKS),
    st.tuples(st.just('delta'), HOST, SAID, st.none() | RACKS),
    st.tuples(st.just('inventories'), HOST, CLASSES),
    st.tuples(st.just('traits'), HOST, TRAITS),
    st.tuples(st.just('aggregates'), HOST, BARE),
    st.tuples(st.just('members'), st.sampled_from(NAMED), st.sets(HOST)),
    st.tuples(st.just('speaks'), HOST, st.sampled_from([INVENTORIES_BY_API, None])),
)


class Known:
    """What is known of one host."""

    def __init__(self):
        self.by = None
        self.inventories, self.traits, self.bare = {}, set(), set()


class Told:
    """Two hosts, and which aggregates they are members of."""

    def __init__(self):
        self.hosts = {name: Known() for name in HOSTS}
        self.members = {name: set() for name in NAMED}
        self.wants_full = set()

    def report(self, name, reported, racks):
        self.wants_full.discard(name)
        self._reported(name, {'inventories': {}, 'traits': [], **reported}, racks)
        return True

    def delta(self, name, reported, racks):
        if name in self.wants_full:
            return False
        self._reported(name, reported, racks)
        return True

    def _reported(self, name, reported, racks):
        host = self.hosts[name]
        if host.by == INVENTORIES_BY_API:
            return
        if 'inventories' in reported:
            host.inventories = dict(reported['inventories'])
        if 'traits' in reported:
            host.traits = set(reported['traits'])
        uuids = {derived_id('aggregate', rack) for rack in racks or ()}
        if racks is not None and uuids != self.aggregates(name):
            host.bare = set()
            for rack, members in self.members.items():
                members.discard(name)
                if rack in racks:
                    members.add(name)

    def say(self, name, **said):
        if self.hosts[name].by != INVENTORIES_BY_API:
            return False
        for field, value in said.items():
            setattr(self.hosts[name], field, value)
        return True

    def aggregates(self, name):
        named = {aggregate for aggregate, members in self.members.items() if name in members}
        return self.hosts[name].bare | {derived_id('aggregate', aggregate) for aggregate in named}

    def speaks(self, name, by):
        if self.hosts[name].by == INVENTORIES_BY_API and by is None:
            self.wants_full.add(name)
        self.hosts[name].by = by
        return True


def heard(model, hosts, store, word):
    """Whether both say that it was done."""
    verb, name, *rest = word
    if verb in ('report', 'delta'):
        reported, racks = rest
        host = hosts[name]
        report = host.says()
        fields = {'inventories': {}, 'traits': [], **reported} if verb == 'report' else reported
        for field in ('inventories', 'traits'):
            report.fields.pop(field, None)
        report = report.having(**fields, **({} if racks is None else {'aggregates': racks}))
        if verb == 'delta':
            report = report.having(full=False, base=hosts[name].last_full)
        is_applied = host.send(report)[0].outcome == 'applied'
        if is_applied and verb == 'report':
            host.last_full = host.sequence
        return is_applied, getattr(model, verb)(name, reported, racks)
    if verb == 'members':
        store.declarations.save_aggregate(name, {}, sorted(rest[0]), derived_id('aggregate', name))
        model.members[name] = set(rest[0])
        return True, True
    if verb == 'speaks':
        store.hosts.set_inventories_by(name, rest[0])
        return True, model.speaks(name, rest[0])
    uuid, (value,) = hosts[name].row.uuid, rest
    save, field = {
        'inventories': (functools.partial(set_inventories, store), 'inventories'),
        'traits': (store.providers.save_provider_traits, 'traits'),
        'aggregates': (store.providers.save_provider_aggregates, 'bare'),
    }[verb]
    kept = value if verb == 'inventories' else set(value)
    try:
        save(uuid, value)
    except exceptions.ReportedByHost:
        return False, model.say(name, **{field: kept})
    return True, model.say(name, **{field: kept})


def check_same(model, hosts, store):
    for name, host in hosts.items():
        expected, row = model.hosts[name], host.row
        assert row.inventories_by == expected.by
        assert row.facts.inventories == expected.inventories
        assert row.facts.traits == sorted(expected.traits)
        assert row.aggregates == sorted(model.aggregates(name))
        assert store.providers.load_provider(row.uuid).inventories == expected.inventories
        traits = store.providers.load_provider_traits(row.uuid).traits
        assert {trait.name for trait in traits} == expected.traits
        assert set(store.providers.load_provider_aggregates(row.uuid).aggregates) == expected.bare


def check_rows(model, hosts, store):
    ids = [host.id for host in hosts.values()]
    has = store.database.reads.read(lambda tx: details.read(tx, ids))
    for name, host in hosts.items():
        reported = model.hosts[name]
        expected = details.details_of(reported.inventories, reported.traits, model.aggregates(name))
        assert has[host.id] == expected


def check(kind, words):
    with a_store(kind) as store:
        model, hosts = Told(), {}
        for name in HOSTS:
            hosts[name] = a_host(name).on(store)
        for name in NAMED:
            heard(model, hosts, store, ('members', name, set()))
        for name in HOSTS:
            assert heard(model, hosts, store, ('report', name, {}, None)) == (True, True)
        for word in words:
            is_applied, expected = heard(model, hosts, store, word)
            assert is_applied == expected, word
            check_same(model, hosts, store)
            if kind != 'memory':
                check_rows(model, hosts, store)
        assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('kind', ['memory', 'sqlite'])
@settings(max_examples=30, **LENIENT)
@given(words=st.lists(WORDS, min_size=4, max_size=20))
def test_rows_are_what_was_said_last_by_who_speaks(kind, words):
    check(kind, words)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['memory', 'sqlite'])
@settings(max_examples=400, **LENIENT)
@given(words=st.lists(WORDS, min_size=10, max_size=50))
def test_rows_are_what_was_said_last_by_who_speaks_for_long(kind, words):
    check(kind, words)
