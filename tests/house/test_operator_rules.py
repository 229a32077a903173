# SPDX-License-Identifier: Apache-2.0
"""Rules of operators in the configuration: a wrong one is refused by name, none goes unread."""

import pathlib
import re
import subprocess
import sys
from importlib import metadata

import pytest
from oslo_config import cfg

from devel.memory_store.stores import memory_stores
from gantt import exceptions
from gantt.cmd import checks, wiring
from gantt.cmd.manage_config import diagnose
from gantt.conf import unknown
from gantt.conf.pipeline import pipeline_from_conf
from gantt.scheduler.clock import SystemClock
from gantt.telemetry.metrics import MetricRegistry
from tests.options import options_of

SAMPLE = pathlib.Path(__file__).parents[2] / 'etc' / 'gantt' / 'gantt.conf.sample'
RULES, SOFT = '[filters] operator_rules', '[weighers] operator_preferences'
#: Option, its value, where it is wrong, what was expected.
WRONG = [
    (RULES, 'zone = "a"', 'rule 1: character 6:', 'expected a relation'),
    (RULES, 'enabled; fre.VCPU > 1', 'rule 2: character 1:', 'did you mean free.CLASS?'),
    (RULES, 'free.VCPU > "4"', 'rule 1: character 13:', 'expected a number'),
    (RULES, ' and '.join(['enabled'] * 140), 'character 1537:', 'at most 128 tests'),
    (RULES, 'soft 1: enabled', 'soft 1: enabled:', 'expected it in [weighers]'),
    (RULES, 'capabilities.x in "a"', 'rule 1: character 19:', 'a list such as'),
    (SOFT, 'soft 2: free.VCPUS > 3', 'rule 1: character 9:', 'did you mean VCPU?'),
    (SOFT, 'soft 2: free.COSTUM_X > 3', 'rule 1: character 9:', 'expected CUSTOM_'),
    (SOFT, 'soft 0: enabled', 'rule 1: character 5:', 'expected a weight'),
    (SOFT, 'enabled', 'enabled:', 'expected a weight, as in soft 2.5'),
]


def text_of(option, value):
    group, _, name = option.partition(' ')
    return f'{group}\n{name} = {value}\n'


@pytest.fixture
def a_conf(tmp_path):
    """``a_conf(text)``: the options of a file; ``text`` may be changed later."""

    path = tmp_path / 'gantt.conf'
    return lambda text='': (options_of(path, text), path)


@pytest.mark.parametrize(('option', 'value', 'where', 'expected'), WRONG, ids=range(len(WRONG)))
def test_a_wrong_rule_is_refused_by_option_and_place(a_conf, option, value, where, expected):
    conf, _ = a_conf(text_of(option, value))
    with pytest.raises(exceptions.PluginError) as caught:
        pipeline_from_conf(conf)
    for part in (f'{option}: ', where, expected):
        assert part in caught.value.message
    problems = [f for f in diagnose(conf, probe=False) if f.option == option]
    assert [(f.severity.value, f.value) for f in problems] == [('error', value)]
    assert where in problems[0].why and expected in problems[0].why


def test_the_scheduler_does_not_start_with_a_wrong_rule(tmp_path):
    path = tmp_path / 'gantt.conf'
    path.write_text(text_of(SOFT, 'soft 2: free.VCPUS > 3'))
    ended = subprocess.run(
        [sys.executable, '-m', 'gantt.cmd.scheduler', '--config-file', str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert (
        f'{SOFT}: rule 1: character 9: expected a resource class after free, got VCPUS'
        in ended.stderr
    )


def test_a_wrong_rule_that_is_read_again_keeps_the_old_one_and_says_so(a_conf, caplog):
    conf, path = a_conf(text_of(RULES, 'free.VCPU > 3'))
    scheduler = wiring.scheduler(conf, memory_stores(clock=SystemClock()), MetricRegistry())

    def rules():
        filters = {f.name: f for f in scheduler.placing.pipeline.filters}
        return filters['RulesFilter'].operator_rules

    path.write_text(text_of(RULES, 'free.VCPU > "3"'))
    wiring.reload(conf, scheduler.reconfigure)
    assert rules() == 'free.VCPU > 3'
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == 'ERROR']
    assert f"error=plugin 'RulesFilter': {RULES}: rule 1: character 13:" in message
    path.write_text(text_of(RULES, 'free.VCPU > 4'))
    wiring.reload(conf, scheduler.reconfigure)
    assert rules() == 'free.VCPU > 4'


UNREAD = [
    (
        '[filters]\noperator_rule = enabled\n',
        '[filters] operator_rule',
        'did you mean operator_rules?',
    ),
    (
        '[filters]\noperator_preferences = soft 1: enabled\n',
        '[filters] operator_preferences',
        'it is one of [weighers]',
    ),
    (
        '[scheduler]\nworker = 2\n',
        '[scheduler] worker',
        'it is one of [DEFAULT]; or did you mean workers?',
    ),
    (
        '[weigher]\noperator_preferences = soft 1: enabled\n',
        '[weigher]',
        'did you mean [weighers]?',
    ),
    (
        '[filters]\nenabled_filters = ComputeFilter\noperator_rules = enabled\n',
        '[filters] operator_rules',
        'RulesFilter is not enabled',
    ),
    (
        '[filters]\nenabled_weighers = RAMWeigher\n'
        '[weighers]\noperator_preferences = soft 1: enabled',
        '[weighers] operator_preferences',
        'RulesWeigher is not enabled',
    ),
    ('[scheduler]\nque_limit = 5\n', '[scheduler] que_limit', 'did you mean queue_limit?'),
    ('[DEFAULT]\nmetrics_prot = 1\n', '[DEFAULT] metrics_prot', 'did you mean metrics_port?'),
    ('[DEFAULT]\ntransport-ulr = x\n', '[DEFAULT] transport-ulr', 'did you mean transport_url?'),
    ('[DEFAULT]\nlog_dirr = /x\n', '[DEFAULT] log_dirr', 'did you mean log_dir?'),
    ('[database]\nconection = x\n', '[database] conection', 'did you mean connection?'),
    ('[database]\nmax_pool = 5\n', '[database] max_pool', 'did you mean max_pool_size?'),
    (
        '[oslo_messaging_rabbit]\nrabbit_quorum = 1\n',
        '[oslo_messaging_rabbit] rabbit_quorum',
        'did you mean rabbit_quorum_queue?',
    ),
    ('[oslo_policy]\npolicy_fil = x\n', '[oslo_policy] policy_fil', 'did you mean policy_file?'),
    (
        '[keystone_authtoken]\nauth_type = password\nusernam = x\n',
        '[keystone_authtoken] usernam',
        'did you mean username?',
    ),
    (
        '[keystone_autht]\nauth_type = password\n',
        '[keystone_autht]',
        'did you mean [keystone_authtoken]?',
    ),
    (
        '[placement]\nauth_type = v3applicationcredential\napplication_credentials_id = x\n',
        '[placement] application_credentials_id',
        'did you mean application_credential_id?',
    ),
]


@pytest.mark.parametrize(('text', 'option', 'why'), UNREAD, ids=range(len(UNREAD)))
def test_what_nobody_reads_is_told(a_conf, caplog, text, option, why):
    conf, _ = a_conf(text)
    (problem,) = unknown.unread_options(conf)
    assert problem.option == option and why in problem.why
    assert [(f.severity.value, f.option) for f in diagnose(conf, False) if why in f.why] == [
        ('error', option)
    ]
    checks.at_start(conf)
    assert [r.getMessage() for r in caplog.records] == [
        f'Configuration has a problem: problem={option} has no effect: {problem.why}'
    ]


def test_a_library_outside_its_bounds_is_told_at_start(a_conf, caplog, monkeypatch):
    conf, _ = a_conf('')
    checks.at_start(conf)
    assert not caplog.records
    version = metadata.version
    monkeypatch.setattr(
        checks.metadata, 'version', lambda name: '99.0' if name == 'kombu' else version(name)
    )
    checks.at_start(conf)
    [record] = caplog.records
    assert 'kombu 99.0 is installed; expected kombu<6,>=5.6' in record.getMessage()


def test_what_is_read_is_not_told(a_conf):
    conf, _ = a_conf(
        '[DEFAULT]\ndebug = true\nconfig_source = x\nrpc_thread_pool_size = 3\n'
        '[filters]\nmax_io_ops_per_host = 4\noperator-rules = enabled\n'
        '[weighers]\nram_weight_multiplier = 2\n[oslo_messaging_rabbit]\nssl = true\n'
        '[mine]\na = 1\n'
        '[database]\nmax_pool_size = 5\n[keystone_authtoken]\nauth_type = of-the-site\nkey = 1\n'
        '[nova]\nauth_type = v3token\ntoken = x\n[oslo_reports]\nlog_dir = /x\n'
    )
    assert unknown.unread_options(conf) == []
    assert unknown.unknown_groups(conf) == ['keystone_authtoken', 'mine']


def test_nothing_in_the_sample_is_told(a_conf):
    text = re.sub(r'^#(\w+ = )', r'\1', SAMPLE.read_text(), flags=re.MULTILINE)
    parsed = {}
    conf, path = a_conf()
    path.write_text(text)
    cfg.ConfigParser(str(path), parsed).parse()
    assert len(parsed) > 15
    assert list(unknown._options_in_files(conf)) == []
