# SPDX-License-Identifier: Apache-2.0
"""The doctor on what the database has: agents next to nova-compute, alarms of processes."""

import msgspec
import pytest
from oslo_config import cfg
from oslo_messaging import conffixture

from gantt import conf as options
from gantt import stores
from gantt.cmd.checks.database import check_server
from gantt.cmd.manage_config import diagnose
from gantt.core.claims.host_facts import UpdateHostFacts
from gantt.core.records.process import ServiceNote
from gantt.db.engine import session
from gantt.nova.model.events import GuestsListed, NovaCast
from tests.builders import a_draft, a_host, claimed
from tests.contract.test_providers import with_share
from tests.shared_pools import a_shared_pool, share


@pytest.fixture
def conf(synced):
    options_of_site = cfg.ConfigOpts()
    conffixture.ConfFixture(options_of_site)
    options.register_opts(options_of_site)
    options_of_site([], project='gantt', default_config_files=[])
    options_of_site.set_override('transport_url', 'rabbit://gantt:s3cret@127.0.0.1/')
    options_of_site.set_override('connection', f'sqlite:///{synced}/gantt.db', 'database')
    return options_of_site


@pytest.mark.parametrize('spec', ['{"devname": "eth0"}', 'no JSON'])
def test_devices_that_are_not_understood_are_an_error(conf, spec):
    conf.set_override('device_spec', ['{"vendor_id": "10de"}', spec], 'compute')
    (problem,) = [f for f in diagnose(conf, probe=False) if 'device_spec' in f.option]
    assert (problem.severity, problem.option) == ('error', '[compute] device_spec')


def test_only_hosts_are_counted(conf):
    conf.set_override('report_queue_limit', 2, 'scheduler')
    store = stores.connect(conf)
    a_host('cmp-1').on(store)
    a_host('cmp-2').on(store)
    for n in range(3):
        store.providers.create_provider(f'pool {n}')
    assert list(check_server(conf)) == []
    a_host('cmp-3').on(store)
    store.database.close()
    (problem,) = check_server(conf)
    assert problem.option == '[scheduler] report_queue_limit'
    assert problem.why.startswith('3 hosts are known')


def test_an_agent_that_fell_silent_is_named(conf):
    store = stores.connect(conf)
    for number, name in enumerate(('cmp-1', 'cmp-2', 'cmp-3'), 1):
        a_host(name).on(store, reporter='nova')
        word = GuestsListed(host=name, consumers=[])
        store.nova.apply_guest_events([NovaCast(requested_at=2_000_000_000.0, event=word)])
        if number < 3:
            assert (
                store.reports.update_host_facts(UpdateHostFacts(host=name, sequence=1)).outcome
                == 'applied'
            )
    store.database.close()
    assert list(check_server(conf)) == []
    engine = session.engine_from_conf(conf)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE provider_facts SET facts = json_set(facts, '$.agent.reported_at', 1000.5) "
            "WHERE provider_id IN (SELECT id FROM providers WHERE name = 'cmp-2')"
        )
        connection.exec_driver_sql(  # cannot be read: of it nothing is said here
            "UPDATE provider_facts SET facts = '{' "
            "WHERE provider_id IN (SELECT id FROM providers WHERE name = 'cmp-3')"
        )
    engine.dispose()
    (problem,) = check_server(conf)
    assert (problem.severity, problem.value) == ('warning', 'silent on 1 of 2 hosts')
    assert 'no report came for cmp-2' in problem.why


@pytest.mark.finding('H4', 'the doctor shows forged messages')
def test_an_alarm_of_a_scheduler_is_a_warning(conf):
    store = stores.connect(conf)
    note = ServiceNote(
        name='ctl-1:7:ab', kind='scheduler', host='ctl-1', version='2.0', configuration='0123'
    )
    store.services.note_service(note)
    assert list(check_server(conf)) == []
    store.services.note_service(msgspec.structs.replace(note, alarm='forged: 3 (cmp-1)'))
    store.database.close()
    (problem,) = check_server(conf)
    assert (problem.severity, problem.option) == ('warning', 'alarm of ctl-1:7:ab')
    assert problem.why == 'forged: 3 (cmp-1)'


@pytest.mark.parametrize('aggregates', [None, []])
def test_a_pool_that_serves_nobody_any_more_is_a_note(conf, aggregates):
    store = stores.connect(conf)
    hosts = [a_host(f'cmp-{n}').on(store) for n in range(2)]
    rack = store.declarations.save_aggregate('rack', {}, [host.name for host in hosts]).uuid
    pool, other = (a_shared_pool(store, name, [rack], DISK_GB=100) for name in ('ceph', 'nfs'))
    below = store.providers.create_provider(
        'gpu', parent=hosts[0].row.uuid, inventories=pool.inventories
    )
    for n in range(3):
        draft = with_share(a_draft().taking(hosts[n % 2]), pool, DISK_GB=1)
        claimed(store, with_share(draft, other, DISK_GB=1))
    claimed(store, with_share(a_draft().taking(hosts[0]), below, DISK_GB=1))  # its own
    alone = store.providers.create_provider('licences', inventories=pool.inventories)
    claimed(store, a_draft().taking(alone.id, lifecycle='api', DISK_GB=1))  # of no host
    assert list(check_server(conf)) == []
    share(store, pool, aggregates)
    (problem,) = check_server(conf)
    assert (problem.severity, problem.option) == ('note', 'pool ceph')
    assert problem.why.startswith('3 live claims on 2 hosts take from it')
    lacks = 'no trait MISC_SHARES_VIA_AGGREGATE' if aggregates is None else 'no aggregate'
    assert lacks in problem.value
    share(store, pool, [rack])
    assert list(check_server(conf)) == []
    assert not any(store.claims.audit().values())
    store.database.close()
