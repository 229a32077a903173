# SPDX-License-Identifier: Apache-2.0
"""The samples of the documents run."""

import configparser
import importlib
import json
import os
import pathlib
import subprocess
import sys
import textwrap

import pytest

from devel.doubles import MemoryRecorder
from devel.memory_store.stores import memory_stores
from gantt import plugin_loader
from gantt.plugin_api import HostFacts, Hypervisor, InvalidMessage, RequestSpec
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from gantt.testing import clouds, conformance
from tests.nemesis.site import until
from tests.rpc.bus import Bus

ROOT = pathlib.Path(__file__).parents[2]
SAMPLES = ROOT / 'tests' / 'samples'


@pytest.fixture(autouse=True)
def samples_are_importable(monkeypatch):
    monkeypatch.syspath_prepend(SAMPLES)


def test_headroom_keeps_memory_free():
    from acme_gantt.headroom import HeadroomFilter

    hosts = clouds.table_of({'small': {'MEMORY_MB': 4096}, 'large': {'MEMORY_MB': 8192}})
    spec = RequestSpec(resources={'VCPU': 1, 'MEMORY_MB': 2048})

    assert list(HeadroomFilter({'headroom_mb': 2048}).mask(hosts, spec)) == [True, True]
    assert list(HeadroomFilter({'headroom_mb': 2049}).mask(hosts, spec)) == [False, True]

    strict = HeadroomFilter({'headroom_mb': 4096})
    detail = strict.detail(hosts, spec, rows=[0])
    assert strict.reason_for(spec, detail) == (
        'too little MEMORY_MB left over (need 6 GiB, best has 4 GiB)'
    )


def test_the_per_host_filter_asks_only_when_the_hint_is_there():
    from acme_gantt.hypervisor_version import HypervisorVersionFilter

    facts_by_host = {f'host-{n}': HostFacts(hypervisor=Hypervisor(version=n)) for n in (1, 2, 3)}
    hosts = clouds.table_of(facts_by_host)
    rule = HypervisorVersionFilter()
    assert rule.mask(hosts, RequestSpec(resources={'VCPU': 1})) is None
    spec = RequestSpec(resources={'VCPU': 1}, hints={'min_hypervisor_version': ['2']})
    assert list(rule.mask(hosts, spec)) == [False, True, True]
    assert rule.reason_for(spec, {}) == 'hypervisor older than 2'
    wrong = RequestSpec(resources={'VCPU': 1}, hints={'min_hypervisor_version': ['new']})
    with pytest.raises(InvalidMessage, match='expected a number such as 7002000'):
        rule.check_request(wrong)


@pytest.mark.parametrize(
    'name', ['headroom:HeadroomFilter', 'hypervisor_version:HypervisorVersionFilter']
)
def test_the_filters_conform(name):
    module, _, plugin = name.partition(':')
    conformance.check(getattr(importlib.import_module(f'acme_gantt.{module}'), plugin), cases=10)


def test_the_weigher_prefers_the_tighter_host():
    import numpy as np
    from acme_gantt.best_fit import BestFitWeigher

    hosts = clouds.table_of({'roomy': {'MEMORY_MB': 8192}, 'tight': {'MEMORY_MB': 2048}})
    spec = RequestSpec(resources={'MEMORY_MB': 1024})
    roomy, tight = BestFitWeigher().raw(hosts, spec, np.array([0, 1]))
    assert tight > roomy


LOAD = """
    import json, sys
    from oslo_config import cfg
    import gantt.cmd
    from gantt import conf as options
    from gantt.conf.pipeline import pipeline_from_conf
    conf = cfg.ConfigOpts()
    options.register_opts(conf)
    conf(sys.argv[1:], project='gantt', default_config_files=[])
    print(json.dumps(pipeline_from_conf(conf).described(), default=str))
"""


@pytest.fixture
def installed(tmp_path):
    """The samples as an installed package has them: its metadata on the path.

    :returns: the environment for a process that finds them
    """
    parser = configparser.ConfigParser(delimiters=('=',), interpolation=None)
    parser.optionxform = str
    parser.read(SAMPLES / 'setup.cfg')
    info = tmp_path / 'acme_gantt-1.0.dist-info'
    info.mkdir()
    info.joinpath('METADATA').write_text('Metadata-Version: 2.1\nName: acme-gantt\nVersion: 1.0\n')
    text = ''
    for group, lines in parser['options.entry_points'].items():
        text += f'[{group}]\n{textwrap.dedent(lines)}\n'
    info.joinpath('entry_points.txt').write_text(text)
    return {
        **os.environ,
        'PYTHONPATH': os.pathsep.join([str(tmp_path), str(SAMPLES), str(ROOT)]),
    }


def test_the_samples_load_by_the_entry_points_their_package_declares(tmp_path, installed):
    config = tmp_path / 'gantt.conf'
    config.write_text(
        '[filters]\n'
        'enabled_filters = ComputeFilter,ResourcesFilter\n'
        'extra_filters = HeadroomFilter,HypervisorVersionFilter\n'
        'enabled_weighers = RAMWeigher\n'
        'extra_weighers = BestFitWeigher\n'
    )
    process = subprocess.run(
        [sys.executable, '-c', textwrap.dedent(LOAD), '--config-file', str(config)],
        env=installed,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    described = json.dumps(json.loads(process.stdout))
    for name in ('HeadroomFilter', 'HypervisorVersionFilter', 'BestFitWeigher'):
        assert name in described


# -- a report source ---------------------------------------------------------------------
def command(tmp_path, broker, *words, bookings='bookings.json'):
    config = tmp_path / 'gantt.conf'
    config.write_text(
        f'[DEFAULT]\ntransport_url = {broker}\n'
        f'[lab]\nbookings = {tmp_path / bookings}\nreport_seconds = 1\n'
    )
    program = [sys.executable, '-W', 'ignore', '-m', 'gantt.cmd.report_source']
    return [*program, *words, '--config-file', str(config)]


@pytest.mark.rabbit
def test_a_source_of_somebody_elses_reports_until_it_is_told_to_stop(
    tmp_path, installed, rabbit_url
):
    scheduler = Scheduler(
        memory_stores(),
        plugin_loader.load_pipeline(),
        MemoryRecorder(),
        SchedulerSettings(worker='worker-1'),
    )
    bookings = tmp_path / 'bookings.json'
    machine = {'cpus': 8, 'memory_mb': 16384, 'taken': 3}
    bookings.write_text(json.dumps({'bench-1': machine, 'bench-2': machine}))
    scheduler.start()
    bus = Bus(rabbit_url, facade=scheduler)
    process = subprocess.Popen(
        command(tmp_path, rabbit_url, 'lab'), env=installed, stderr=subprocess.PIPE, text=True
    )

    def free():
        rows = [change.row for change in scheduler.stores.feed.load_everything().hosts]
        return {row.name: row.cap('VCPU') - row.foreign.get('VCPU', 0) for row in rows}

    try:
        until(lambda: free() == {'bench-1': 5, 'bench-2': 5}, 'both have reported', 60)
        bookings.write_text(json.dumps({'bench-1': machine, 'bench-2': machine | {'taken': 8}}))
        until(lambda: free() == {'bench-1': 5, 'bench-2': 0}, 'what changed is told', 60)
    finally:
        process.terminate()
        errors = process.communicate(timeout=30)[1]
        bus.close()
        scheduler.stop(5.0)
    assert process.returncode == 0, errors


@pytest.mark.parametrize(
    ('words', 'code', 'problem'),
    [
        (['labb'], 1, "'labb': is not installed in gantt.report_sources; did you mean 'lab'?"),
        ([], 64, 'source'),
        (['lab'], 1, '[lab] bookings: '),
    ],
    ids=['unknown', 'none', 'options'],
)
def test_what_is_wrong_with_a_source_is_said_in_the_last_line(
    tmp_path, installed, words, code, problem
):
    process = subprocess.run(
        command(tmp_path, 'kombu+memory:////', *words, bookings='none.json'),
        env=installed,
        capture_output=True,
        text=True,
        timeout=60,
    )
    last = process.stderr.splitlines()[-1]
    assert (process.returncode, last.startswith('gantt-report-source: ')) == (code, True), last
    assert problem in last
