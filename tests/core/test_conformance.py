# SPDX-License-Identifier: Apache-2.0
"""Every filter and weigher of ours conforms; a plugin that breaks a rule of the kit is reported."""

import contextlib
import datetime
import importlib.metadata
import os
import random
import threading
import time

import numpy as np
import pytest

from gantt import exceptions
from gantt.core.filters.base import Filter, PairwiseFilter, PerHostFilter
from gantt.core.filters.resources import ResourcesFilter
from gantt.core.messages.keys import known_keys
from gantt.core.messages.keys.known_keys import KeyKind
from gantt.core.messages.request import RequestSpec
from gantt.core.table.columns import COLUMNS
from gantt.core.weighers.base import ColumnWeigher, Weigher
from gantt.testing import clouds, conformance

OWN = {
    f'{group.rpartition(".")[2]} {entry.name}': entry
    for group in ('gantt.filters', 'gantt.weighers')
    for entry in importlib.metadata.entry_points(group=group)
    if entry.value.startswith('gantt.')
}


@pytest.mark.parametrize('name', sorted(OWN))
def test_ours_conform(name):
    conformance.check(OWN[name].load(), cases=30)


@pytest.mark.parametrize('name', sorted(name for name in OWN if name.startswith('filters')))
def test_hints_that_ours_read_are_known(name):
    rule, read = OWN[name].load()(), set()
    for seed in range(5):
        rng = random.Random(seed)
        table = conformance.WatchedTable(clouds.a_table(*clouds.a_cloud(rng)))
        spec = conformance.WatchedSpec(clouds.a_spec(rng))
        with contextlib.suppress(exceptions.InvalidMessage):
            if isinstance(rule, PairwiseFilter):
                rule.mask_for(table, spec, conformance.CONSUMER)
            else:
                rule.mask(table, spec)
        read |= spec.hints_requested.columns_read
    unknown = sorted(hint for hint in read if known_keys.known_key(KeyKind.HINT, hint) is None)
    assert unknown == [], 'expected them in gantt/core/messages/keys/known_keys.py'


def test_hosts_of_the_kit_differ_in_each_column():
    values: dict[str, set] = {name: set() for name in COLUMNS}
    for seed in range(30):
        table = clouds.a_table(*clouds.a_cloud(random.Random(seed)))
        for name in COLUMNS:
            values[name] |= set(np.asarray(getattr(table, name)).ravel().tolist())
    same = {name for name in COLUMNS if len(values[name]) < 2}
    assert same == {'generation', 'version'}, (
        'a filter of this column is not examined: let hosts of gantt/testing/clouds.py differ in it'
    )


#: Fields of a request that the kit does not have; the tests of the filters that read them do.
NOT_VARIED = {
    *('consumer_type', 'devices', 'kind', 'max_resources', 'move_id', 'networks', 'tree'),
}


def test_requests_of_the_kit_differ_in_each_field():
    values: dict[str, set] = {name: set() for name in RequestSpec.__struct_fields__}
    for seed in range(100):
        spec = clouds.a_spec(random.Random(seed))
        for name in values:
            values[name].add(repr(getattr(spec, name)))
    same = {name for name, texts in values.items() if len(texts) < 2}
    assert same == NOT_VARIED, (
        'a filter of this field is not examined: let requests of gantt/testing/clouds.py have it'
    )


class Climbs(ColumnWeigher):
    """Each pick is a guest more, and it says it is two."""

    columns = ('instances',)

    def step(self, hosts, spec):
        return 2


class Welcomes(ResourcesFilter):
    """It lets one pick more on a host than it says."""

    def picks_left(self, hosts, spec, row):
        return super().picks_left(hosts, spec, row) - 1


class Writes(Filter):
    columns = ('enabled',)

    def mask(self, hosts, spec):
        hosts.enabled[:1] = False
        return hosts.enabled


class Remembers(Filter):
    columns = ('enabled',)

    def mask(self, hosts, spec):
        self.count = getattr(self, 'count', 0) + 1
        return hosts.enabled.copy()


class Dices(Filter):
    columns = ('enabled',)

    def mask(self, hosts, spec):
        return np.array([random.random() < 0.5 for _ in range(len(hosts))], bool)


class Opens(PerHostFilter):
    columns = ('enabled',)

    def host_passes(self, host, spec):
        with open('/etc/hostname') as file:
            return bool(file)


class ByRow(Filter):
    columns = ('ids',)

    def mask(self, hosts, spec):
        return np.arange(len(hosts)) % 2 == 0


class ByCrowd(Filter):
    columns = ('ids',)

    def mask(self, hosts, spec):
        return np.full(len(hosts), len(hosts) > 3)


class TwoMinds(PerHostFilter):
    columns = ('enabled',)

    def mask(self, hosts, spec):
        return hosts.enabled.copy()

    def host_passes(self, host, spec):
        return not host.is_enabled


class Secretive(Filter):
    columns = ('enabled',)

    def mask(self, hosts, spec):
        return hosts.enabled & (hosts.instances < 1)


class Forgetful(Filter):
    columns = ('enabled',)
    reason = 'is off ({missing})'

    def mask(self, hosts, spec):
        return hosts.enabled.copy()


class Miscounts(Filter):
    columns = ('enabled',)

    def mask(self, hosts, spec):
        return hosts.enabled.copy()

    def detail(self, hosts, spec, rows):
        return {'parts': {'off': len(rows) + 1}}


class Numbers(Filter):
    columns = ('instances',)

    def mask(self, hosts, spec):
        return hosts.instances.copy()


class Infinite(Weigher):
    columns = ('instances',)

    def raw(self, hosts, spec, rows):
        return np.full(len(rows), np.inf)


class LocalOnlyInName(Weigher):
    columns = ('instances',)
    local = True

    def raw(self, hosts, spec, rows):
        return hosts.instances.take(rows)

    def value(self, hosts, spec, row):
        return 7


class Disclaims(Filter):
    columns = ('enabled',)

    def concerns(self, spec):
        return False

    def mask(self, hosts, spec):
        return hosts.enabled.copy()


class AsksTheClock(Filter):
    columns = ('reported_at',)

    def mask(self, hosts, spec):
        return hosts.reported_at > time.time() - 60


class AsksForToday(Filter):
    columns = ('enabled',)

    def mask(self, hosts, spec):
        return hosts.enabled & (datetime.datetime.now().year > 2000)


class LooksForAFile(Filter):
    columns = ('enabled',)

    def mask(self, hosts, spec):
        return hosts.enabled & os.path.exists('/etc/hostname')


class AsksTheEnvironment(Filter):
    columns = ('enabled',)

    def mask(self, hosts, spec):
        return hosts.enabled & ('GANTT_ODD' not in os.environ)


class AsksInAThread(Filter):
    columns = ('enabled',)

    def mask(self, hosts, spec):
        asking = threading.Thread(target=lambda: open('/etc/hostname').close())
        asking.start()
        asking.join()
        return hosts.enabled.copy()


class SwallowsAll(Filter):
    columns = ('enabled',)

    def mask(self, hosts, spec):
        try:
            return hosts.enabled & os.path.exists('/etc/hostname')
        except BaseException:
            return hosts.enabled.copy()


class CountsInItsClass(Filter):
    columns = ('enabled',)
    count = 0

    def mask(self, hosts, spec):
        type(self).count += 1
        return hosts.enabled.copy()


SEEN: list[int] = []


class CountsInItsModule(Filter):
    columns = ('enabled',)

    def mask(self, hosts, spec):
        SEEN.append(1)
        return hosts.enabled.copy()


class HandsOutAColumn(Weigher):
    columns = ('instances',)

    def raw(self, hosts, spec, rows):
        return hosts.instances if len(rows) == len(hosts) else hosts.instances.take(rows)


class KeepsAColumn(Filter):
    columns = ('enabled',)
    fields = ('hints',)

    def mask(self, hosts, spec):
        return hosts.enabled


class BelievesAHint(Filter):
    columns = ('instances',)

    def mask(self, hosts, spec):
        if 'limit' not in spec.hints:
            return None
        return hosts.instances < int(spec.hints['limit'][0])


class PassesOthers(Filter):
    columns = ('instances',)
    local = True

    def concerns(self, spec):
        return 'few' in spec.hints

    def mask(self, hosts, spec):
        return hosts.instances < 1 if self.concerns(spec) else None

    def passes(self, hosts, spec, row):
        return True


class Leaves(Filter):
    def mask(self, hosts, spec):
        raise SystemExit(3)


BAD = {
    AsksTheClock: 'inside',
    AsksForToday: 'inside',
    LooksForAFile: 'inside',
    AsksTheEnvironment: 'inside',
    AsksInAThread: 'inside',
    SwallowsAll: 'inside',
    CountsInItsClass: 'pure',
    CountsInItsModule: 'pure',
    HandsOutAColumn: 'own',
    KeepsAColumn: 'own',
    BelievesAHint: 'shape',
    Leaves: 'shape',
    Writes: 'shape',
    Climbs: 'steps',
    Welcomes: 'steps',
    Remembers: 'pure',
    Dices: 'same',
    Opens: 'inside',
    ByRow: 'place',
    ByCrowd: 'place',
    TwoMinds: 'form',
    Secretive: 'columns',
    Forgetful: 'shape',
    Miscounts: 'reasons',
    Numbers: 'shape',
    Infinite: 'shape',
    LocalOnlyInName: 'form',
    Disclaims: 'form',
    PassesOthers: 'form',
}


@pytest.mark.parametrize('plugin', BAD, ids=lambda plugin: plugin.__name__)
def test_who_breaks_a_rule_is_found_out(plugin):
    findings = conformance.examine(plugin)
    assert BAD[plugin] in {finding.rule for finding in findings}, findings
    with pytest.raises(AssertionError, match=f'{plugin.__name__} does not conform'):
        conformance.check(plugin)


def test_a_finding_can_be_seen_again_by_its_seed():
    (finding, *_) = conformance.examine(ByRow)
    again = conformance.examine(ByRow, cases=1, first=finding.seed)
    assert str(finding) in map(str, again)


class Local(Filter):
    columns = ('instances',)
    local = True

    def mask(self, hosts, spec):
        return hosts.instances < 1


def test_a_local_filter_without_its_form_of_one_host_is_refused():
    with pytest.raises(exceptions.PluginError, match="'Local': declares local = True and has no"):
        conformance.examine(Local)


class Unmade(Filter):
    def __init__(self, values=None):
        raise RuntimeError('no licence')


def test_one_that_cannot_be_made_is_told_by_name():
    with pytest.raises(exceptions.PluginError, match="'Unmade': cannot be made.*no licence"):
        conformance.examine(Unmade)


@pytest.mark.parametrize('cases', [0, -4])
def test_nothing_is_found_by_no_cases(cases):
    with pytest.raises(ValueError, match='at least 1'):
        conformance.examine(Dices, cases)


def test_what_is_no_plugin_is_refused():
    with pytest.raises(exceptions.GanttError, match='neither a Filter nor a Weigher'):
        conformance.examine(type('Odd', (conformance.Plugin,), {}))
