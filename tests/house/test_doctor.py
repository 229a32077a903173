# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage config doctor``: each dangerous setting is found, a sound one never."""

import json
import pathlib
import sqlite3
import uuid
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from oslo_config import cfg
from oslo_messaging import conffixture

from gantt import conf as options
from gantt.cmd.checks import database
from gantt.cmd.checks import options as site_options
from gantt.cmd.checks.results import Severity
from gantt.cmd.manage_config import diagnose
from gantt.db.engine import session
from gantt.db.schema import migration
from gantt.rpc.amqp import transport

ROOT = pathlib.Path(__file__).parents[2]
SOUND = """
[DEFAULT]
transport_url = rabbit://gantt:s3cret@127.0.0.1:5672/gantt
state_path = /var/lib/gantt
metrics_port = 9790
[database]
connection = postgresql+psycopg://gantt:s4cret@127.0.0.1/gantt
"""
RABBIT = '[oslo_messaging_rabbit]\n'
FAR = 'transport_url = rabbit://gantt:s3cret@rabbit-1:5671/gantt\n'
TWO = 'transport_url = rabbit://gantt:s3cret@a:5671,gantt:s3cret@b:5671/gantt\n'
TLS = RABBIT + f'ssl = true\nssl_ca_file = {__file__}\n'
QUORUM = RABBIT + 'rabbit_quorum_queue = true\nrabbit_transient_quorum_queue = true\n'
TOKENS = '[api]\nauth_strategy = keystone\n[keystone_authtoken]\nauth_type = password\n'
NOVA = '[rpc]\nnova_enabled = true\nnova_transport_url = rabbit://nova:s5cret@127.0.0.1/nova'
SOURCE = '[nova_source]\ncell = 3f08903e-ffa4-442a-bd00-09d817a78499\n'
NAMES = 'use_queue_manager = true\n'


@pytest.fixture
def a_conf(tmp_path):
    """``a_conf(text)``: the options of a sound file and what ``text`` adds or replaces."""

    def make(text='', base=SOUND):
        path = tmp_path / f'{uuid.uuid4().hex}.conf'
        path.write_text(f'{base}\n[DEFAULT]\n{text}')
        path.chmod(0o640)
        conf = cfg.ConfigOpts()
        conffixture.ConfFixture(conf)
        options.register_opts(conf)
        conf(['--config-file', str(path)], project='gantt')
        return conf

    return make


def found(conf, ask=False):
    return [(f.severity.value, f.option) for f in diagnose(conf, ask)]


def test_a_sound_configuration_has_no_findings(a_conf):
    assert diagnose(a_conf(), probe=False) == []


def test_the_example_of_the_documents_has_no_errors(a_conf):
    text = (ROOT / 'doc' / 'source' / 'install' / 'gantt.conf').read_text()
    findings = diagnose(a_conf(base=text), probe=False)
    assert {f.option for f in findings} == {'[database] connection'}
    assert all('everybody knows this password' in f.why for f in findings)


# What is added to the sound file, and all that the doctor says then.
CASES = [
    # the broker: where, as whom
    ('transport_url = rabbit://', [('warning', 'transport_url')]),
    ('transport_url = rabbit://guest:guest@127.0.0.1/', [('warning', 'transport_url')]),
    ('transport_url = carrier-pigeon://roof/', [('error', 'transport_url')]),
    ('transport_url = kombu+memory:///', []),
    (
        'transport_url = rabbit://gantt:s3cret@rabbit-1/gantt',
        [('error', '[oslo_messaging_rabbit] ssl')],
    ),
    # TLS
    (FAR, [('error', '[oslo_messaging_rabbit] ssl'), ('error', '[oslo_messaging_rabbit] ssl')]),
    (FAR + TLS, []),
    (TWO + TLS, [('note', 'transport_url')]),
    (FAR + RABBIT + 'ssl = true', [('error', '[oslo_messaging_rabbit] ssl_ca_file')]),
    (
        'transport_url = rabbit://gantt:s3cret@rabbit-1:5671/gantt?ssl=1',
        [('error', '[oslo_messaging_rabbit] ssl_ca_file')],
    ),
    (RABBIT + f'ssl_ca_file = {__file__}', [('error', '[oslo_messaging_rabbit] ssl_ca_file')]),
    (
        FAR + RABBIT + 'ssl = true\nssl_ca_file = /no/such/file',
        [('error', '[oslo_messaging_rabbit] ssl_ca_file')],
    ),
    (FAR + TLS + 'ssl_version = SSLv23', [('warning', '[oslo_messaging_rabbit] ssl_version')]),
    (
        FAR + RABBIT + 'ssl = true\nssl_version = SSLv23',
        [
            ('error', '[oslo_messaging_rabbit] ssl_version'),
            ('error', '[oslo_messaging_rabbit] ssl_ca_file'),
        ],
    ),
    # the broker: connections
    (
        RABBIT + 'heartbeat_timeout_threshold = 0',
        [('error', '[oslo_messaging_rabbit] heartbeat_timeout_threshold')],
    ),
    (
        RABBIT + 'heartbeat_timeout_threshold = 600',
        [('warning', '[oslo_messaging_rabbit] heartbeat_timeout_threshold')],
    ),
    (
        RABBIT + 'heartbeat_timeout_threshold = 2',
        [('warning', '[oslo_messaging_rabbit] heartbeat_timeout_threshold')],
    ),
    (RABBIT + 'heartbeat_rate = 0', [('error', '[oslo_messaging_rabbit] heartbeat_rate')]),
    (
        RABBIT + 'rabbit_interval_max = 300',
        [('warning', '[oslo_messaging_rabbit] rabbit_interval_max')],
    ),
    (
        RABBIT + 'rabbit_qos_prefetch_count = 1',
        [('error', '[oslo_messaging_rabbit] rabbit_qos_prefetch_count')],
    ),
    (
        RABBIT + 'rabbit_qos_prefetch_count = 32',
        [('warning', '[oslo_messaging_rabbit] rabbit_qos_prefetch_count')],
    ),
    (RABBIT + 'rabbit_qos_prefetch_count = 64', []),
    (
        RABBIT + 'rabbit_qos_prefetch_count = 0',
        [('warning', '[oslo_messaging_rabbit] rabbit_qos_prefetch_count')],
    ),
    (
        RABBIT + 'rabbit_qos_prefetch_count = 5000',
        [('warning', '[oslo_messaging_rabbit] rabbit_qos_prefetch_count')],
    ),
    (
        RABBIT + 'kombu_compression = gzip',
        [('warning', '[oslo_messaging_rabbit] kombu_compression')],
    ),
    ('[rpc]\nself_ping_seconds = 0', [('warning', '[rpc] self_ping_seconds')]),
    ('[rpc]\nworker_threads = 10', [('warning', '[oslo_messaging_rabbit] rpc_conn_pool_size')]),
    (RABBIT + 'rpc_conn_pool_size = 1', [('error', 'transport_url')]),
    # the broker: queues
    (RABBIT + 'rabbit_ha_queues = true', [('error', '[oslo_messaging_rabbit] rabbit_ha_queues')]),
    (RABBIT + 'amqp_auto_delete = true', [('warning', '[oslo_messaging_rabbit] amqp_auto_delete')]),
    (
        QUORUM + 'amqp_auto_delete = true\n' + NAMES + '[oslo_concurrency]\nlock_path = /tmp',
        [('error', '[oslo_messaging_rabbit] amqp_auto_delete')],
    ),
    (
        RABBIT + 'rabbit_stream_fanout = true',
        [('error', '[oslo_messaging_rabbit] rabbit_stream_fanout')],
    ),
    (
        RABBIT + 'rabbit_quorum_queue = true',
        [('warning', '[oslo_messaging_rabbit] rabbit_transient_quorum_queue')],
    ),
    (QUORUM, [('warning', '[oslo_messaging_rabbit] use_queue_manager')]),
    (QUORUM + NAMES, [('error', '[oslo_concurrency] lock_path')]),
    (QUORUM + NAMES + '[oslo_concurrency]\nlock_path = /var/lib/gantt/lock', []),
    (
        RABBIT + 'rabbit_transient_queues_ttl = 0',
        [('warning', '[oslo_messaging_rabbit] rabbit_transient_queues_ttl')],
    ),
    (
        RABBIT + 'rabbit_transient_queues_ttl = 30',
        [('warning', '[oslo_messaging_rabbit] rabbit_transient_queues_ttl')],
    ),
    (RABBIT + 'direct_mandatory_flag = false', []),
    # Nova
    (
        '[rpc]\nnova_transport_url = rabbit://nova:s5cret@127.0.0.1/',
        [('note', '[rpc] nova_transport_url')],
    ),
    (
        '[rpc]\nnova_rabbit_options = rabbit_quorum_queue:false',
        [('note', '[rpc] nova_rabbit_options')],
    ),
    (NOVA, []),
    ('[rpc]\nnova_enabled = true', [('warning', '[rpc] nova_transport_url')]),
    (NOVA + '\nnova_topic = gantt-stats', [('error', '[rpc] nova_topic')]),
    (NOVA + '\nnova_budget_seconds = 90', [('note', '[rpc] nova_budget_seconds')]),
    (NOVA + '\nnova_lease_seconds = 60', [('error', '[rpc] nova_lease_seconds')]),
    (NOVA + '\nnova_lease_seconds = 300', [('warning', '[rpc] nova_lease_seconds')]),
    (
        NOVA + '\nnova_rabbit_options = heartbeat_rate:0',
        [('error', '[oslo_messaging_rabbit] heartbeat_rate')],
    ),
    # gantt-nova-source
    (SOURCE, []),
    (SOURCE + 'interval_seconds = 100', [('warning', '[nova_source] interval_seconds')]),
    (SOURCE + 'interval_seconds = 3600', [('error', '[nova_source] interval_seconds')]),
    ('[nova_source]\ncell = nonsense', [('error', '[nova_source] cell')]),
    ('[nova_source]\ncells_file = /no/such', [('error', '[nova_source] cells_file')]),
    (f'[nova_source]\ncells_file = {__file__}', [('error', '[nova_source] cells_file')]),
    (SOURCE + f'cells_file = {__file__}', [('error', '[nova_source] cell')]),
    (SOURCE + '[nova]\nauth_type = password\nauth_url = https://keystone/v3', []),
    (SOURCE + '[nova]\nauth_type = password\nauth_url = keystone', [('error', '[nova] auth_url')]),
    (SOURCE + '[nova]\nauth_type = pasword', [('error', '[nova] auth_type')]),
    ('[databse]\nmax_pool_size = 9', [('error', '[databse]')]),
    # periods and bounds
    (
        '[claims]\nlease_seconds = 800\nlease_seconds_max = 700',
        [('error', '[claims] lease_seconds')],
    ),
    ('[scheduler]\nunknown_after_seconds = 30', [('error', '[scheduler] unknown_after_seconds')]),
    ('[scheduler]\nunknown_after_seconds = 90', [('warning', '[scheduler] unknown_after_seconds')]),
    (
        '[scheduler]\nfeed_seconds = 60\nreport_seconds = 30\nunknown_after_seconds = 60',
        [('error', '[scheduler] feed_seconds')],
    ),
    ('[filters]\nservice_down_time = 60', [('error', '[scheduler] report_seconds')]),
    ('[filters]\nservice_down_time = 100', [('warning', '[scheduler] report_seconds')]),
    ('[compute]\nreport_seconds = 170', [('error', '[compute] report_seconds')]),
    ('[claims]\nlease_seconds = 90', [('warning', '[claims] lease_seconds')]),
    ('[claims]\nsweep_seconds = 200', [('warning', '[claims] sweep_seconds')]),
    ('[claims]\ntombstone_seconds = 300', [('warning', '[claims] tombstone_seconds')]),
    ('[claims]\nrequest_seconds = 300', [('warning', '[claims] request_seconds')]),
    ('[claims]\ntombstone_seconds = 200000', [('error', '[compute] tombstone_seconds')]),
    ('[decisions]\ncount_max = 0', [('note', '[decisions] count_max')]),
    ('[decisions]\nreplay_seconds = 120', [('warning', '[decisions] replay_seconds')]),
    ('[decisions]\nreplay_seconds = 0', []),
    ('[rpc]\ndrain_seconds = 60', [('note', '[rpc] drain_seconds')]),
    ('[rpc]\nreply_backlog = 100', [('warning', '[rpc] reply_backlog')]),
    ('[rpc]\nreply_retry_seconds = 0', [('warning', '[rpc] reply_retry_seconds')]),
    ('[rpc]\npayload_bytes_max = 8192', [('warning', '[rpc] payload_bytes_max')]),
    # the database
    ('[database]\nconnection =', [('error', '[database] connection')]),
    ('[database]\nconnection = nonsense', [('error', '[database] connection')]),
    (
        '[database]\nconnection = postgresql://gantt:DB_PASS@127.0.0.1/gantt',
        [('warning', '[database] connection')],
    ),
    (
        '[database]\nconnection = postgresql://gantt:s4cret@db-1/gantt',
        [('error', '[database] connection')],
    ),
    (
        '[database]\nconnection = postgresql://gantt:s4cret@db-1/gantt?sslmode=require',
        [('error', '[database] connection')],
    ),
    ('[database]\nconnection = postgresql://gantt:s4cret@db-1/gantt?sslmode=verify-full', []),
    (
        '[database]\nconnection = mysql+pymysql://gantt:s4cret@db-1/gantt',
        [('error', '[database] connection')],
    ),
    ('[database]\nconnection = mysql+pymysql://gantt:s4cret@db-1/gantt?ssl_ca=/etc/ca.pem', []),
    (
        '[database]\nconnection = mysql+pymysql://gantt:s4cret@127.0.0.1/gantt\nmysql_sql_mode =',
        [('error', '[database] mysql_sql_mode')],
    ),
    (
        '[database]\nconnection = sqlite:////var/lib/gantt/gantt.db',
        [('note', '[database] connection')],
    ),
    (
        '[database]\nconnection = sqlite:////var/lib/gantt/gantt.db\nsqlite_synchronous = false\n'
        '[scheduler]\nworkers = 2\n[filters]\nhost_subset_size = 3',
        [('error', '[scheduler] workers'), ('error', '[database] sqlite_synchronous')],
    ),
    (
        '[database]\nmax_overflow = 5',
        [('warning', '[database] max_overflow'), ('warning', '[database] max_overflow')],
    ),
    ('[database]\nmax_overflow = -1', []),
    (
        '[database]\nstatement_seconds = 1\nlock_wait_seconds = 1',
        [('error', '[database] statement_seconds')],
    ),
    ('[database]\nlock_wait_seconds = 20', [('warning', '[database] lock_wait_seconds')]),
    ('[database]\nconnect_seconds = 15', [('warning', '[database] connect_seconds')]),
    ('[database]\ntransaction_attempts = 1', [('warning', '[database] transaction_attempts')]),
    (
        '[database]\nidle_transaction_seconds = 600',
        [('warning', '[database] idle_transaction_seconds')],
    ),
    (
        '[database]\ndb_max_retries = 50\nslave_connection = postgresql://gantt:s6cret@db-2/gantt',
        [('note', '[database] slave_connection'), ('note', '[database] db_max_retries')],
    ),
    # processes
    ('[api]\nhost = 10.0.0.1', [('error', '[api] host'), ('warning', '[api] host')]),
    (
        '[api]\nhost = 10.0.0.1\nbehind_proxy = true',
        [('error', '[api] host'), ('warning', '[api] host'), ('warning', '[api] behind_proxy')],
    ),
    ('[api]\ntable_age_seconds = 60', [('error', '[api] table_age_unhealthy_seconds')]),
    ('metrics_port = 0', [('note', '[DEFAULT] metrics_port')]),
    (
        'metrics_port = 65535\n[scheduler]\nworkers = 2\n[filters]\nhost_subset_size = 3',
        [('error', '[DEFAULT] metrics_port')],
    ),
    (
        'metrics_port = 8789\n[scheduler]\nworkers = 2\n[filters]\nhost_subset_size = 3',
        [('error', '[DEFAULT] metrics_port')],
    ),
    ('metrics_host = 10.0.0.1', [('error', '[DEFAULT] metrics_host')]),
    ('[filters]\nskip_failing_plugins = true', [('warning', '[filters] skip_failing_plugins')]),
    (
        '[filters]\nenabled_filters = ComputeFiler',
        [('error', '[filters]')]
        + 2 * [('error', '[filters] enabled_filters')]
        + 17 * [('warning', '[filters] enabled_filters')],
    ),
    # who asks
    ('[api]\nauth_strategy = keystoen', [('error', '[api] auth_strategy')]),
    ('[api]\nauth_strategy = keystone', [('error', '[keystone_authtoken] auth_type')]),
    (TOKENS, [('error', '[keystone_authtoken] auth_url')]),
    (TOKENS + 'auth_url = https://keystone/v3', []),
    (TOKENS + 'auth_url = http://keystone/v3', [('warning', '[keystone_authtoken] auth_url')]),
    (
        TOKENS + 'auth_url = http://127.0.0.1/v3\ninsecure = true',
        [('warning', '[keystone_authtoken] insecure')],
    ),
    ('[oslo_policy]\npolicy_file = no-such.yaml', [('error', '[oslo_policy] policy_file')]),
    ('state_path = /run/gantt', [('warning', '[DEFAULT] state_path')]),
    (
        '[compute]\nguest_start_command = start',
        [('error', '[compute] guest_stop_command'), ('warning', '[compute] guest_list_command')],
    ),
]


@pytest.mark.parametrize(
    ('text', 'expected'),
    CASES,
    ids=[c[0].replace('\n', ' ').replace(':', ';')[-60:] for c in CASES],  # gabbi wants the colons
)
def test_what_the_doctor_says(a_conf, text, expected):
    findings = diagnose(a_conf(text), probe=False)
    assert [(f.severity.value, f.option) for f in findings] == expected
    for f in findings:
        assert f.why
        assert not f.why.endswith('.')
        assert f.instead[0].isupper() or f.instead.startswith('chown')
        assert not any(f's{n}cret' in f'{f.value}{f.why}' for n in range(3, 7)), f


def test_the_cases_have_findings_of_every_severity():
    assert {severity for _, expected in CASES for severity, _ in expected} == set(Severity)


def test_the_broker_that_only_shadow_mode_reads_is_not_to_be_removed(a_conf):
    text = (
        '[rpc]\nnova_transport_url = rabbit://nova:s5cret@nova-1/\nnova_rabbit_options = ssl:true'
    )
    findings = diagnose(a_conf(text), probe=False)
    assert [f.option for f in findings] == ['[rpc] nova_transport_url', '[rpc] nova_rabbit_options']
    assert all('read by gantt-shadow only' in f.why for f in findings)
    assert all(f.instead.startswith('Keep it where gantt-shadow runs') for f in findings)


def test_a_rule_that_lets_everybody_is_found(a_conf, tmp_path):
    rules = tmp_path / 'rules.yaml'
    rules.write_text('"gantt:claims:release": "@"\n"gantt:metrics:show": "@"\n')
    [finding] = diagnose(a_conf(f'[oslo_policy]\npolicy_file = {rules}'), probe=False)
    assert (finding.option, finding.value) == ('[oslo_policy] policy_file', str(rules))
    assert 'gantt:claims:release lets everybody' in finding.why


def test_a_file_with_passwords_that_everybody_can_read_is_found(a_conf):
    conf = a_conf()
    path = pathlib.Path(conf.config_file[0])
    path.chmod(0o644)
    [finding] = diagnose(conf, probe=False)
    assert (finding.option, finding.value) == (str(path), '0o644')


# -- what servers say ---------------------------------------------------------------------


def on(url):
    return f'[database]\nconnection = {url}'


def of_the_server(conf):
    return {f.option: f for f in database.check_server(conf)}


@pytest.mark.postgresql
def test_postgresql_is_asked_for_what_promises_rest_on(a_conf, postgresql_url):
    conf = a_conf(on(postgresql_url))
    engine = session.build_engine(postgresql_url)
    with engine.begin() as connection:  # tests before this one may have synced it
        connection.exec_driver_sql('DROP SCHEMA public CASCADE')
        connection.exec_driver_sql('CREATE SCHEMA public')
        connection.exec_driver_sql('GRANT USAGE ON SCHEMA public TO PUBLIC')  # as it was
    assert of_the_server(conf)['schema'].severity is Severity.ERROR
    migration.sync(engine)
    by_setting = of_the_server(conf)
    assert {f.option for f in by_setting.values() if f.severity is Severity.ERROR} == set()
    name = sa.make_url(postgresql_url).database
    with engine.connect() as connection:
        # For new sessions of this database alone; this one stays as it is.
        connection.execution_options(isolation_level='AUTOCOMMIT')
        for setting in (
            'synchronous_commit = off',
            'default_transaction_read_only = on',
            "idle_session_timeout = '5s'",
        ):
            connection.exec_driver_sql(f'ALTER DATABASE {name} SET {setting}')
        try:
            by_setting = of_the_server(conf)
        finally:
            connection.exec_driver_sql(f'ALTER DATABASE {name} RESET ALL')
    engine.dispose()
    assert by_setting['synchronous_commit'].severity is Severity.ERROR
    assert by_setting['default_transaction_read_only'].severity is Severity.ERROR
    assert by_setting['idle_session_timeout'].value == '5 s'


#: A PostgreSQL server as it should be.
POSTGRESQL = {
    'synchronous_commit': 'on',
    'fsync': 'on',
    'full_page_writes': 'on',
    'autovacuum': 'on',
    'server_encoding': 'UTF8',
    'max_connections': '100',
    'superuser_reserved_connections': '3',
    'synchronous_standby_names': '',
    'default_transaction_read_only': 'off',
    'is_standby': False,
    'is_superuser_role': False,
}


@pytest.mark.parametrize(
    ('said', 'expected'),
    [
        ({}, []),
        ({'fsync': 'off'}, ['fsync']),
        ({'full_page_writes': 'off'}, ['full_page_writes']),
        (
            {'synchronous_standby_names': 'db-2', 'synchronous_commit': 'local'},
            ['synchronous_commit'],
        ),
        ({'synchronous_standby_names': 'db-2'}, []),
        ({'is_standby': True, 'default_transaction_read_only': 'on'}, ['pg_is_in_recovery()']),
        ({'server_encoding': 'SQL_ASCII'}, ['server_encoding']),
        ({'autovacuum': 'off'}, ['autovacuum']),
        ({'is_superuser_role': True}, ['[database] connection']),
        ({'max_connections': '30'}, ['max_connections']),
    ],
)
def test_what_settings_of_postgresql_mean(a_conf, said, expected):
    findings = database.check_postgresql(a_conf(), POSTGRESQL | said)
    assert [f.option for f in findings] == expected


@pytest.mark.mysql
def test_mariadb_is_asked_for_what_promises_rest_on(a_conf, mysql_url):
    engine = session.build_engine(mysql_url)
    migration.sync(engine)
    conf = a_conf(on(mysql_url))
    assert {f.option for f in database.check_server(conf)} <= {'max_connections'}
    with engine.connect() as connection:
        rows = connection.exec_driver_sql('SHOW GLOBAL VARIABLES').all()
    engine.dispose()
    sound = {name.lower(): value for name, value in rows} | {'max_connections': '500'}
    assert list(database.check_mysql(conf, sound)) == []
    for changes, expected in (
        ({'innodb_flush_log_at_trx_commit': '2'}, ['innodb_flush_log_at_trx_commit']),
        ({'innodb_doublewrite': 'OFF'}, ['innodb_doublewrite']),
        (
            {'log_bin': 'ON', 'binlog_format': 'STATEMENT', 'sync_binlog': '0'},
            ['binlog_format', 'sync_binlog'],
        ),
        ({'log_bin': 'ON', 'binlog_format': 'ROW', 'sync_binlog': '1'}, []),
        ({'read_only': 'ON'}, ['read_only']),
        ({'wait_timeout': '10'}, ['wait_timeout']),
        ({'wsrep_on': 'ON'}, ['[database] mysql_wsrep_sync_wait']),
        ({'max_connections': '10'}, ['max_connections']),
    ):
        assert set(changes) - {'wsrep_on'} <= set(sound)
        findings = database.check_mysql(conf, sound | changes)
        assert [f.option for f in findings] == expected


def test_sessions_that_share_a_connection_are_found(tmp_path):
    """As behind a proxy that pools by transaction; a number of our own stands for the server's."""
    numbers = iter(range(100))

    def engine_with(pool):
        engine = sa.create_engine(f'sqlite:///{tmp_path}/x.db', poolclass=pool)
        sa.event.listen(
            engine,
            'connect',
            lambda raw, _: (lambda n: raw.create_function('session', 0, lambda: n))(next(numbers)),
        )
        return engine

    for pool, expected in ((sa.pool.StaticPool, 1), (sa.pool.NullPool, 0)):
        engine = engine_with(pool)
        with engine.connect() as connection:
            assert (
                len(list(database.check_two_sessions(engine, connection, 'SELECT session()')))
                == expected
            )
        engine.dispose()


@pytest.mark.parametrize(
    ('apart', 'nova', 'expected'),
    [(0, False, []), (100, False, ['warning']), (-100, True, ['error']), (10, True, ['warning'])],
)
def test_a_clock_that_is_wrong_is_found(a_conf, tmp_path, monkeypatch, apart, nova, expected):
    conf = a_conf(f'[rpc]\nnova_enabled = {nova}')
    wall = database.time.time
    monkeypatch.setattr(database, 'time', SimpleNamespace(time=lambda: wall() + apart))
    engine = session.build_engine(f'sqlite:///{tmp_path}/clock.db')
    with engine.connect() as connection:
        findings = list(database._check_clock(conf, connection))
    engine.dispose()
    assert [f.severity.value for f in findings] == expected
    if findings:
        assert ('ahead of' if apart > 0 else 'behind') in findings[0].value


def test_servers_that_do_not_answer_are_a_note_or_with_live_an_error(a_conf):
    conf = a_conf(
        'transport_url = rabbit://gantt:s3cret@127.0.0.1:9/gantt\n'
        + on('postgresql+psycopg://gantt:s4cret@127.0.0.1:9/gantt')
    )
    away = ['message broker', 'database']
    assert found(conf, None) == [('note', server) for server in away]
    assert found(conf, True) == [('error', server) for server in away]
    assert found(conf, False) == []


@pytest.mark.rabbit
@pytest.mark.parametrize(
    ('change', 'wrong'),
    [
        (lambda parts: parts._replace(path='/no-such-vhost'), 'the virtual host'),
        (
            lambda parts: parts._replace(netloc=f'nobody:wr0ng@{parts.hostname}:{parts.port}'),
            'the user or the password',
        ),
    ],
    ids=['vhost', 'user'],
)
@pytest.mark.parametrize('ask', [None, True])
def test_a_broker_that_refuses_us_runs(a_conf, rabbit_url, change, wrong, ask):
    url = change(urlsplit(rabbit_url)).geturl()
    (refused,) = [
        f for f in diagnose(a_conf(f'transport_url = {url}'), ask) if f.option == 'message broker'
    ]
    assert refused.severity is Severity.ERROR
    assert refused.why.startswith('it runs and refuses us')
    assert refused.instead.startswith(f'Correct in transport_url {wrong}')
    assert 'wr0ng' not in refused.why


@pytest.mark.parametrize('ask', [None, True])
def test_a_database_that_refuses_us_runs(a_conf, mysql_url, ask):
    url = sa.make_url(mysql_url).set(username='nobody', password='wr0ng')
    conf = a_conf(on(url.render_as_string(hide_password=False)))
    (refused,) = [f for f in diagnose(conf, ask) if f.option == 'database']
    assert refused.severity is Severity.ERROR
    assert refused.instead == 'Correct in [database] connection the user or the password'
    assert 'wr0ng' not in refused.why


@pytest.mark.rabbit
def test_the_broker_is_asked_for_its_version(a_conf, rabbit_url, monkeypatch):
    conf = a_conf(f'transport_url = {rabbit_url}')
    findings = diagnose(conf, True)
    assert 'message broker' not in [f.option for f in findings]
    monkeypatch.setattr(transport.Transport, 'server_version', lambda carrier: '4.3.1')
    options = [f.option for f in diagnose(conf, True) if f.severity is Severity.ERROR]
    assert '[oslo_messaging_rabbit] rabbit_transient_quorum_queue' in options


def test_a_sqlite_file_that_is_not_there_is_not_made(a_conf, tmp_path):
    conf = a_conf(on(f'sqlite:///{tmp_path}/no.db'))
    assert [f.option for f in database.check_server(conf)] == ['schema']
    assert not (tmp_path / 'no.db').exists()


def test_more_hosts_than_reports_may_wait_are_found(a_conf, synced):
    conf = a_conf(on(f'sqlite:///{synced}/gantt.db') + '\n[scheduler]\nreport_queue_limit = 1')
    insert = 'INSERT INTO providers (uuid, name, kind) VALUES (?, ?, ?)'
    with sqlite3.connect(synced / 'gantt.db') as file:
        file.execute(insert, (str(uuid.uuid4()), 'cmp-1', 'host'))
    assert list(database.check_server(conf)) == []
    with sqlite3.connect(synced / 'gantt.db') as file:
        file.execute(insert, (str(uuid.uuid4()), 'cmp-2', 'host'))
    assert [f.option for f in database.check_server(conf)] == ['[scheduler] report_queue_limit']


# -- what the rules rest on -------------------------------------------------------------------


def test_the_topics_are_those_that_a_scheduler_listens_on():
    assert set(site_options.OWN_TOPICS) == {'gantt-scheduler', 'gantt-claims', 'gantt-stats'}


def test_the_options_that_have_no_effect_are_read_nowhere():
    code = '\n'.join(
        path.read_text()
        for path in (ROOT / 'gantt').rglob('*.py')
        if 'doctor' not in path.parts and path.name != 'engine.py'
    )
    for name in site_options.UNUSED_OPTIONS:
        assert f'database.{name}' not in code
        assert f'options.{name}' not in code


# -- as an operator runs it -------------------------------------------------------------------


def test_the_command_prints_findings_and_exits_1_for_an_error(synced, manage):
    config = synced / 'gantt.conf'
    config.chmod(0o640)
    code, out, error = manage('config', 'doctor', '--no-live')
    assert code == 0, out + error
    assert out.splitlines()[-1].startswith('errors 0, warnings ')
    with config.open('a') as file:
        file.write('sqlite_synchronous = false\n')
    code, out, _ = manage('config', 'doctor', '--no-live')
    assert code == 1
    assert out.startswith('error    [database] sqlite_synchronous = False\n         claims that')
    code, out, _ = manage('config', 'doctor', '--no-live', '-f', 'json')
    report = json.loads(out)
    assert code == 1
    assert report['counts']['error'] == 1
    assert report['findings'][0]['option'] == '[database] sqlite_synchronous'
    assert set(report['findings'][0]) == {'severity', 'option', 'value', 'why', 'instead'}
