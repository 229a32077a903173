# SPDX-License-Identifier: Apache-2.0
"""gantt-manage, as an operator runs it: output and exit codes, on a SQLite file."""

import json
import pathlib
import re
import sqlite3

import pytest

from gantt.cmd import manage as manage_command
from gantt.core.records import audit_remedies
from gantt.db.schema import migration
from tests.builders import CLEAN, KINDS_OF_FINDINGS


def test_sync_makes_the_schema_and_may_be_repeated(site, manage):
    head = migration.expected()
    code, out, _ = manage('db', 'version')
    assert (code, out.splitlines()[0]) == (0, f'database none, needed {head}')
    assert 'gantt-manage db sync' in out
    code, out, error = manage('db', 'sync')
    assert (code, out) == (0, f'the database is at {head} (was none)\n'), error
    code, out, _ = manage('db', 'sync')
    assert (code, out) == (0, f'the database is at {head} already\n')
    code, out, _ = manage('db', 'version', '-f', 'json')
    assert json.loads(out) == {'database': head, 'needed': head, 'in_step': True}


def test_a_database_that_was_put_back_gets_another_incarnation(synced, manage):
    code, first, _ = manage('db', 'incarnation')
    assert (code, first.split()[0]) == (0, 'incarnation')
    assert manage('db', 'incarnation')[1] != first


@pytest.mark.parametrize('command', [('audit',), ('purge',)])
def test_a_database_that_is_not_synced_says_what_to_run(site, command, manage):
    code, out, error = manage(*command)
    assert (code, out) == (1, '')
    assert 'gantt-manage db sync' in error
    assert 'Traceback' not in error


NOTHING = 'over-commit 0, lost 0, leaked 0, doubled 0, providers 0'


def test_the_audit_of_a_sound_database_is_zeros(synced, manage):
    code, out, _ = manage('audit')
    assert (code, out) == (0, f'{NOTHING}\n')
    code, out, _ = manage('audit', '-f', 'json')
    assert code == 0
    audit = json.loads(out)
    assert audit['counts'] == dict.fromkeys(KINDS_OF_FINDINGS, 0)
    assert audit['violations'] == CLEAN
    assert (audit['remedies'], audit['flagged']) == ([], [])


def test_the_audit_finds_usage_without_a_claim_and_exits_1(synced, manage):
    with sqlite3.connect(synced / 'gantt.db') as database:
        database.execute(
            'INSERT INTO providers (uuid, name, kind, cap_vcpu, used_vcpu)'
            " VALUES ('00000000-0000-4000-8000-000000000001', 'cmp-1', 'host', 4, 9)"
        )
    code, out, _ = manage('audit')
    summary, *lines = out.splitlines()
    assert code == 1
    assert summary == 'over-commit 2, lost 0, leaked 0, doubled 0, providers 2'
    assert all('cmp-1' in line for line in lines[:4]), out
    # What to do stands below, once for each sort of line.
    assert [line.split(':')[1] for line in lines[4:]] == [
        ' more than its capacity',
        ' a counter that differs from its claims',
        ' a record that contradicts the kind',
        ' capacities that contradict the inventories',
    ]


def test_each_sort_of_line_of_the_audit_is_in_the_manual():
    text = (pathlib.Path(__file__).parents[2] / 'doc/source/admin/operate.rst').read_text()
    rows = re.findall(r'^   \* - (\S+)\n     - (.*)\n     - ', text, re.M)
    sorts = [
        (manage_command.AUDIT_KIND_TEXTS[remedy.kind], remedy.about)
        for remedy in audit_remedies.REMEDIES
    ]
    assert [row for row in rows if row[0] in manage_command.AUDIT_KIND_TEXTS.values()] == sorts


def test_purge_says_how_much_went(synced, manage):
    assert manage('purge')[:2] == (0, '0 rows deleted\n')


def test_config_check_of_a_sound_site(within, manage):
    code, out, error = manage('config', 'check')
    assert code == 0, out + error
    assert [line.split()[:2] for line in out.splitlines()] == [
        ['options', 'ok'],
        ['names', 'ok'],
        ['ports', 'ok'],
        ['plugins', 'ok'],
        ['libraries', 'ok'],
        ['database', 'ok'],
        ['broker', 'ok'],
    ]


@pytest.mark.parametrize(
    ('addition', 'said'),
    [
        ('[claims]\nlease_seconds = 800\nlease_seconds_max = 700\n', '[claims] lease_seconds'),
        (
            '[scheduler]\nreport_seconds = 600\n',
            '[scheduler] unknown_after_seconds',
        ),
        ('[filters]\nenabled_filters = ComputeFiler\n', "did you mean 'ComputeFilter'"),
    ],
)
def test_config_check_names_what_is_wrong_and_goes_on(within, addition, said, manage):
    with within.joinpath('gantt.conf').open('a') as config:
        config.write(addition)
    code, out, _ = manage('config', 'check')
    assert code == 1
    wrong = [line for line in out.splitlines() if ' WRONG ' in line]
    assert len(wrong) == 1
    assert said in wrong[0]
    assert len(out.splitlines()) == 7


def test_an_unreachable_database_is_one_line(site, manage):
    config = site / 'away.conf'
    config.write_text(
        '[database]\nconnection = postgresql+psycopg://gantt:s3cret@127.0.0.1:9/gantt\n'
        'transaction_attempts = 1\nconnect_seconds = 2\n'
    )
    code, out, error = manage('audit', config=config)
    assert (code, out) == (1, '')
    last = error.strip().splitlines()[-1]
    assert last.startswith('gantt-manage: the database does not answer')
    assert last.endswith('Start the database, or correct [database] connection')
    assert 's3cret' not in error
    assert 'Traceback' not in error


def test_a_configuration_without_a_database_says_which_option(site, manage):
    config = site / 'empty.conf'
    config.write_text('[DEFAULT]\n')
    code, _, error = manage('db', 'sync', config=config)
    assert code == 1
    assert 'connection' in error
    assert 'Traceback' not in error


@pytest.mark.parametrize('arguments', [(), ('db',), ('no-such',), ('audit', '--no-such')])
def test_wrong_usage_is_64(site, arguments, manage):
    code, out, error = manage(*arguments)
    assert (code, out) == (64, '')
    assert error


def test_a_missing_or_broken_file_is_trouble_in_one_line(site, manage):
    code, _, error = manage('audit', config=site / 'no-such.conf')
    assert code == 1
    assert 'no-such.conf' in error
    assert 'Traceback' not in error
    broken = site / 'broken.conf'
    broken.write_text('[scheduler]\nqueue_limit = many\n')
    code, out, error = manage('config', 'check', config=broken)
    assert code == 1
    assert 'queue_limit' in out.splitlines()[0]
    assert 'Traceback' not in out + error
    broken.write_text('[database]\nconnection = sqlite://\nlock_wait_seconds = long\n')
    code, _, error = manage('audit', config=broken)
    assert code == 1
    assert 'lock_wait_seconds' in error
    assert 'Traceback' not in error


def test_a_log_directory_that_is_not_there_is_one_line(site, manage):
    config = site / 'nowhere.conf'
    config.write_text(f'[DEFAULT]\nlog_dir = {site}/no/such\n')
    code, _, error = manage('audit', config=config)
    assert code == 1
    assert 'log_dir' in error
    assert 'Traceback' not in error


def test_help_is_no_error(site, manage):
    code, out, _ = manage('--help')
    assert code == 0
    assert 'audit' in out


@pytest.mark.parametrize(
    ('group', 'option'),
    [('claims', 'lease_seconds'), ('weighers', 'ram_weight_multiplier')],
    ids=['core', 'plugin'],
)
def test_an_option_that_is_no_number_is_told(site, manage, group, option):
    with (site / 'gantt.conf').open('a') as file:
        file.write(f'[{group}]\n{option} = nan\n')
    code, out, _ = manage('config', 'check')
    assert code == 1
    wrong, *_ = out.splitlines()
    assert wrong.startswith(f'options    WRONG  [{group}] {option}: ')
    assert 'expected a finite number, got nan' in wrong


# -- the audit trail ---------------------------------------------------------------------
@pytest.mark.finding('L5', 'verbs of operators are on the trail')
def test_a_command_that_changes_something_is_on_the_trail(site, manage):
    code, _, error = manage('audit-trail')
    assert (code, '[audit_trail] file' in error) == (1, True)
    with (site / 'gantt.conf').open('a') as file:
        file.write(f'[audit_trail]\nfile = {site}/trail\n')
    assert manage('db', 'sync')[0] == 0
    assert manage('db', 'version')[0] == 0
    assert manage('host', 'rename', 'cmp-1', 'cmp-2')[0] == 1
    code, out, _ = manage('audit-trail', '-f', 'json')
    assert code == 0
    events = json.loads(out)
    assert [(event['action'], event['outcome'], event['reason']) for event in events] == [
        ('gantt-manage db sync', 'success', ''),
        ('gantt-manage host rename', 'failure', 'gantt.not_found'),
    ]
    assert events[1]['target'].endswith('host rename cmp-1 cmp-2')
    assert events[0]['initiator']['user_id']
    code, out, _ = manage('audit-trail', '--limit', '1')
    assert (code, out.count('\n')) == (0, 1)
    assert 'gantt-manage host rename' in out
