# SPDX-License-Identifier: Apache-2.0
"""The page about groups, played: its files are planned, created and shown as it says."""

import contextlib
import json
import pathlib
import re
import time

import pytest
import yaml

from bench.rig import Rig
from tests.cli.conftest import run

PAGE = pathlib.Path(__file__).parents[2] / 'doc/source/user/groups.rst'
SHOP, HADOOP, RACKS = (PAGE.with_name(f'{name}.yaml') for name in ('shop', 'hadoop', 'racks'))
HOSTS = 19
WEB = ('--resource', 'VCPU=2', '--resource', 'MEMORY_MB=4096', '--resource', 'DISK_GB=20')


def until(check, seconds=60.0):
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, 'it did not come to it'
        time.sleep(0.2)
    return found


def answered(*words):
    done = run(*words, '-f', 'json')
    assert done.code == 0, (words, done.err)
    return json.loads(done.out)


@pytest.fixture
def site(store_url, tmp_path, monkeypatch):
    """gantt-standalone with the hosts of the page; commands ask it."""
    made = Rig(store_url('sqlite'), '', tmp_path, {'api': {'port': 0}})
    lines = made.config.read_text().splitlines(keepends=True)
    made.config.write_text(''.join(one for one in lines if not one.startswith('transport_url')))
    with contextlib.closing(made):
        made.start('site', 'gantt-standalone', '--fake', str(HOSTS), '--shapes', str(RACKS))
        made.wait_for('site', 'is ready')
        url = re.search(r'listens on (http://[\d.:]+)', made.log('site'))[1]
        monkeypatch.setenv('GANTT_ENDPOINT', url)
        until(lambda: [one['condition'] for one in answered('host', 'list')].count('up') == HOSTS)
        yield made
        assert made.stop('site') == 0
        assert 'Traceback' not in made.log('site')


def plan_of(file):
    """The plan of a described group, its members by name."""
    shown = answered('group', 'show', yaml.safe_load(file.read_text())['uuid'], '--check')['plan']
    return shown, {one['name']: one for one in shown['members']}


def racks(members, kind):
    return [m['levels']['rack'] for m in members.values() if m['member'] == kind]


def test_the_page_is_played(site):
    # The planner has a table of its own, which follows.
    until(lambda: run('group', 'plan', str(SHOP), '--dry-run').code == 0)
    answered('group', 'plan', str(SHOP))
    shop = yaml.safe_load(SHOP.read_text())['uuid']
    _, members = plan_of(SHOP)
    for kind, count in (('web', 3), ('db', 2)):
        assert len(set(racks(members, kind))) == count

    place = answered('select', '--group', shop, '--member', 'web-2', *WEB)
    assert place['answer']['selections'][0][0]['host'] == members['web-2']['host']
    assert run('select', '--group', shop, *WEB).code == 0
    differs = run('select', '--group', shop, '--member', 'db', *WEB)
    assert differs.code == 1
    shown = re.search(r'gantt: member db was planned .*?\n\n', PAGE.read_text(), re.DOTALL)[0]
    assert ' '.join(shown.split()) in ' '.join(differs.err.split())

    def states():
        return {name: one['state'] for name, one in plan_of(SHOP)[1].items()}

    until(lambda: sorted(states().values()) == ['planned'] * 3 + ['running'] * 2)
    assert states()['web-2'] == 'running'
    assert run('group', 'extend', shop, '--lease', '7200').code == 0

    answered('group', 'plan', str(HADOOP))
    plan, cluster = plan_of(HADOOP)
    assert len(cluster) == 17 and plan['violated'] == []
    assert set(racks(cluster, 'worker')) <= set(racks(cluster, 'data'))
    assert len({one['levels']['room'] for one in cluster.values() if one['member'] == 'name'}) == 2
    explained = run('explain', plan['group'])
    assert explained.code == 0 and 'members without a place         0' in explained.out
    assert run('replay', plan['group']).code == 0

    assert run('group', 'heal', shop).code == 0
    assert run('group', 'release', shop).code == 0
    assert {one['group'] for one in answered('group', 'plans')} == {plan['group']}
