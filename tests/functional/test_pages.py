# SPDX-License-Identifier: Apache-2.0
"""The tutorial and the page about groups, played: their commands do what the pages show."""

import contextlib
import json
import os
import pathlib
import re
import shlex
import textwrap
import time

import pytest
import yaml

from bench.rig import Rig, written
from tests.cli.conftest import run

SOURCE = pathlib.Path(__file__).parents[2] / 'doc/source'
TUTORIAL, PAGE = SOURCE / 'tutorial.rst', SOURCE / 'user/groups.rst'
SHOP, HADOOP, RACKS = (PAGE.with_name(f'{name}.yaml') for name in ('shop', 'hadoop', 'racks'))
HOSTS = 19
WEB = ('--resource', 'VCPU=2', '--resource', 'MEMORY_MB=4096', '--resource', 'DISK_GB=20')
#: An id, whole or the beginning of it.
ID = re.compile(r'\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b[0-9a-f]{8}\b')


def until(check, seconds=60.0):
    end = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < end, 'it did not come to it'
        time.sleep(0.2)
    return value


def answered(*words):
    done = run(*words, '-f', 'json')
    assert done.code == 0, (words, done.err)
    return json.loads(done.out)


@pytest.fixture
def rig(store_url, tmp_path, monkeypatch):
    """gantt-standalone with the hosts of the pages; commands ask it."""
    monkeypatch.setenv('COLUMNS', '80')
    options = {'api': {'port': 0}, 'scheduler': {'report_seconds': 2}}
    own_rig = Rig(store_url('sqlite'), '', tmp_path, options)
    lines = own_rig.config.read_text().splitlines(keepends=True)
    own_rig.config.write_text(
        ''.join(line for line in lines if not line.startswith('transport_url'))
    )
    with contextlib.closing(own_rig):
        yield own_rig
        for name in list(own_rig.processes):
            assert own_rig.stop(name) == 0
            assert 'Traceback' not in own_rig.log(name)


def start(rig, name, monkeypatch):
    rig.start(name, 'gantt-standalone', '--fake', str(HOSTS), '--shapes', str(RACKS))
    rig.wait_for(name, 'gantt-scheduler is ready')
    url = re.search(r'address=(http://[\d.:]+)', rig.log(name))[1]
    monkeypatch.setenv('GANTT_ENDPOINT', url)
    until(lambda: [host['condition'] for host in answered('host', 'list')].count('up') == HOSTS)


@pytest.fixture
def site(rig, monkeypatch):
    start(rig, 'site', monkeypatch)
    return rig


def plan_of(file):
    """The plan of a described group, its members by name."""
    shown = answered('group', 'show', yaml.safe_load(file.read_text())['uuid'], '--check')['plan']
    return shown, {member['name']: member for member in shown['members']}


def racks(members, kind):
    return [m['levels']['rack'] for m in members.values() if m['member'] == kind]


def test_the_page_about_groups_is_played(site):
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
        return {name: member['state'] for name, member in plan_of(SHOP)[1].items()}

    until(lambda: sorted(states().values()) == ['planned'] * 3 + ['running'] * 2)
    assert states()['web-2'] == 'running'
    assert run('group', 'extend', shop, '--lease', '7200').code == 0

    answered('group', 'plan', str(HADOOP))
    plan, cluster = plan_of(HADOOP)
    assert len(cluster) == 17 and plan['violated'] == []
    assert set(racks(cluster, 'worker')) <= set(racks(cluster, 'data'))
    assert (
        len({member['levels']['room'] for member in cluster.values() if member['member'] == 'name'})
        == 2
    )
    explained = run('explain', plan['group'])
    assert explained.code == 0 and 'members without a place         0' in explained.out
    assert run('replay', plan['group']).code == 0

    assert run('group', 'heal', shop).code == 0
    assert run('group', 'release', shop).code == 0
    assert {listed['group'] for listed in answered('group', 'plans')} == {plan['group']}


def blocks(page):
    """The console blocks of a page, as (command, what it prints) in order."""
    for block in re.findall(r'^\.\. code-block:: console\n\n((?:   .*\n|\n)+)', page, re.MULTILINE):
        text = textwrap.dedent(block).replace('\\\n', ' ')
        for command in re.split(r'^\$ ', text, flags=re.MULTILINE)[1:]:
            line, _, printed = command.partition('\n')
            yield line, printed


#: Commands that may be given again until their output has come to what is shown.
SHOWING = ('claim list', 'decision list', 'group show', 'status')
STATES = re.compile(r'confirmed\*?|released|planned|running|no valid host|\b\d+ (?:live|up)')


def masked(text):
    """The first words of an output, without what differs from run to run."""
    return re.sub(r'\d+', '#', ID.sub('ID', text)).split()[:5]


class Reader:
    """Somebody who types the commands of a page, with the ids that came out here."""

    def __init__(self):
        self.ids = {}
        self.values = {'shop.yaml': str(SHOP)}

    def types(self, line, printed):
        for page_id, id_here in self.ids.items():
            line = line.replace(page_id, id_here)
        words = [self.values.get(word, word) for word in shlex.split(line)[1:]]
        if ' '.join(words[:2]) in SHOWING:
            states = STATES.findall(printed)
            until(lambda: all(state in run(*words).out for state in states))
        done = run(*words)
        is_refused = printed.startswith('gantt: ')
        assert done.code == (2 if is_refused else 0), (line, done)
        text = done.err if is_refused else done.out
        if not printed.startswith('...'):
            assert masked(text) == masked(printed), line
        shown = ID.findall(printed.partition('...')[0])
        self.ids |= {old[:8]: new[:8] for old, new in zip(shown, ID.findall(text), strict=False)}
        if request := re.search(r'^request (\S+)$', done.out, re.MULTILINE):
            self.values['REQUEST'] = request[1]


def test_the_tutorial_is_played(site, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = Reader()
    before, _, after = TUTORIAL.read_text().partition('Minute 21')
    count = 0
    until(lambda: run('group', 'plan', str(SHOP), '--dry-run').code == 0)
    for line, printed in blocks(before):
        if match := re.fullmatch(r'(\w+)=(\S+)', line):
            reader.values[f'${match[1]}'] = match[2]
        if line.startswith('gantt '):
            reader.types(line, printed)
            count += 1
    assert count > 15
    for line, printed in blocks(after):
        if line.startswith('gantt-manage dev new-filter'):
            wrote = site.run('gantt-manage', *shlex.split(line)[1:], '--folder', str(tmp_path))
            assert printed.partition('...')[0] in wrote.replace(f'{tmp_path}/', '')
    assert site.stop('site') == 0
    # As "pip install -e" does it.
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join([str(tmp_path), str(SOURCE.parents[1])]))
    filters = {'extra_filters': 'my_gantt_plugins.few_guests:FewGuestsFilter'}
    with site.config.open('a') as config:
        config.write(written({'filters': filters | {'few_guests_limit': 1}}))
    start(site, 'again', monkeypatch)
    for line, printed in blocks(after):
        if line.startswith('gantt '):
            reader.types(line, printed)
