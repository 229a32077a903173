# SPDX-License-Identifier: Apache-2.0
"""Steps: what is done to guests that run."""

import contextlib
import signal
import time

from keystoneauth1 import exceptions as ks

from tests.openstack.trial import Trial, expect

CONFIRMED = ('confirmed', 1)


def resize_confirm(trial: Trial) -> str:
    """resize and confirm"""
    server = trial.up('resized')[0]
    before = server['host']
    trial.act(server['id'], 'resize', {'flavorRef': 'm2'})
    after = trial.settled(server['id'], 'VERIFY_RESIZE')['host']
    expect(after != before, f'it stayed on {after}')
    trial.holds(server['id'], {before: CONFIRMED, after: ('confirmed', 2)})
    trial.act(server['id'], 'confirmResize')
    trial.settled(server['id'])
    took = trial.holds(server['id'], {after: ('confirmed', 2)}, 90)
    return f'{before} to {after}; the claim at the source was gone after {took:.0f} s'


def resize_revert(trial: Trial) -> str:
    """resize and revert"""
    server = trial.up('reverted')[0]
    before = server['host']
    trial.act(server['id'], 'resize', {'flavorRef': 'm2'})
    after = trial.settled(server['id'], 'VERIFY_RESIZE')['host']
    trial.holds(server['id'], {before: CONFIRMED, after: ('confirmed', 2)})
    trial.act(server['id'], 'revertResize')
    trial.settled(server['id'])
    took = trial.holds(server['id'], {before: CONFIRMED}, 180)
    return f'{before} to {after} and back; the claim at {after} was gone after {took:.0f} s'


def cold_migration(trial: Trial) -> str:
    """cold migration, then one to a host that is named"""
    server = trial.up('migrated')[0]
    before = server['host']
    trial.act(server['id'], 'migrate', {'host': None})
    after = trial.settled(server['id'], 'VERIFY_RESIZE')['host']
    expect(after != before, f'it stayed on {after}')
    trial.act(server['id'], 'confirmResize')
    trial.settled(server['id'])
    trial.holds(server['id'], {after: CONFIRMED}, 90)
    trial.act(server['id'], 'migrate', {'host': before})
    expect(trial.settled(server['id'], 'VERIFY_RESIZE')['host'] == before, 'another host')
    trial.act(server['id'], 'confirmResize')
    trial.settled(server['id'])
    trial.holds(server['id'], {before: CONFIRMED}, 90)
    return f'{before} to {after} and, by name, to {before}'


def live_migration(trial: Trial) -> str:
    """live migration, then one to a host that is named"""
    server = trial.up('live')[0]
    before = server['host']
    ask = {'host': None, 'block_migration': 'auto'}
    trial.act(server['id'], 'os-migrateLive', ask)
    after = trial.settled(server['id'])['host']
    expect(after != before, f'it stayed on {after}')
    took = trial.holds(server['id'], {after: CONFIRMED}, 180)
    trial.act(server['id'], 'os-migrateLive', ask | {'host': before})
    expect(trial.settled(server['id'])['host'] == before, 'another host')
    again = trial.holds(server['id'], {before: CONFIRMED}, 180)
    return f'{before} to {after} ({took:.0f} s until one claim), back by name ({again:.0f} s)'


def evacuation(trial: Trial) -> str:
    """evacuation from a host that was forced down, and after it was stopped"""
    server = trial.up('evacuated', host='gamma')[0]
    trial.holds(server['id'], {'gamma': CONFIRMED})
    services = trial.ask('GET', '/os-services?binary=nova-compute&host=gamma')['services']
    service = f'/os-services/{services[0]["id"]}'
    trial.cloud.stop('nova-compute-gamma')
    trial.ask('PUT', service, {'forced_down': True})
    trial.act(server['id'], 'evacuate', {})
    after = trial.settled(server['id'], 'SHUTOFF')['host']
    expect(after in ('alpha', 'beta'), f'it is on {after}')
    held = trial.claims(server['id'])
    expect(after in held, f'claims are {held}')
    trial.cloud.up_host('gamma')

    def let_up() -> bool:
        # Refused until the host that is back has cleaned up after the evacuation.
        with contextlib.suppress(ks.BadRequest):
            trial.ask('PUT', service, {'forced_down': False})
            return True
        return False

    trial.cloud.wait('gamma let up', let_up)
    trial.cloud.wait(
        'gamma up',
        lambda: (
            trial.ask('GET', '/os-services?binary=nova-compute&host=gamma')['services'][0]['state']
            == 'up'
        ),
    )
    took = trial.holds(server['id'], {after: CONFIRMED}, 240)
    return f'gamma to {after}; held {held}; one claim {took:.0f} s after gamma was back'


def rebuild(trial: Trial) -> str:
    """rebuild with another image"""
    server = trial.up('rebuilt')[0]
    trial.holds(server['id'], {server['host']: CONFIRMED})
    trial.act(server['id'], 'rebuild', {'imageRef': trial.images['other']})
    after = trial.settled(server['id'])
    expect(after['image']['id'] == trial.images['other'], 'the image is the old one')
    expect(after['host'] == server['host'], f'it is on {after["host"]}')
    trial.holds(server['id'], {server['host']: CONFIRMED})
    return f'on {after["host"]}, one claim'


def shelve(trial: Trial) -> str:
    """shelve, offload, unshelve, also to a host that is named"""
    server = trial.up('shelved')[0]
    trial.holds(server['id'], {server['host']: CONFIRMED})
    trial.act(server['id'], 'shelve')
    trial.settled(server['id'], 'SHELVED_OFFLOADED')
    took = trial.holds(server['id'], {}, 90)
    trial.act(server['id'], 'unshelve')
    first = trial.settled(server['id'])['host']
    trial.holds(server['id'], {first: CONFIRMED})
    trial.act(server['id'], 'shelve')
    trial.settled(server['id'], 'SHELVED_OFFLOADED')
    trial.holds(server['id'], {}, 90)
    trial.act(server['id'], 'unshelve', {'host': 'beta'})
    expect(trial.settled(server['id'])['host'] == 'beta', 'another host')
    trial.holds(server['id'], {'beta': CONFIRMED})
    return f'{took:.0f} s until no claim was left; back on {first}, then on beta by name'


def live_migration_fails(trial: Trial) -> str:
    """live migrations: rolled back, and refused by the first destination"""
    server = trial.up('stays', host='alpha')[0]
    ask = {'host': None, 'block_migration': 'auto'}
    with trial.failing('migrate', 'alpha'):
        trial.act(server['id'], 'os-migrateLive', ask)
        trial.cloud.wait('rollback', lambda: 'failed' in _migrations(trial, server['id']))
    expect(trial.settled(server['id'])['host'] == 'alpha', 'it has moved')
    back = trial.holds(server['id'], {'alpha': CONFIRMED}, 180)
    with trial.failing('receive', 'beta'):
        trial.act(server['id'], 'os-migrateLive', ask)
        trial.cloud.wait('end', lambda: 'completed' in _migrations(trial, server['id']))
    expect(trial.settled(server['id'])['host'] == 'gamma', 'it is not on gamma')
    on = trial.holds(server['id'], {'gamma': CONFIRMED}, 180)
    return f'{back:.0f} s until one claim after the rollback, {on:.0f} s after the second'


def _migrations(trial: Trial, server: str) -> set[str]:
    migrations = trial.ask('GET', f'/os-migrations?instance_uuid={server}')['migrations']
    return {migration['status'] for migration in migrations}


def forced_moves(trial: Trial) -> str:
    """a live migration by force (2.67), which asks no scheduler: with an allocation only"""
    server = trial.up('forced', host='alpha')[0]['id']
    trial.holds(server, {'alpha': CONFIRMED})
    force = {'host': 'beta', 'block_migration': 'auto', 'force': True}
    trial.act(server, 'os-migrateLive', force, '2.67')
    fault = trial.settled(server, 'ERROR')['fault']['message']
    expect('allocations' in fault, fault)
    trial.act(server, 'os-resetState', {'state': 'active'})
    trial.cloud.nova_manage('placement', 'heal_allocations', '--verbose', fails=True)
    trial.act(server, 'os-migrateLive', force, '2.67')
    trial.cloud.wait('end', lambda: 'completed' in _migrations(trial, server))
    expect(trial.settled(server)['host'] == 'beta', 'it is not on beta')
    took = trial.holds(server, {'beta': CONFIRMED}, 180)
    return f'refused without an allocation; healed: {took:.0f} s until beta has the one claim'


def healed(trial: Trial) -> str:
    """a guest with an allocation is resized, reverted, migrated, deleted"""
    servers = [trial.up('healed')[0]['id'] for _ in range(3)]
    trial.cloud.nova_manage('placement', 'heal_allocations', '--verbose', fails=True)
    for server in servers:
        expect(len(trial.admin.allocations(server)) == 1, 'it was not healed')
    for server, end in zip(servers, ('confirmResize', 'revertResize', None), strict=True):
        if end is None:
            trial.act(server, 'os-migrateLive', {'host': None, 'block_migration': 'auto'})
            trial.cloud.wait('end', lambda s=server: 'completed' in _migrations(trial, s))
        else:
            trial.act(server, 'resize', {'flavorRef': 'm2'})
            trial.settled(server, 'VERIFY_RESIZE')
            trial.act(server, end)
        trial.settled(server)
    trial.cloud.wait(
        'the last one claim each',
        lambda: all(len(trial.claims(server)) == 1 for server in servers),
        180,
    )
    counts = [len(trial.admin.allocations(server)) for server in servers]
    expect(counts == [0, 1, 0], f'allocations: {counts}')
    trial.delete(*servers)
    return 'only the one that was reverted still has its allocation'


def nothing_left(trial: Trial) -> str:
    """no server, no claim, no allocation, and an audit without findings"""
    trial.delete_all()
    trial.cloud.wait('no claim', lambda: not trial.claims(), 300)
    providers = trial.admin.placement.get('/resource_providers').json()['resource_providers']
    for provider in providers:
        usages = trial.admin.placement.get(f'/resource_providers/{provider["uuid"]}/usages').json()
        expect(not any(usages['usages'].values()), f'{provider["name"]}: {usages}')
    return trial.audit()


def restart(trial: Trial) -> str:
    """gantt-scheduler is stopped, killed and started among moves and deletions"""
    servers = [server['id'] for server in trial.up('kept', host='alpha')]
    trial.act(servers[0], 'resize', {'flavorRef': 'm2'})
    where = trial.settled(servers[0], 'VERIFY_RESIZE')['host']
    trial.cloud.stop('gantt-scheduler', signal.SIGKILL)
    trial.act(servers[0], 'confirmResize')
    waits = trial.boot('waits')[0]
    time.sleep(3)
    trial.cloud.up_gantt('gantt-scheduler')
    trial.settled(servers[0])
    host = trial.settled(waits)['host']
    trial.holds(servers[0], {where: ('confirmed', 2)}, 180)
    trial.holds(waits, {host: CONFIRMED})
    trial.cloud.stop('gantt-scheduler')
    trial.delete(servers[0])
    trial.cloud.up_gantt('gantt-scheduler')
    took = trial.holds(servers[0], {}, 180)
    return (
        f'a boot while it was away was placed on {host}; the claim of what was deleted then '
        f'was gone {took:.0f} s after'
    )


STEPS = (
    resize_confirm,
    resize_revert,
    cold_migration,
    live_migration,
    live_migration_fails,
    forced_moves,
    healed,
    rebuild,
    shelve,
    restart,
    evacuation,
)
LAST = (nothing_left,)
