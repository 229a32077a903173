# SPDX-License-Identifier: Apache-2.0
"""Steps: what is booted, where, and why not."""

import time

from tests.openstack import files
from tests.openstack.trial import Trial, expect

CONFIRMED = ('confirmed', 1)


def hosts_known(trial: Trial) -> str:
    """hosts of the report source"""

    def look() -> dict:
        hosts = trial.admin.scheduler.get('/v1/hosts').json()['hosts']
        up = {host['name']: host for host in hosts if host['condition'] == 'up'}
        return up if set(up) == set(files.HOSTS) else {}

    by_name = trial.cloud.wait('hosts', look)
    return ', '.join(sorted(by_name))


def boot_one(trial: Trial) -> str:
    """boot one, and delete it"""
    server = trial.up('one')[0]
    trial.holds(server['id'], {server['host']: CONFIRMED})
    written = trial.admin.allocations(server['id'])
    trial.delete(server['id'])
    took = trial.holds(server['id'], {}, 90)
    return f'on {server["host"]}; Placement had {written}; claim gone {took:.0f} s after'


def boot_several(trial: Trial) -> str:
    """boot six at once"""
    servers = [trial.settled(server) for server in trial.boot('several', count=6)]
    for server in servers:
        trial.holds(server['id'], {server['host']: CONFIRMED})
    return ', '.join(sorted(server['host'] for server in servers))


def _group(trial: Trial, policy: str) -> str:
    body = {'server_group': {'name': policy, 'policy': policy}}
    return trial.ask('POST', '/os-server-groups', body)['server_group']['id']


def anti_affinity(trial: Trial) -> str:
    """a server group with anti-affinity: three fit, a fourth does not"""
    hints = {'group': _group(trial, 'anti-affinity')}
    servers = [trial.up('apart', hints=hints)[0] for _ in files.HOSTS]
    hosts = sorted(server['host'] for server in servers)
    expect(hosts == sorted(files.HOSTS), f'they are on {hosts}')
    last = trial.settled(trial.boot('apart', hints=hints)[0], 'ERROR')
    expect('No valid host' in last['fault']['message'], last['fault'])
    return f'{hosts}; then: {last["fault"]["message"]}'


def anti_affinity_at_once(trial: Trial) -> str:
    """three servers of a group with anti-affinity in one request"""
    hints = {'group': _group(trial, 'anti-affinity')}
    servers = [trial.settled(uuid) for uuid in trial.boot('apart', count=3, hints=hints)]
    hosts = sorted(server['host'] for server in servers)
    expect(hosts == sorted(files.HOSTS), f'they are on {hosts}')
    return str(hosts)


def affinity(trial: Trial) -> str:
    """a server group with affinity"""
    hints = {'group': _group(trial, 'affinity')}
    hosts = {trial.up('together', hints=hints)[0]['host'] for _ in range(3)}
    expect(len(hosts) == 1, f'they are on {hosts}')
    return str(hosts)


def named_hosts(trial: Trial) -> str:
    """a host that is named: as a zone's, and by microversion 2.74"""
    for host in files.HOSTS:
        forced = trial.up('forced', availability_zone=f'nova:{host}')[0]
        expect(forced['host'] == host, f'forced to {host}, it is on {forced["host"]}')
        named = trial.up('named', host=host)[0]
        expect(named['host'] == host, f'asked for on {host}, it is on {named["host"]}')
        for server in (forced, named):
            trial.holds(server['id'], {host: CONFIRMED})
    return 'each of the three, both ways'


def no_valid_host(trial: Trial) -> str:
    """a boot that fits nowhere"""
    began = time.monotonic()
    server = trial.settled(trial.boot('huge', flavor='huge')[0], 'ERROR')
    took = time.monotonic() - began
    fault = server['fault']['message']
    expect('No valid host' in fault and server['fault']['code'] == 500, server['fault'])
    expect('DISK_GB' in fault or 'disk' in fault, f'no reason in it: {fault}')
    expect(trial.claims(server['id']) == {}, f'claims are {trial.claims(server["id"])}')
    return f'after {took:.0f} s: {fault}'


def zones(trial: Trial) -> str:
    """a zone of an aggregate"""
    with trial.aggregate('west', 'west', 'beta'):
        trial.cloud.wait(
            'the aggregate here',
            lambda: any(
                aggregate['name'] == 'west' and aggregate['hosts'] == ['beta']
                for aggregate in trial.admin.scheduler.get('/v1/aggregates').json()['aggregates']
            ),
        )
        server = trial.up('west', availability_zone='west')[0]
        expect(server['host'] == 'beta', f'it is on {server["host"]}')
        other = trial.settled(
            trial.boot('west', availability_zone='west:alpha')[0], 'ERROR', 'ACTIVE'
        )
    fault = (other['fault'] or {}).get('message', other['host'])
    return f'on beta; asked for west:alpha: {other["status"]}, {fault}'


def alternate(trial: Trial) -> str:
    """builds that fail on the first two hosts go to alternates"""
    with trial.failing('spawn', 'alpha', 'beta'):
        servers = [trial.settled(server) for server in [trial.boot('again')[0] for _ in range(4)]]
    for server in servers:
        expect(server['host'] == 'gamma', f'it is on {server["host"]}')
    for server in servers:
        trial.cloud.wait(
            'claim on gamma', lambda s=server: trial.claims(s['id']).get('gamma') == CONFIRMED
        )
    written = [trial.admin.allocations(server['id']) for server in servers]
    held = [trial.claims(server['id']) for server in servers]
    trial.delete(*(server['id'] for server in servers))
    return f'four on gamma; claims {held}; allocations: {written}'


def no_alternate(trial: Trial) -> str:
    """a build that fails on every host, and one that is aborted"""
    with trial.failing('spawn', *files.HOSTS):
        server = trial.settled(trial.boot('nowhere')[0], 'ERROR')
    fault = server['fault']['message']
    with trial.failing('abort', *files.HOSTS):
        aborted = trial.settled(trial.boot('aborted')[0], 'ERROR')
    expect('told to fail' in aborted['fault']['message'], aborted['fault'])
    held = {server['id']: trial.claims(server['id']), aborted['id']: trial.claims(aborted['id'])}
    trial.delete(server['id'], aborted['id'])
    return f'{fault}; claims meanwhile: {list(held.values())}'


def many(trial: Trial) -> str:
    """ten requests at once"""
    servers = [trial.settled(server) for server in [trial.boot('many')[0] for _ in range(10)]]
    for server in servers:
        trial.holds(server['id'], {server['host']: CONFIRMED})
    return ', '.join(sorted(server['host'] for server in servers))


STEPS = (
    hosts_known,
    boot_one,
    boot_several,
    many,
    anti_affinity,
    anti_affinity_at_once,
    affinity,
    named_hosts,
    no_valid_host,
    zones,
    alternate,
    no_alternate,
)
