# SPDX-License-Identifier: Apache-2.0
"""The doctor on what the database has: agents next to nova-compute, alarms of processes."""

import msgspec
import pytest
from oslo_config import cfg
from oslo_messaging import conffixture

from gantt import conf as options
from gantt.cmd import doctor
from gantt.cmd.doctor import live
from gantt.core.claims.host_facts import UpdateHostFacts
from gantt.core.nova.events import GuestsListed, NovaCast
from gantt.core.records.process import ServiceNote
from gantt.db.engine import session
from gantt.db.stores import store
from tests.builders import a_host


@pytest.fixture
def conf(synced):
    made = cfg.ConfigOpts()
    conffixture.ConfFixture(made)
    options.register_opts(made)
    made([], project='gantt', default_config_files=[])
    made.set_override('transport_url', 'rabbit://gantt:s3cret@127.0.0.1/')
    made.set_override('connection', f'sqlite:///{synced}/gantt.db', 'database')
    return made


@pytest.mark.parametrize('spec', ['{"devname": "eth0"}', 'no JSON'])
def test_devices_that_are_not_understood_are_an_error(conf, spec):
    conf.set_override('device_spec', ['{"vendor_id": "10de"}', spec], 'compute')
    (found,) = [f for f in doctor.diagnose(conf, probe=False) if 'device_spec' in f.option]
    assert (found.severity, found.option) == ('error', '[compute] device_spec')


def test_only_hosts_are_counted(conf):
    conf.set_override('report_queue_limit', 2, 'scheduler')
    made = store.connect(conf)
    a_host('cmp-1').on(made)
    a_host('cmp-2').on(made)
    for n in range(3):
        made.create_provider(f'pool {n}')
    assert live.database_says(conf) == []
    a_host('cmp-3').on(made)
    made.close()
    (found,) = live.database_says(conf)
    assert found.option == '[scheduler] report_queue_limit'
    assert found.why.startswith('3 hosts are known')


def test_an_agent_that_fell_silent_is_named(conf):
    made = store.connect(conf)
    for number, name in enumerate(('cmp-1', 'cmp-2', 'cmp-3'), 1):
        a_host(name).on(made, speaks_for='nova')
        word = GuestsListed(host=name, consumers=[])
        made.apply_guest_events([NovaCast(asked_at=2_000_000_000.0, word=word)])
        if number < 3:
            assert made.tell_facts(UpdateHostFacts(host=name, sequence=1)).outcome == 'applied'
    made.close()
    assert live.database_says(conf) == []
    engine = session.engine_from_conf(conf)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE provider_facts SET facts = json_set(facts, '$.beside.told_at', 1000.5) "
            "WHERE provider_id IN (SELECT id FROM providers WHERE name = 'cmp-2')"
        )
    engine.dispose()
    (found,) = live.database_says(conf)
    assert (found.severity, found.value) == ('warning', 'silent on 1 of 2 hosts')
    assert 'nothing was told of cmp-2' in found.why


@pytest.mark.finding('H4', 'the doctor shows forged messages')
def test_an_alarm_of_a_scheduler_is_a_warning(conf):
    made = store.connect(conf)
    note = ServiceNote(
        name='ctl-1:7:ab', kind='scheduler', host='ctl-1', version='2.0', configuration='0123'
    )
    made.note_service(note)
    assert live.database_says(conf) == []
    made.note_service(msgspec.structs.replace(note, alarm='forged: 3 (cmp-1)'))
    made.close()
    (found,) = live.database_says(conf)
    assert (found.severity, found.option) == ('warning', 'alarm of ctl-1:7:ab')
    assert found.why == 'forged: 3 (cmp-1)'
