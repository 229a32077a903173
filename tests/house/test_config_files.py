# SPDX-License-Identifier: Apache-2.0
"""A file, or a url in one, that cannot be read is one line with its name, in every program."""

import subprocess
import sys

import pytest
from oslo_config import cfg

from gantt import exceptions
from gantt.conf import files
from tests.house.conftest import ROOT

#: What the file is: its name and how its trouble is told.
BROKEN = [('folder', 'Is a directory'), ('bytes', 'is not text in UTF-8')]
#: In no text that anybody reads may a part of the password be.
URLS = ['mysql+pymysql://gantt:p@ss:w/rd@127.0.0.1/gantt', 'postgresql://gantt:w0rd@here:port/x']


@pytest.fixture
def broken(tmp_path):
    (tmp_path / 'folder').mkdir()
    (tmp_path / 'bytes').write_bytes(b'[DEFAULT]\nhost = \xff\n')
    return tmp_path


@pytest.mark.parametrize(('name', 'problem'), BROKEN)
def test_a_file_that_cannot_be_read_is_named(broken, name, problem):
    path = str(broken / name)
    for argv in (['--config-file', path], [f'--config-file={path}']):
        with pytest.raises(exceptions.Misconfigured) as caught:
            files.read(cfg.ConfigOpts(), argv, 'gantt-manage')
        assert caught.value.message.startswith(f'{path}: {problem}')


def test_so_is_one_of_a_folder(broken):
    (broken / 'good.conf').write_text('[DEFAULT]\n')
    (broken / 'worse.conf').write_bytes(b'\xff')
    with pytest.raises(exceptions.Misconfigured, match='worse.conf: is not text'):
        files.read(cfg.ConfigOpts(), ['--config-dir', str(broken)], 'gantt-manage')


@pytest.mark.parametrize(
    ('option', 'problem'),
    [('--config-file', 'there is no such file'), ('--config-dir', 'there is no such folder')],
)
def test_of_one_that_is_not_there_it_is_told_what_to_do(tmp_path, option, problem):
    path = str(tmp_path / 'nothere')
    with pytest.raises(exceptions.Misconfigured) as caught:
        files.read(cfg.ConfigOpts(), [option, path], 'gantt-manage')
    assert caught.value.message.startswith(f'{path}: {problem}. Name one that is there by ')
    assert (ROOT / 'etc' / 'gantt' / 'gantt.conf.sample').exists()
    assert 'etc/gantt/gantt.conf.sample' in caught.value.message


@pytest.mark.parametrize(('name', 'problem'), BROKEN)
@pytest.mark.parametrize(
    ('program_name', 'arguments', 'code'),
    [('manage', ['db', 'version'], 1), ('status', ['upgrade', 'check'], 255)],
)
def test_the_commands_say_so(program, broken, program_name, arguments, code, name, problem):
    exit_code, out, error = program(program_name, *arguments, config=broken / name)
    assert exit_code == code
    assert error.splitlines() == [error.strip()]
    assert f'{broken / name}: {problem}' in error


@pytest.mark.parametrize('module', ['compute', 'scheduler', 'nova_source'])
def test_the_processes_say_so(broken, module):
    path = broken / 'bytes'
    process = subprocess.run(
        [sys.executable, '-m', f'gantt.cmd.{module}', '--config-file', path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert process.returncode == 1
    assert f'{path}: is not text in UTF-8' in process.stderr
    assert 'Traceback' not in process.stderr


@pytest.mark.parametrize('url', URLS)
def test_a_url_that_breaks_in_its_password_is_not_repeated(site, manage, url):
    (site / 'gantt.conf').write_text(f'[database]\nconnection = {url}\n')
    for command in (['db', 'version'], ['config', 'doctor', '--no-live'], ['adopt', '-']):
        code, out, error = manage(*command)
        assert code == 1
        output = ' '.join((out + error).split())
        assert '[database] connection' in output
        assert 'Percent-encode "@", "/" and ":" in the password' in output
        assert 'Traceback' not in output and 'w/rd' not in output and 'w0rd' not in output


def test_a_value_out_of_bounds_is_told_with_its_file(site, program):
    text = (site / 'gantt.conf').read_text()
    (site / 'gantt.conf').write_text(f'{text}[scheduler]\nworkers = 0\n')
    for name, *arguments in (
        ('manage', 'config', 'check'),
        ('manage', 'db', 'version'),
        ('status', 'upgrade', 'check'),
    ):
        _, out, error = program(name, *arguments)
        output = ' '.join((out + error).split())
        assert 'LocationInfo' not in output
        if 'config' in arguments:
            assert (
                f'WRONG [scheduler] workers: Value for option workers in {site}/gantt.conf'
                in output
            )


def test_a_misspelled_option_fails_the_check(site, within, manage):
    assert manage('config', 'check')[0] == 0
    text = (site / 'gantt.conf').read_text()
    (site / 'gantt.conf').write_text(f'{text}max_pool = 3\nretri_interval = 2\n')
    code, out, _ = manage('config', 'check')
    assert code == 1
    output = ' '.join(out.split())
    assert '[database] max_pool' in output and 'did you mean max_pool_size?' in output
    assert '[database] retri_interval' in output
