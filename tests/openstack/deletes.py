# SPDX-License-Identifier: Apache-2.0
"""Steps: servers that are deleted while gantt-nova-source reads which there are."""

import contextlib
import datetime
import time
from collections.abc import Iterator

from tests.openstack import boots, files
from tests.openstack.trial import Trial, expect

SERVERS = 100
#: Twice [rpc] nova_clock_skew_seconds of younger claims a delete is not believed at once.
YOUNG_SECONDS = 65.0
LONG = 420.0


def deleted_while_read(trial: Trial) -> str:
    """a hundred servers are deleted between the reading of their list and its report"""
    cloud, flag = trial.cloud, trial.cloud.root / 'gantt/hold'
    with _no_quota(trial), _no_other_lists(trial):
        servers = trial.boot('read', flavor='tiny', count=SERVERS)
        cloud.wait('a hundred servers', lambda: _active(trial) == SERVERS, LONG)
        cloud.wait('their claims', lambda: _confirmed(trial) == SERVERS, LONG)
        time.sleep(YOUNG_SECONDS)
        # One that starts tells all lists in its first pass, whether they have changed or not.
        cloud.stop('gantt-nova-source')
        flag.touch()
        try:
            cloud.up_gantt('gantt-nova-source')
            cloud.wait('a pass', flag.with_suffix('.waits').exists, 90)
            trial.delete(*servers, seconds=LONG)
            gone = time.monotonic()
            cloud.wait('releases', lambda: not trial.claims(), 120)
            gone = time.monotonic() - gone
        finally:
            flag.unlink()
        # That pass goes on with what it has read; two later ones follow.
        passed = flag.with_suffix('.passed')
        until, most = len(passed.read_bytes()) + 3, 0
        while len(passed.read_bytes()) < until:
            cloud.wait('the next pass', lambda: True)
            most = max(most, len(trial.claims()))
            time.sleep(0.5)
    expect(not most, f'{most} of {SERVERS} deleted servers had a claim again')
    return f'{SERVERS} claims gone {gone:.0f} s after the last server, and none came back'


def _active(trial: Trial) -> int:
    servers = trial.ask('GET', '/servers/detail?all_tenants=1&limit=1000')['servers']
    broken = [server['fault'] for server in servers if server['status'] == 'ERROR']
    expect(not broken, f'{len(broken)} were not built: {broken[:1]}')
    return sum(server['status'] == 'ACTIVE' for server in servers)


def _confirmed(trial: Trial) -> int:
    return sum(state == 'confirmed' for state, _ in trial.claims().values())


@contextlib.contextmanager
def _no_other_lists(trial: Trial) -> Iterator[None]:
    """No nova-compute lists its guests meanwhile: after a newer list an older one has no say."""

    def again(**words: object) -> None:
        trial.cloud.write(**words)
        for host in files.HOSTS:
            trial.cloud.stop(f'nova-compute-{host}')
            trial.cloud.up_host(host)
        trial.cloud.wait('hosts that are up', lambda: len(_up(trial)) == len(files.HOSTS), 120)

    began = time.time()
    again(sync=3600)
    trial.cloud.wait('their first lists', lambda: time.time() > began + 30)
    boots.hosts_known(trial)
    try:
        yield
    finally:
        again()


def _up(trial: Trial) -> list[str]:
    """Hosts whose service is up, and has said so since it was started anew."""
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    return [
        service['host']
        for service in trial.ask('GET', '/os-services?binary=nova-compute')['services']
        if service['state'] == 'up'
        and (now - datetime.datetime.fromisoformat(service['updated_at'])).total_seconds() < 10
    ]


@contextlib.contextmanager
def _no_quota(trial: Trial) -> Iterator[None]:
    """The administrator's project may have any number of servers meanwhile."""
    project = trial.admin.session.get_project_id()
    path, none = f'/os-quota-sets/{project}', {'instances': -1, 'cores': -1, 'ram': -1}
    trial.ask('PUT', path, {'quota_set': none | {'force': True}})
    try:
        yield
    finally:
        trial.delete_all()
        trial.ask('DELETE', path)


STEPS = (deleted_while_read,)
