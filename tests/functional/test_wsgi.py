# SPDX-License-Identifier: Apache-2.0
"""The examples for WSGI servers and systemd, as they stand in the documents, really start."""

import configparser
import os
import pathlib
import shlex
import signal
import socket
import subprocess
import sys
import time

import httpx2 as httpx
import pytest

from gantt.rpc.amqp import permissions

PAGES = pathlib.Path(__file__).parents[2] / 'doc' / 'source' / 'install'
BIN = pathlib.Path(sys.executable).parent
#: Unit -> the file of its user of the broker, as ``gantt-manage broker users`` calls it.
BROKER_FILES = {
    'gantt-scheduler': 'scheduler',
    'gantt-planner': 'planner',
    'gantt-api': 'api',
    'gantt-nova-source': 'source',
    'gantt-shadow': 'shadow',
    'gantt-compute': 'compute/%H',
}
#: Needs none; with one it has the user of the scheduler.
WITHOUT_BROKER = 'gantt-standalone'


@pytest.fixture
def site(store_url, tmp_path):
    """A configuration file, with that of a user of the broker beside it, and a free port."""
    config = tmp_path / 'gantt.conf'
    config.write_text(
        # By itself none: what names the user has to be read as well, and after it.
        '[DEFAULT]\ntransport_url = carrier-pigeon://roof/\n'
        f'state_path = {tmp_path}\n[database]\nconnection = {store_url("sqlite")}\n'
    )
    config.with_name('api.conf').write_text(
        '[DEFAULT]\ntransport_url = rabbit://gantt-api:secret@127.0.0.1:1/\n'
    )
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        return config, taken.getsockname()[1]


def example(name, site, tmp_path):
    """An example of the documents with the paths and the port of here."""
    text = (PAGES / name).read_text()
    for old, new in (
        ('127.0.0.1:8790', f'127.0.0.1:{site[1]}'),
        ('/etc/gantt/gantt.conf', str(site[0])),
        ('/etc/gantt/broker/api.conf', str(site[0].with_name('api.conf'))),
        ('virtualenv = /opt/gantt', f'virtualenv = {BIN.parent}'),
    ):
        text = text.replace(old, new)
    assert '/etc/gantt' not in text
    copy = tmp_path / name
    copy.write_text(text)
    return str(copy)


def answers(command, site, tmp_path, loaded):
    """Start the server, ask it, end it; what it wrote.

    :param loaded: what each of its two processes says when it has the application
    """
    log = tmp_path / 'server.log'
    with log.open('wb') as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
        )
    try:
        with httpx.Client(base_url=f'http://127.0.0.1:{site[1]}', timeout=30) as caller:
            assert _asked(caller, process, log).json()['total'] == 0
            assert caller.get('/v1/no-such').status_code == 404
        end = time.monotonic() + 60
        while log.read_text().count(loaded) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(10)
    text = log.read_text()
    assert 'Traceback' not in text, text
    return text


def _asked(caller, process, log, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        try:
            return caller.get('/v1/hosts')
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(log.read_text())


def test_gunicorn_serves_by_its_example(site, tmp_path):
    config = example('gantt-api.gunicorn.py', site, tmp_path)
    command = [str(BIN / 'gunicorn'), '--config', config, 'gantt.wsgi.api:application']
    assert 'gthread' in answers(command, site, tmp_path, 'Booting worker')


#: There is no build of uWSGI to install: whoever has one names it.
UWSGI = os.environ.get('GANTT_TEST_UWSGI')


if UWSGI:

    def test_uwsgi_serves_by_its_example(site, tmp_path):
        config = example('gantt-api.uwsgi.ini', site, tmp_path)
        answers([UWSGI, '--ini', config], site, tmp_path, 'WSGI app 0')


@pytest.mark.parametrize('unit', sorted(path.name for path in PAGES.glob('*.service')))
def test_a_unit_starts_a_command_that_there_is(unit):
    read = configparser.ConfigParser(interpolation=None, strict=True)
    read.optionxform = str
    read.read(PAGES / unit)
    program, *options = shlex.split(read['Service']['ExecStart'])
    name = program.removeprefix('/opt/gantt/bin/')
    assert (BIN / name).exists()
    files = ['--config-file', '/etc/gantt/gantt.conf']
    if name != WITHOUT_BROKER:
        user = BROKER_FILES[name]
        # Its own last: the transport_url that all share names no user.
        files += ['--config-file', f'/etc/gantt/broker/{user}.conf']
        assert user in permissions.PROGRAMS_BY_ROLE or user == 'compute/%H'
    assert options == files
    # A template has a name for each port.
    assert unit in (f'{name}.service', f'{name}@.service')
    assert read['Service']['Restart'] == 'on-failure'
    assert read['Service']['RestartSec'] == '2'
    assert read['Unit']['StartLimitIntervalSec'] == '0'
    reloading = {'scheduler', 'planner', 'compute', 'nova-source'}
    reloads = name in {*(f'gantt-{program}' for program in reloading), WITHOUT_BROKER}
    assert read.has_option('Service', 'ExecReload') == reloads


def test_every_service_has_a_unit():
    have = {path.stem for path in PAGES.glob('*.service')}
    services = {'scheduler', 'planner', 'api', 'compute', 'nova-source', 'shadow'}
    assert have == {*(f'gantt-{name}' for name in services), 'gantt-scheduler@', WITHOUT_BROKER}
