# SPDX-License-Identifier: Apache-2.0
"""A rolling upgrade: an older scheduler, agent and API beside those of this tree.

The older ones run from an older commit, with the packages that are installed here.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import uuid

import pytest
import sqlalchemy as sa

from bench.rig import postgresql_database
from gantt import client, exceptions
from gantt.client.compute import ComputeClient, topic_of
from gantt.core.messages import base
from gantt.core.messages.build import Delete
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.db.schema import migration, models
from gantt.db.stores.store import SqlStore
from tests import warm
from tests.builders import CLEAN
from tests.forms import forms
from tests.nemesis.load import a_conf
from tests.nemesis.site import _free_port, until
from tests.releases import BEFORE
from tests.services import UNHURRIED

# Releases that never were: the last two commits that stood for one are tried at night.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.rabbit,
    pytest.mark.postgresql,
    pytest.mark.timeout(300),
]

ROOT = pathlib.Path(__file__).parents[2]
HOSTS, REQUESTS = 3, 24


@pytest.fixture(scope='module', params=list(BEFORE), ids=lambda commit: commit[:7])
def older(request, tmp_path_factory):
    """The tree of an older commit."""
    folder = tmp_path_factory.mktemp('older')
    archive = folder / 'tree.tar'
    git = shutil.which('git')
    made = git and subprocess.run(
        [git, 'archive', '--output', str(archive), request.param, 'gantt', 'bench'],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if not made or made.returncode:
        said = made.stderr.strip().splitlines()[-1:] if made else ['git is not installed']
        pytest.skip(
            f'NO HISTORY: commit {request.param[:7]} cannot be had ({said}); fetch all of it'
        )
    tree = folder / 'tree'
    with tarfile.open(archive) as tar:
        tar.extractall(tree, filter='data')
    said = subprocess.run(
        [sys.executable, '-c', 'import gantt; print(gantt.__file__)'],
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert said.startswith(str(tree))
    return tree


class Side:
    """Processes of one release: a scheduler, a farm of hosts, a conductor, perhaps an API."""

    def __init__(self, name, tree, database, broker, folder):
        self.name, self.tree = name, tree
        self.metrics_port, self.api_port = _free_port(), _free_port()
        self.folder = folder / name
        self.folder.mkdir()
        options = {
            'DEFAULT': {'host': name, 'metrics_port': self.metrics_port},
            'scheduler': {'report_seconds': 2, 'feed_seconds': 0.1},
            'claims': {'lease_seconds': 60, 'sweep_seconds': 2},
            'compute': {'farm_prefix': name},
            'api': {'port': self.api_port},
        }
        self.rig = warm.Rig(database, broker, self.folder, options, tree)

    def start_scheduler(self):
        self.rig.start('scheduler', 'gantt-scheduler')
        self.rig.wait_for('scheduler', 'is ready')

    def start_agents(self):
        self.rig.start('agents', 'gantt-compute', '--fake', str(HOSTS), '--name', self.name)

    def start_api(self):
        self.rig.start('api', 'gantt-api')
        self.rig.wait_for('api', 'listens on')

    def start_conductor(self, seed):
        """Asks for places and has guests built there; ``answers`` when it has ended."""
        self._out = self.folder / 'answers.jsonl'
        self._conductor = subprocess.Popen(
            [
                sys.executable,
                '-m',
                'bench.conductor',
                '--config-file',
                str(self.rig.config),
                '--out',
                str(self._out),
                '--requests',
                str(REQUESTS),
                '--callers',
                '4',
                '--seed',
                str(seed),
            ],
            cwd=self.tree or ROOT,
        )
        self.rig.processes['conductor'] = self._conductor

    def answers(self):
        """What was placed, by claim, and what became of each build."""
        assert self._conductor.wait(200) == 0
        lines = [json.loads(line) for line in self._out.read_text().splitlines()]
        placed = {claim['id']: claim for line in lines for claim in line.get('claims', ())}
        built = {line['claim']: line['built'] for line in lines if 'claim' in line}
        return placed, built, [line for line in lines if 'error' in line]

    def metric(self, name, label=''):
        url = f'http://127.0.0.1:{self.metrics_port}/metrics'
        with urllib.request.urlopen(url, timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            float(line.rpartition(' ')[2])
            for line in lines
            if line.startswith((f'{name} ', f'{name}{{')) and label in line
        )

    def asks_api(self, path, body=None, method=None):
        asked = urllib.request.Request(
            f'http://127.0.0.1:{self.api_port}{path}',
            None if body is None else json.dumps(body).encode(),
            {'Content-Type': 'application/json'},
            method=method,
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)


@pytest.fixture
def sides(older, rabbit_url, postgresql_url, tmp_path):
    """(the older side, this tree's, their store); the schema is the older one's."""
    with postgresql_database() as database:
        before = Side('old', older, database, rabbit_url, tmp_path)
        now = Side('new', None, database, rabbit_url, tmp_path)
        try:
            before.rig.run('gantt-manage', 'db', 'sync')
            yield before, now
        finally:
            before.rig.close()
            now.rig.close()


def reporting(store):
    return {c.row.name for c in store.load_everything().hosts if c.row and c.row.full_sequence}


def test_processes_of_the_release_before_work_beside_those_of_this_one(sides):
    before, now = sides
    before.start_scheduler()
    before.start_agents()
    before.start_api()
    # The schema comes first, then the processes one by one.
    now.rig.run('gantt-manage', 'db', 'sync')
    store = SqlStore.for_url(now.rig.database, waits=UNHURRIED)
    assert migration.current(store.engine) == migration.expected()
    pool = _a_pool(store)
    now.start_scheduler()
    now.start_agents()
    try:
        _play(before, now, store)
        _pools(store, pool)
    finally:
        store.close()


def _a_pool(store):
    """A provider that is no host, where none may be yet: no process of before takes it for one."""
    made = str(uuid.uuid4())
    classes = models.resource_classes
    row = {'uuid': made, 'name': f'\x7f{made}', 'own_name': 'pool', 'kind': 'pool'}
    row |= {f'cap_{name}': 1 << 30 for name in ('vcpu', 'memory_mb', 'disk_gb')}
    with store.engine.begin() as connection:
        (pid,) = connection.execute(models.providers.insert().values(row)).inserted_primary_key
        named = sa.select(classes.c.id).where(classes.c.name.in_(['VCPU', 'MEMORY_MB', 'DISK_GB']))
        has = {'provider_id': pid, 'total': 1 << 30, 'cap': 1 << 30, 'reserved': 0}
        has |= {'min_unit': 1, 'step_size': 1, 'allocation_ratio': 1.0}
        ids = connection.execute(named).scalars().all()
        rows = [{**has, 'class_id': one} for one in ids]
        connection.execute(models.inventories.insert(), rows)
        news = [{'kind': kind, 'ref': str(pid)} for kind in ('host', 'provider')]
        connection.execute(models.changes.insert(), news)
    return made


def _pools(store, pool):
    """Behind the contract step they are made, and the release before does not start."""
    (found,) = [one for one in store.providers() if one.host is None]
    assert (found.uuid, found.used) == (pool, {})
    below = store.create_provider('below', parent=pool)
    assert below.root == pool
    assert store.audit() == CLEAN


def _play(before, now, store):
    until(lambda: len(reporting(store)) == 2 * HOSTS, 'hosts of both report', 90)
    assert {name[:3] for name in reporting(store)} == {'old', 'new'}
    sides = (before, now)
    for seed, side in enumerate(sides):
        side.start_conductor(seed + 1)
    placed: dict[str, dict] = {}
    for side in sides:
        its, built, errors = side.answers()
        # Only for lack of room: 6 hosts fill up.
        assert {line['error'] for line in errors} <= {'gantt.no_valid_host'}
        assert its and set(built.values()) == {'running'}
        placed |= its
    assert {claim['host'][:3] for claim in placed.values()} == {'old', 'new'}
    with store.engine.connect() as connection:
        owners = set(connection.execute(sa.select(models.requests.c.owner)).scalars())
    assert {owner[:3] for owner in owners} == {'old', 'new'}, 'both have placed'
    for side in sides:
        assert side.metric('gantt_reports_total', 'applied') > 0, f'{side.name} folded reports'
        assert side.metric('gantt_claim_words_total', 'confirm') > 0, f'{side.name} confirmed'
    confirmed = {claim.id for claim in store.claims(state='confirmed', limit=1000)}
    assert confirmed == set(placed)

    # Guests go, asked for by conductors of today, and their places are free again.
    carrier = client.get_transport(a_conf(now.rig.broker))
    try:
        computes = ComputeClient(carrier, timeout=30.0)
        for claim_id, claim in placed.items():
            delete = Delete(consumer=claim['consumer'], host=claim['host'], claim_id=claim_id)
            told = computes.delete(topic_of(claim['host']), delete, wait=True)
            assert told['outcome'] == 'deleted'
    finally:
        carrier.cleanup()
    until(lambda: not store.claims(state='confirmed'), 'all places are free', 60)

    _ask_the_api(before, store)
    assert store.audit() == CLEAN
    now.rig.run('gantt-manage', 'audit')
    _contract(before, now, store)
    for side in sides:
        for process in list(side.rig.processes):
            assert 'Traceback' not in side.rig.log(process), f'{side.name} {process}'
            assert process == 'conductor' or side.rig.stop(process, 60) == 0


def _contract(before, now, store):
    """The step after which the release before is not put back: refused while it runs."""
    assert forms(store)['narrow'] == 0, 'what an older process would not understand'
    with pytest.raises(exceptions.Refused, match='gantt-manage db contract'):
        store.create_provider('another pool')
    # Releases since schema 0012 note themselves, and start on steps that only add.
    noted = any(one.host == 'old' for one in store.services())
    if noted:
        with pytest.raises(RuntimeError, match='does not know the narrow form'):
            now.rig.run('gantt-manage', 'db', 'contract', '--yes')
    for process in ('scheduler', 'api'):
        assert before.rig.stop(process, 60) == 0
    if noted:
        before.rig.run('gantt-manage', 'purge')  # it could be put back now
    with pytest.raises(RuntimeError, match='can not be put back'):
        now.rig.run('gantt-manage', 'db', 'contract')
    now.start_conductor(3)
    assert 'all are narrow now' in now.rig.run('gantt-manage', 'db', 'contract', '--yes')
    placed, built, errors = now.answers()
    assert {line['error'] for line in errors} <= {'gantt.no_valid_host'}
    assert placed and set(built.values()) == {'running'}
    found = forms(store)
    assert found['narrow'] and not (found['wide'] or found['allocations'] or found['consumers'])
    assert {claim.id for claim in store.claims(state='confirmed', limit=1000)} == set(placed)
    assert store.audit() == CLEAN
    with pytest.raises(RuntimeError, match='which this release does not know'):
        before.rig.run('gantt-manage', 'purge')


def _ask_the_api(before, store):
    """The older API, asked as it always was: places given by whichever scheduler."""
    for _ in range(6):
        request = SelectDestinations(
            request_id=str(uuid.uuid4()),
            consumers=[str(uuid.uuid4())],
            spec=RequestSpec(resources={'VCPU': 1, 'MEMORY_MB': 1024}),
        )
        answer = before.asks_api('/v1/requests', base.to_builtins(request))
        claim_id = answer['answer']['selections'][0][0]['claim_id']
        claim = store.load_claim(claim_id)
        assert claim is not None and claim.state.value == 'reserved'
        assert before.asks_api(f'/v1/requests/{request.request_id}')['state'] == 'placed'
        before.asks_api(f'/v1/requests/{request.request_id}?reason=test', method='DELETE')
        claim = store.load_claim(claim_id)
        assert claim is not None and claim.state.value == 'released'
    listed = [one['name'] for one in before.asks_api('/v1/hosts')['hosts']]
    assert set(listed) == reporting(store)
