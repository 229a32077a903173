# SPDX-License-Identifier: Apache-2.0
"""What a process notes of itself, and the digest of its configuration."""

import time

import pytest
from oslo_config import cfg
from oslo_messaging import conffixture

from gantt import conf as options
from gantt import exceptions
from gantt.cmd import presence
from gantt.cmd.presence import Presence
from gantt.conf.pipeline import pipeline_from_conf
from gantt.core.filters.base import Filter
from gantt.core.placement.pipeline import Pipeline
from gantt.core.plugin import Option
from gantt.db.records.services import SqlServices
from gantt.scheduler.clock import SystemClock
from gantt.telemetry.metrics import MetricRegistry
from tests.world import World, a_request, sqlite_store

GIVE_UP_SECONDS = 60


def _conf(path, text=''):
    path.write_text(text)
    conf = cfg.ConfigOpts()
    conffixture.ConfFixture(conf)
    options.register_opts(conf)
    conf(['--config-file', str(path)], project='gantt')
    return conf


def _digest(path, text=''):
    conf = _conf(path, text)
    return presence.configuration_digest(conf, pipeline_from_conf(conf).described())


class SecretFilter(Filter):
    options = (
        Option('inventory_password', str, '', 'Of a system that it asks.'),
        Option('least_share', float, 0.0, 'What a host must have left.'),
    )


def _of_plugin(**values):
    return Pipeline([SecretFilter(values)], []).described()


def test_the_digest_changes_with_what_decides_answers(tmp_path):
    path = tmp_path / 'gantt.conf'
    plain = _digest(path)
    others = {
        text: _digest(path, text)
        for text in (
            '[scheduler]\nqueue_limit = 10\n',
            '[claims]\nlease_seconds = 300\n',
            '[filters]\nhost_subset_size = 3\n',
            '[filters]\nenabled_filters = ComputeFilter\n',
            '[weighers]\nram_weight_multiplier = 2\n',
        )
    }
    assert plain == _digest(path)
    assert len({plain, *others.values()}) == len(others) + 1


@pytest.mark.finding('N8', 'a digest of the configuration tells no secret')
def test_the_digest_has_nothing_of_one_machine_and_nothing_secret(tmp_path):
    path = tmp_path / 'gantt.conf'
    own = (
        '[DEFAULT]\nhost = ctl-9\nworker = w\nmetrics_port = 9790\n'
        'transport_url = rabbit://gantt:swordfish@broker/\n'
        '[scheduler]\nworkers = 4\n[database]\nconnection = postgresql://u:swordfish@db/gantt\n'
    )
    assert _digest(path, own) == _digest(path)
    conf = _conf(path)
    first, second = _of_plugin(inventory_password='swordfish'), _of_plugin(inventory_password='x')
    assert presence.configuration_digest(conf, first) == presence.configuration_digest(conf, second)
    assert presence.configuration_digest(conf, first) != presence.configuration_digest(
        conf, _of_plugin(least_share=0.5)
    )


class Flaky(SqlServices):
    """Services in a database that is away while it is told so."""

    is_away, tried = False, 0

    def note_service(self, note):
        self.tried += 1
        if self.is_away:
            raise exceptions.DatabaseUnavailable(problem='it is away')
        super().note_service(note)


def _until(holds):
    end = time.monotonic() + GIVE_UP_SECONDS
    while not holds():
        assert time.monotonic() < end, 'it never came'
        time.sleep(0.01)


class UnmeasurableCache:
    @property
    def tables(self):
        raise RuntimeError('dictionary changed size during iteration')


def test_a_process_whose_memory_cannot_be_measured_is_not_silent(tmp_path):
    conf = _conf(tmp_path / 'gantt.conf', '[DEFAULT]\nhost = ctl-1\n')
    store = sqlite_store(SystemClock())
    described = pipeline_from_conf(conf).described
    presence = Presence(
        conf, store.services, 'scheduler', lambda: 'ctl-1', described, caches=[UnmeasurableCache()]
    )
    presence.start()
    try:
        _until(store.services.list_services)
        service = store.services.list_services()[0]
    finally:
        presence.stop()
    assert (service.name, service.memory) == ('ctl-1', None)


def test_a_process_notes_the_memory_of_its_tables(tmp_path):
    conf = _conf(tmp_path / 'gantt.conf', '[DEFAULT]\nhost = ctl-1\n')
    store, metrics = sqlite_store(SystemClock()), MetricRegistry()
    world = World(hosts=3)
    world.select(a_request(2))
    presence = Presence(
        conf,
        store.services,
        'scheduler',
        lambda: 'ctl-1:7:ab',
        pipeline_from_conf(conf).described,
        caches=world.scheduler.caches,
        gauge=metrics.gauge,
    )
    presence.start()
    try:
        _until(store.services.list_services)
        memory = store.services.list_services()[0].memory
    finally:
        presence.stop()
    assert (memory.hosts, memory.claims) == (3, 2)
    assert memory.resident_bytes > 10_000_000
    name = 'gantt_host_table_entry_bytes'
    assert metrics.value(name, process='scheduler', entry='host') == memory.bytes_per_host > 1000
    assert metrics.value(name, process='scheduler', entry='claim') == memory.bytes_per_claim > 200


def test_a_process_notes_itself_its_reloads_and_its_end(tmp_path, caplog):
    path = tmp_path / 'gantt.conf'
    conf = _conf(path, '[DEFAULT]\nhost = ctl-1\n')
    store = sqlite_store(SystemClock())
    flaky = Flaky(store.database)
    described = pipeline_from_conf(conf).described
    presence = Presence(conf, flaky, 'scheduler', lambda: 'ctl-1:7:ab', described, 0.02)
    presence.start()
    try:
        _until(store.services.list_services)
        [service] = store.services.list_services()
        assert (service.name, service.kind, service.host) == ('ctl-1:7:ab', 'scheduler', 'ctl-1')
        before = service.configuration
        presence.configured('Nope is no filter')
        _until(lambda: store.services.list_services()[0].problem == 'Nope is no filter')
        assert store.services.list_services()[0].configuration == before
        conf.set_override('queue_limit', 17, 'scheduler')
        presence.configured()
        _until(lambda: store.services.list_services()[0].configuration != before)
        assert store.services.list_services()[0].problem == ''
        flaky.is_away, flaky.tried = True, 0
        _until(lambda: flaky.tried > 3)
        assert len([r for r in caplog.records if 'cannot be recorded' in r.message]) == 1
        flaky.is_away = False
    finally:
        presence.stop()
    assert store.services.list_services() == []
