# SPDX-License-Identifier: Apache-2.0
"""Options that are read again: all of them, or none."""

import pytest
from oslo_config import cfg
from oslo_messaging import conffixture

from gantt import conf as options
from gantt.cmd import wiring, workers
from gantt.db.memory import MemoryStore
from gantt.scheduler.clock import SystemClock
from gantt.telemetry.metrics import Metrics

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
    found = tmp_path / 'gantt.conf'
    found.write_text(GOOD.format(10, 110))
    return found


@pytest.fixture
def conf(path):
    made = cfg.ConfigOpts()
    conffixture.ConfFixture(made)
    options.register_opts(made)
    made(['--config-file', str(path)], project='gantt')
    return made


@pytest.fixture
def scheduler(conf):
    return wiring.scheduler(conf, MemoryStore(clock=SystemClock()), Metrics())


def in_force(conf, scheduler):
    of = scheduler.settings
    return conf.scheduler.queue_limit, conf.claims.lease_seconds, of.queue_limit, of.lease_seconds


@pytest.mark.parametrize('wrong', WRONG.values(), ids=WRONG)
def test_what_is_wrong_changes_nothing_and_is_said(conf, path, scheduler, caplog, wrong):
    path.write_bytes(wrong)
    wiring.reload(conf, scheduler)
    assert in_force(conf, scheduler) == (10, 110, 10, 110)
    (said,) = [one.getMessage() for one in caplog.records if one.levelname == 'ERROR']
    assert 'the configuration was not taken over: ' in said
    # A supervisor starts its next worker with what was right.
    workers._read_again(conf)
    wiring.settings(conf, scheduler.placing.pipeline)
    path.write_text(GOOD.format(20, 120))
    wiring.reload(conf, scheduler)
    assert in_force(conf, scheduler) == (20, 120, 20, 120)


def test_a_file_that_is_gone_changes_nothing(conf, path, scheduler):
    path.unlink()
    wiring.reload(conf, scheduler)
    assert in_force(conf, scheduler) == (10, 110, 10, 110)
