# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage bundle``: what is in it, and that no secret is."""

import json
import os
import stat
import tarfile

import pytest

from gantt.cmd import bundle
from gantt.conf import unknown
from gantt.telemetry.listener import ProbeListener
from gantt.telemetry.metrics import MetricRegistry

SECRETS = sorted(
    {(group, option.dest) for group, option in unknown.declared_options() if option.secret}
)


def _content(path):
    with tarfile.open(path) as archive:
        return {
            entry.name.partition('/')[2]: archive.extractfile(entry).read() for entry in archive
        }


def test_there_are_secrets_to_plant():
    assert ('database', 'connection') in SECRETS and ('DEFAULT', 'transport_url') in SECRETS
    assert len(SECRETS) >= 4


def test_no_secret_of_any_option_or_url_is_in_it(site, manage):
    build_tree, text = [], []
    for number, (group, name) in enumerate(SECRETS):
        build_tree.append(f'pl4nted-{number}')
        value = build_tree[-1]
        if name in ('connection', 'slave_connection'):
            value = f'postgresql+psycopg://gantt:{build_tree[-1]}@127.0.0.1:1/gantt'
        elif 'transport_url' in name:
            build_tree.append(f'pl4nted-other-{number}')
            value = f'rabbit://a:{build_tree[-2]}@127.0.0.1:1,b:{build_tree[-1]}@127.0.0.1:2/'
        text.append(f'[{group}]\n{name} = {value}\n')
    # Urls of options that are none, and lines that no option of ours reads.
    build_tree += ['pl4nted-url', 'pl4nted%2Fquoted', 'pl4nted/quoted', 'pl4nted-auth']
    text.append('[api]\ncors_allowed_origins = https://me:pl4nted-url@ops.example.org\n')
    text.append('[keystone_authtoken]\nauth_type = password\npassword = pl4nted-auth\n')
    text.append('[other]\nbackend = redis://:pl4nted%2Fquoted@127.0.0.1\n')
    config = site / 'planted.conf'
    config.write_text(f'[DEFAULT]\nstate_path = {site}\nlog_file = {site}/log\n' + ''.join(text))
    log = site / 'log'
    log.write_text(
        ''.join(f'2026-11-23 somebody said {secret} and {secret}@x\n' for secret in build_tree)
    )
    code, out, error = manage('bundle', '--output', str(site / 'it.tar.gz'), config=config)
    assert code == 0, error
    contents = _content(site / 'it.tar.gz')
    for name, data in contents.items():
        for secret in build_tree:
            assert secret.encode() not in data, (name, secret)
    assert not any(secret in out + error for secret in build_tree)
    # It was there to be found.
    assert contents['logs/log'].count(b'***') >= 2 * len(build_tree)
    shown = contents['configuration.txt'].decode()
    assert shown.count('(set; secret)') >= len(SECRETS)
    assert 'https://' in shown and 'ops.example.org' in shown
    assert stat.S_IMODE(os.stat(site / 'it.tar.gz').st_mode) == 0o600


def test_what_is_in_it(site, manage):
    assert manage('db', 'sync')[0] == 0
    (site / 'log').write_bytes(b'first line\n' + b'x' * 99 + b'\n' + b'y\n' * bundle.LOG_MAX)
    metrics = MetricRegistry()
    metrics.count('gantt_claims_created_total', 7)
    listener = ProbeListener(metrics, '127.0.0.1', 0)
    try:
        text = (site / 'gantt.conf').read_text()
        (site / 'gantt.conf').write_text(f'[DEFAULT]\nmetrics_port = {listener.port}\n{text}')
        code, out, error = manage('bundle', '--output', str(site / 'it.tar.gz'))
    finally:
        listener.stop()
    assert code == 0, error
    texts = {name: data.decode() for name, data in _content(site / 'it.tar.gz').items()}
    assert (
        texts['versions.txt'].startswith('gantt ') and 'oslo.messaging==' in texts['versions.txt']
    )
    assert 'report_seconds = ' in texts['configuration.txt']
    assert 'ComputeFilter' in texts['plugins.txt']
    assert 'needed 00' in texts['schema.txt']
    assert 'errors ' in texts['doctor.txt']
    assert 'Schema of the database' in texts['upgrade-check.txt']
    assert {'status.json', 'services.json', 'health/gantt-api.json'} <= texts.keys()
    assert not any(json.loads(texts['audit.json']).values())
    assert 'gantt_claims_created_total' in texts['metrics/gantt-scheduler-0.txt']
    assert texts['metrics/gantt-api.txt'].startswith('cannot be had from http://127.0.0.1:8790')
    assert len(texts['logs/log']) <= bundle.LOG_MAX and 'first line' not in texts['logs/log']
    assert 'schema.txt' in out


def test_a_file_that_is_there_is_not_replaced(site, manage):
    (site / 'it.tar.gz').write_text('mine')
    code, _, error = manage('bundle', '--output', str(site / 'it.tar.gz'))
    assert code == 1
    assert '--output' in error and 'File exists' in error
    assert (site / 'it.tar.gz').read_text() == 'mine'


@pytest.mark.parametrize(
    ('value', 'passwords'),
    [
        ('rabbit://u:one@h1,u:two@h2/v', {'one', 'two'}),
        ('mysql+pymysql://gantt:p@ss:w/rd@127.0.0.1/gantt', {'p@ss:w/rd'}),
        ('redis://:alone@h', {'alone'}),
        ('http://host:80/path', set()),
        ('no url: me@home', set()),
    ],
)
def test_passwords_of_urls_are_found(value, passwords):
    assert passwords <= set(bundle._passwords(value)) <= {*passwords, 'one@h1,u:two'}
