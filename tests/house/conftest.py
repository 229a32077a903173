# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage`` and ``gantt-status`` in a process of their own, on a site of its own."""

import functools
import json
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def site(tmp_path):
    """A configuration file of a site with a SQLite database."""
    config = tmp_path / 'gantt.conf'
    config.write_text(
        f'[DEFAULT]\nstate_path = {tmp_path}\nlog_file = {tmp_path}/log\n'
        f'[database]\nconnection = sqlite:///{tmp_path}/gantt.db\n'
    )
    return tmp_path


#: Imports once, then runs each command line in a process of its own.
RUNNER = """
import json, os, sys, traceback
from gantt import plugin_loader as plugins
from gantt.cmd import manage, status
plugins.load_pipeline()  # what it imports, and finds, the children have as well
for line in sys.stdin:
    name, arguments, out, error = json.loads(line)
    child = os.fork()
    if not child:
        for descriptor, path in ((1, out), (2, error)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        code = 70
        try:
            code = {'manage': manage, 'status': status}[name].run(arguments)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope='module')
def runner():
    process = subprocess.Popen(
        [sys.executable, '-c', RUNNER],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    yield process
    process.stdin.close()
    assert process.wait(30) == 0
    process.stdout.close()


@pytest.fixture
def program(site, runner):
    """``program(name, *arguments)``: (exit code, standard output, standard error)."""

    def run(name, *arguments, config=None):
        out, error = site / 'out', site / 'error'
        line = ['--config-file', str(config or site / 'gantt.conf'), *arguments]
        runner.stdin.write(json.dumps([name, line, str(out), str(error)]) + '\n')
        runner.stdin.flush()
        return int(runner.stdout.readline()), out.read_text(), error.read_text()

    return run


@pytest.fixture
def manage(program):
    """``manage(*arguments)``: run it; (exit code, standard output, standard error)."""
    return functools.partial(program, 'manage')


@pytest.fixture
def synced(site, sqlite_template):
    shutil.copy(sqlite_template, site / 'gantt.db')
    return site


@pytest.fixture
def within(synced):
    """The same with a broker within each process."""
    config = synced / 'gantt.conf'
    text = config.read_text()
    config.write_text(text.replace('[DEFAULT]', '[DEFAULT]\ntransport_url = kombu+memory:///', 1))
    return synced
