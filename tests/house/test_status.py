# SPDX-License-Identifier: Apache-2.0
"""gantt-status upgrade check, as an operator runs it, on a SQLite file."""

import functools
import json
import sqlite3

import pytest

from gantt.cmd.checks.database import check_schema
from gantt.cmd.checks.results import Severity
from gantt.db.schema import migration
from gantt.stores import stores_for_url
from tests.builders import a_draft, a_host, claimed
from tests.options import options_of

READY, LOOK, STOP = 0, 1, 2


@pytest.fixture
def check(site, program):
    """``check()``: exit code, and title -> (result, details)."""
    with site.joinpath('gantt.conf').open('a') as config:
        config.write('[DEFAULT]\ntransport_url = kombu+memory:///\n')

    def run():
        code, out, error = program('status', 'upgrade', 'check', '--json')
        assert out, error
        checks = json.loads(out)['checks']
        return code, {line['check']: (line['result'], line['details']) for line in checks}

    return run


@pytest.fixture
def store(synced):
    opened = stores_for_url(f'sqlite:///{synced}/gantt.db')
    yield opened
    opened.database.close()


def test_a_sound_site_is_ready(synced, store, check):
    a_host('cmp-1').on(store)
    code, checks = check()
    assert code == READY, checks
    assert checks['Schema of the database'] == (READY, f'at {migration.expected()}')
    assert checks['Hosts'] == (READY, '1 report')
    assert checks['Promises'] == (READY, 'the audit finds nothing')


def test_a_database_without_a_schema_stops_it(site, check):
    code, checks = check()
    assert code == STOP
    assert 'gantt-manage db sync' in checks['Schema of the database'][1]


@pytest.mark.parametrize(
    ('step', 'advice'),
    [
        ('0099_expand_later', 'while the processes of the last release still run'),
        ('0099_contract_later', 'stop all its processes'),
    ],
)
def test_a_schema_of_the_last_release_stops_it_and_says_what_may_run_meanwhile(
    synced, tmp_path, monkeypatch, step, advice
):
    revisions = migration.revisions()
    monkeypatch.setattr(migration, 'revisions', lambda: (step, *revisions))
    text = f'[database]\nconnection = sqlite:///{synced}/gantt.db\n'
    (problem,) = check_schema(options_of(tmp_path / 'later.conf', text))
    assert problem.severity is Severity.ERROR
    assert step in problem.why
    assert advice in problem.why


def test_a_schema_of_a_later_release_stops_it(synced, check):
    with sqlite3.connect(synced / 'gantt.db') as database:
        database.execute("UPDATE alembic_version SET version_num = '9999_expand_future'")
    code, checks = check()
    assert code == STOP
    assert 'does not know' in checks['Schema of the database'][1]


@pytest.fixture
def foreign(site):
    """The site's database is another service's, with a table of a name that Gantt has, too."""
    with sqlite3.connect(site / 'gantt.db') as database:
        database.execute('CREATE TABLE alembic_version (version_num TEXT)')
        database.execute("INSERT INTO alembic_version VALUES ('abc123')")
        database.execute('CREATE TABLE providers (colour TEXT)')
    return site


def test_a_database_of_another_service_fails_one_check(foreign, check):
    code, checks = check()
    assert code == STOP
    result, details = checks['Schema of the database']
    assert result == STOP
    assert "another service's" in details
    assert checks['Hosts'] == (READY, 'skipped: bring the schema up to date first')
    assert checks['Options'][0] == READY


def test_a_table_that_is_none_of_ours_fails_one_check(synced, check):
    with sqlite3.connect(synced / 'gantt.db') as database:
        database.execute('ALTER TABLE providers RENAME COLUMN reported_at TO colour')
    code, checks = check()
    assert code == STOP
    assert checks['Hosts'][0] == STOP
    assert 'reported_at' in checks['Hosts'][1]
    assert checks['Schema of the database'][0] == READY


def test_a_broker_that_is_none_fails_one_check(synced, check):
    with synced.joinpath('gantt.conf').open('a') as config:
        config.write('[DEFAULT]\ntransport_url = fake://\n')
    code, checks = check()
    assert code == STOP
    assert checks['Schedulers that run'][0] == STOP
    assert 'transport_url: fake://' in checks['Schedulers that run'][1]
    assert checks['Hosts'][0] == READY


def test_nothing_advises_to_sync_a_database_of_another_service(foreign, manage):
    for command in (['audit'], ['db', 'sync'], ['db', 'version'], ['db', 'incarnation']):
        code, out, error = manage(*command)
        assert code == (0 if command == ['db', 'version'] else 1)
        assert "another service's" in out + error
        assert 'run "gantt-manage db sync"' not in out + error
        assert 'Traceback' not in error


def test_a_database_without_a_schema_has_no_incarnation(site, manage):
    code, _, error = manage('db', 'incarnation')
    assert code == 1
    assert 'run "gantt-manage db sync"' in error
    assert 'unexpected' not in error


def test_a_revision_that_takes_away_is_told_from_one_that_adds():
    assert migration.contracts('0042_contract_old_names')
    assert not any(migration.contracts(revision) for revision in migration.revisions())
    newest, *_ = migration.revisions()
    assert migration.pending(newest) == []
    assert migration.pending('9999_future') is None


@pytest.mark.parametrize(
    ('addition', 'code', 'said'),
    [
        pytest.param('[scheduler]\nqueue_limt = 9\n', LOOK, 'mean queue_limit?', id='unread'),
        pytest.param('[scheduler]\nqueue_limit = many\n', STOP, 'queue_limit', id='unreadable'),
        pytest.param(
            '[claims]\nlease_seconds = 800\nlease_seconds_max = 700\n',
            STOP,
            'lease_seconds_max',
            id='contradiction',
        ),
        pytest.param(
            '[filters]\nenabled_filters = ComputeFiler\n', STOP, 'ComputeFilter', id='no-plugin'
        ),
    ],
)
def test_an_option_that_is_wrong_or_not_read_is_named(synced, check, addition, code, said):
    with synced.joinpath('gantt.conf').open('a') as config:
        config.write(addition)
    status, checks = check()
    assert status == code
    assert checks['Options'][0] == code
    assert said in checks['Options'][1]


def test_a_policy_file_that_is_wrong_stops_it(synced, check):
    path = synced / 'policy.yaml'
    path.write_text('"gantt:hosts:lst": "role:admin"\n')
    with synced.joinpath('gantt.conf').open('a') as config:
        config.write(f'[oslo_policy]\npolicy_file = {path}\n')
    code, checks = check()
    assert code == STOP
    assert 'gantt:hosts:lst' in checks['Policies'][1]


def test_hosts_that_are_silent_are_named(synced, store, check):
    a_host('cmp-1').on(store)
    a_host('cmp-2').on(store)
    with sqlite3.connect(synced / 'gantt.db') as database:
        database.execute(
            "UPDATE providers SET reported_at = reported_at - 1000 WHERE name = 'cmp-2'"
        )
    code, checks = check()
    assert code == LOOK
    result, details = checks['Hosts']
    assert result == LOOK
    assert details.startswith('1 of 2 hosts have not reported for 180 s: cmp-2.')


def test_what_the_audit_finds_is_to_be_looked_at(synced, store, check):
    claimed(store, a_draft().taking(a_host('cmp-1').on(store), vcpu=2))
    with sqlite3.connect(synced / 'gantt.db') as database:
        database.execute('UPDATE providers SET used_vcpu = 1')
    code, checks = check()
    assert code == LOOK
    assert 'cmp-1' in checks['Promises'][1]


def test_a_database_that_is_away_stops_it(site, check):
    text = site.joinpath('gantt.conf').read_text()
    away = 'connection = postgresql+psycopg://gantt:s3cret@127.0.0.1:9/gantt\nconnect_seconds = 2'
    site.joinpath('gantt.conf').write_text(
        text.replace(f'connection = sqlite:///{site}/gantt.db', away)
    )
    code, checks = check()
    assert code == STOP
    assert checks['Schema of the database'][1].startswith('the database does not answer')
    assert 's3cret' not in str(checks)


def test_what_is_logged_is_not_among_the_results(site, synced, program):
    config = site.joinpath('gantt.conf')
    lines = [line for line in config.read_text().splitlines() if not line.startswith('log_file')]
    lines.insert(1, 'transport_url = rabbit://guest:guest@127.0.0.1:1/')
    config.write_text('\n'.join(lines))
    _, out, error = program('status', 'upgrade', 'check', '--json')
    assert json.loads(out)['checks']
    assert 'Call failed and is repeated' in error


def test_people_get_a_table(synced, program):
    status = functools.partial(program, 'status')
    code, out, _ = status('upgrade', 'check')
    assert code in (READY, LOOK)
    assert '| Check: Schema of the database' in out


def test_wrong_usage_and_a_broken_file_are_told_from_the_checks(site, program):
    status = functools.partial(program, 'status')
    assert status()[0] == 64
    code, _, error = status('upgrade', 'chek')
    assert (code, 'gantt-status upgrade check' in error) == (64, True)
    code, out, error = status('upgrade', 'check', config=site / 'no-such.conf')
    assert (code, out) == (255, '')
    assert 'no-such.conf' in error
