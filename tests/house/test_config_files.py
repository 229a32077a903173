# SPDX-License-Identifier: Apache-2.0
"""A file, or a url in one, that cannot be read is one line with its name, in every program."""

import subprocess
import sys

import pytest
from oslo_config import cfg

from gantt import exceptions
from gantt.conf import files, unknown
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


@pytest.mark.parametrize(
    'words', [['compute'], ['scheduler'], ['report_source', 'nova']], ids=' '.join
)
def test_the_processes_say_so(broken, words):
    path = broken / 'bytes'
    module, *arguments = words
    process = subprocess.run(
        [sys.executable, '-m', f'gantt.cmd.{module}', '--config-file', path, *arguments],
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


@pytest.mark.parametrize('program_name', ['scheduler', 'manage', 'compute'])
@pytest.mark.parametrize(
    ('section', 'option', 'value', 'reference'),
    [
        ('DEFAULT', 'transport_url', 'rabbit://guest:gu$est@127.0.0.1/', 'est'),
        ('database', 'connection', 'sqlite:///${folder}/gantt.db', 'folder'),
        ('database', 'connection', 'sqlite:///$database.folder', 'database.folder'),
    ],
)
def test_a_dollar_sign_that_names_no_option_is_told_with_its_option(
    tmp_path, program_name, section, option, value, reference
):
    path = tmp_path / 'gantt.conf'
    path.write_text(f'[{section}]\n{option} = {value}\n')
    argv = [sys.executable, '-m', f'gantt.cmd.{program_name}', '--config-file', str(path)]
    argv += ['config', 'check'] if program_name == 'manage' else []
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    problem = f'its value has ${reference}, and there is no such option'
    assert f'[{section}] {option}: {problem}. Write $$ for a dollar sign' in ran.stderr
    assert 'Traceback' not in ran.stderr


def test_other_dollar_signs_are_no_problem(tmp_path):
    path = tmp_path / 'gantt.conf'
    path.write_text(
        '[DEFAULT]\ntransport_url = rabbit://guest:gu$$est@127.0.0.1/\nlog_dir = $state_path/$1\n'
        'state_path = here\n[database]\nconnection = sqlite:///${host}.db\n[own]\nword = $nothing\n'
    )
    conf = cfg.ConfigOpts()
    conf.register_opts([cfg.StrOpt('state_path'), cfg.StrOpt('host')])
    files.read(conf, ['--config-file', str(path)], 'gantt-manage')
    unknown.check_references(conf)
