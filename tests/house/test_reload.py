# SPDX-License-Identifier: Apache-2.0
"""Options that are read again: all of them, or none."""

import logging
import subprocess
import sys
import textwrap

import pytest
from oslo_config import cfg
from oslo_messaging import conffixture

from devel.memory_store.stores import memory_stores
from gantt import conf as options
from gantt import plugin_loader
from gantt.cmd import wiring
from gantt.cmd.scheduler import _reread_options
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.work_queue import WaitingReplies
from gantt.telemetry import log
from gantt.telemetry.metrics import MetricRegistry
from tests.builders import a_host
from tests.world import a_request

GOOD = '[scheduler]\nqueue_limit = {}\n[claims]\nlease_seconds = {}\n'
WRONG = {
    'type': b'[scheduler]\nqueue_limit = abc\n[claims]\nlease_seconds = 300\n',
    'range': b'[scheduler]\nqueue_limit = 0\n[claims]\nlease_seconds = 300\n',
    'none': b'[scheduler]\nbatch_wait_ms = nan\n[claims]\nlease_seconds = 300\n',
    'plugin': b'[filters]\nenabled_filters = Nope\n[claims]\nlease_seconds = 300\n',
    'syntax': b'[scheduler\nqueue_limit = 30\n',
    'bytes': b'# caf\xe9\n[claims]\nlease_seconds = 300\n',
}


@pytest.fixture
def path(tmp_path):
    conf_file = tmp_path / 'gantt.conf'
    conf_file.write_text(GOOD.format(10, 110))
    return conf_file


@pytest.fixture
def conf(path):
    options_of_site = cfg.ConfigOpts()
    conffixture.ConfFixture(options_of_site)
    options.register_opts(options_of_site)
    log.register_opts(options_of_site)
    options_of_site(['--config-file', str(path)], project='gantt')
    return options_of_site


@pytest.fixture
def scheduler(conf):
    return wiring.scheduler(conf, memory_stores(clock=SystemClock()), MetricRegistry())


def in_force(conf, scheduler):
    of = scheduler.settings
    return conf.scheduler.queue_limit, conf.claims.lease_seconds, of.queue_limit, of.lease_seconds


@pytest.mark.parametrize('wrong', WRONG.values(), ids=WRONG)
def test_what_is_wrong_changes_nothing_and_is_said(conf, path, scheduler, caplog, wrong):
    path.write_bytes(wrong)
    refused = wiring.reload(conf, scheduler.reconfigure)
    assert in_force(conf, scheduler) == (10, 110, 10, 110)
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == 'ERROR']
    assert message == f'Configuration is refused; the last one stays in force: error={refused}'
    assert refused
    # A supervisor starts its next worker with what was right.
    _reread_options(conf)
    wiring.settings(conf, scheduler.placing.pipeline)
    path.write_text(GOOD.format(20, 120))
    assert wiring.reload(conf, scheduler.reconfigure) == ''
    assert in_force(conf, scheduler) == (20, 120, 20, 120)


LATE = """
from gantt.core.filters.base import Filter


class LateFilter(Filter):
    def mask(self, hosts, spec):
        return None
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A place for packages, which processes look into from their start on."""
    folder = tmp_path / 'site'
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop('acme_late', None)
    plugin_loader.rescan()


def install(site, name, target):
    info = site / 'acme_late-1.0.dist-info'
    info.mkdir()
    info.joinpath('METADATA').write_text('Metadata-Version: 2.1\nName: acme-late\nVersion: 1.0\n')
    info.joinpath('entry_points.txt').write_text(f'[gantt.filters]\n{name} = {target}\n')


@pytest.mark.finding('N1', 'a plugin that was installed after the start is found')
def test_a_plugin_that_was_installed_after_the_start_is_found(conf, path, scheduler, site):
    assert 'LateFilter' not in plugin_loader.installed(plugin_loader.FILTERS)
    path.write_text(GOOD.format(10, 110) + '[filters]\nextra_filters = LateFilter\n')
    assert "'LateFilter': is not installed" in wiring.reload(conf, scheduler.reconfigure)
    site.joinpath('acme_late.py').write_text(LATE)
    install(site, 'LateFilter', 'acme_late:LateFilter')
    assert wiring.reload(conf, scheduler.reconfigure) == ''
    assert 'LateFilter' in [rule.name for rule in scheduler.placing.pipeline.filters]


@pytest.mark.finding('N1', 'a plugin that was installed after the start is found')
def test_a_plugin_that_only_a_new_process_finds_is_told_as_such(conf, path, scheduler, site):
    install(site, 'LaterFilter', 'acme_elsewhere:LaterFilter')
    path.write_text(GOOD.format(10, 110) + '[filters]\nextra_filters = LaterFilter\n')
    problem = wiring.reload(conf, scheduler.reconfigure)
    assert "No module named 'acme_elsewhere'" in problem and 'start the process again' in problem


def test_every_answer_has_a_line_from_the_moment_it_is_asked_for(conf, path, scheduler, caplog):
    caplog.set_level(logging.INFO, 'gantt.decisions')
    a_host('cmp-1').with_room(vcpu=100, ram=1_000_000, disk=10_000).on(scheduler.stores).report()
    scheduler.cache.fetch()

    def lines():
        caplog.clear()
        for _ in range(3):
            scheduler.submit(a_request(), None, WaitingReplies())
        assert scheduler.placing.step() == 3
        return [line.split()[0] for line in caplog.messages]

    assert lines() == ['Requests']
    path.write_text(path.read_text() + '[scheduler]\nlog_answers = each\n')
    assert wiring.reload(conf, scheduler.reconfigure) == ''
    assert lines() == ['Request'] * 3


def test_a_file_that_is_gone_changes_nothing(conf, path, scheduler):
    path.unlink()
    wiring.reload(conf, scheduler.reconfigure)
    assert in_force(conf, scheduler) == (10, 110, 10, 110)


@pytest.fixture
def level():
    """Of everything that is logged; as it was, afterwards."""
    root = logging.getLogger()
    before = root.level
    yield lambda: root.level
    root.setLevel(before)


def test_what_is_refused_changes_no_level_of_the_log(conf, path, scheduler, level):
    before = level()
    expected = logging.DEBUG if before != logging.DEBUG else logging.INFO
    debug = f'[DEFAULT]\ndebug = {expected == logging.DEBUG}\n'
    path.write_text(debug + GOOD.format(0, 120))
    wiring.reload(conf, scheduler.reconfigure)
    assert level() == before
    path.write_text(debug + GOOD.format(20, 120))
    wiring.reload(conf, scheduler.reconfigure)
    assert level() == expected
    assert in_force(conf, scheduler) == (20, 120, 20, 120)


LOGGING = """
[loggers]
keys = root
[handlers]
keys = file
[formatters]
keys =
[logger_root]
level = {level}
handlers = file
[handler_file]
class = FileHandler
args = ({target!r},)
"""


def test_a_file_for_the_log_that_is_wrong_leaves_the_log_as_it_was(tmp_path):
    """In a process of its own: it is all loggers of the process that change."""
    path, form = tmp_path / 'gantt.conf', tmp_path / 'logging.conf'
    path.write_text(f'[DEFAULT]\nlog_config_append = {form}\n' + GOOD.format(10, 110))
    form.write_text(LOGGING.format(level='INFO', target=str(tmp_path / 'first.log')))
    code = f"""
        import logging, os, pathlib
        from oslo_config import cfg
        from gantt import conf as options
        from gantt.cmd import wiring
        from gantt.telemetry import log
        conf, path, form = cfg.ConfigOpts(), {str(path)!r}, {str(form)!r}
        options.register_opts(conf)
        log.register_opts(conf)
        conf(['--config-file', path], project='gantt')
        log.setup(conf)
        LOG = logging.getLogger('gantt.example')

        def read(number):
            os.utime(form, (number, number))
            try:
                wiring.reread_options(conf)
            except Exception as e:
                LOG.error('%s: %s', type(e).__name__, e)
            LOG.info('rabbit://gantt:secret@broker/ at %d', number)

        right = pathlib.Path(form).read_text()
        for number, level in enumerate(('LOUD', 'WARNING')):
            pathlib.Path(form).write_text(right.replace('INFO', level))
            read(number + 1)
        pathlib.Path(form).write_text(right.replace('first.log', 'second.log'))
        read(3)
    """
    subprocess.run([sys.executable, '-c', textwrap.dedent(code)], check=True, timeout=60)
    lines = (tmp_path / 'first.log').read_text().splitlines()
    (message,) = [line for line in lines if line.startswith('Misconfigured')]
    assert message.startswith(f'Misconfigured: [DEFAULT] log_config_append: {form}: ')
    assert [line for line in lines if 'rabbit' in line] == ['rabbit://gantt:***@broker/ at 1']
    (last,) = (tmp_path / 'second.log').read_text().splitlines()
    assert last == 'rabbit://gantt:***@broker/ at 3'


@pytest.mark.parametrize(
    ('wrong', 'option'),
    [
        ('log_config_append = /nowhere/logging.conf', 'log_config_append'),
        ('default_log_levels = amqp=LOUD', 'default_log_levels'),
        ('use_syslog = true\nsyslog_log_facility = nope', 'syslog_log_facility'),
    ],
    ids=['file', 'level', 'facility'],
)
def test_an_option_of_the_log_that_is_wrong_is_named_at_the_start(tmp_path, wrong, option):
    path = tmp_path / 'gantt.conf'
    path.write_text(f'[DEFAULT]\n{wrong}\n')
    command = [sys.executable, '-m', 'gantt.cmd.manage', '--config-file', str(path)]
    command += ['db', 'version']
    ended = subprocess.run(command, check=False, timeout=60, capture_output=True, text=True)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith('gantt-manage: [DEFAULT] ') and option in line
