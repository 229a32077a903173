# SPDX-License-Identifier: Apache-2.0
"""Steps: Gantt in the shadow of a nova-scheduler that places."""

import json

from tests.openstack import files
from tests.openstack.trial import Trial, expect


def change_over(trial: Trial) -> str:
    """back to nova-scheduler: heal Placement, start it, Gantt beside it"""
    kept = trial.up('kept')[0]
    cloud = trial.cloud
    cloud.stop('gantt-scheduler')
    cloud.write(replaces=False)
    dry = cloud.nova_manage('placement', 'heal_allocations', '--dry-run', '--verbose', fails=True)
    cloud.nova_manage('placement', 'heal_allocations', '--verbose', fails=True)
    expect(len(trial.admin.allocations(kept['id'])) == 1, f'it was not healed: {dry}')
    cloud.start(
        'nova-scheduler',
        str(cloud.bin / 'nova-scheduler'),
        '--config-file',
        str(cloud.root / 'etc/nova/nova.conf'),
        '--log-file',
        str(cloud.root / 'log/nova-scheduler.log'),
    )
    cloud.wait(
        'nova-scheduler',
        lambda: [
            service
            for service in trial.ask('GET', '/os-services?binary=nova-scheduler')['services']
            if service['state'] == 'up'
        ],
    )
    cloud.up_gantt('gantt-scheduler', 'gantt-shadow')
    log = cloud.root / 'log/gantt-shadow.log'
    cloud.wait('gantt-shadow', lambda: log.exists() and 'is ready' in log.read_text())
    return 'the guest of before has its allocation'


def shadow(trial: Trial) -> str:
    """boots, a refusal and moves that nova-scheduler decides"""
    hosts = []
    for _ in range(4):
        hosts.append(trial.up('by-nova')[0])
    several = [trial.settled(server) for server in trial.boot('by-nova', count=3)]
    none = trial.settled(trial.boot('huge', flavor='huge')[0], 'ERROR')
    forced = trial.up('forced', host=files.HOSTS[0])[0]
    moved = several[0]['id']
    trial.act(moved, 'resize', {'flavorRef': 'm2'})
    trial.settled(moved, 'VERIFY_RESIZE')
    trial.act(moved, 'confirmResize')
    trial.settled(moved)
    for server in (*hosts, *several[1:], forced):
        trial.holds(server['id'], {server['host']: ('confirmed', 1)}, 90)
    expect(none['fault']['message'].startswith('No valid host'), none['fault'])
    verdicts = trial.cloud.wait('verdicts', lambda: _verdicts(trial, 10), 120)
    odd = {'removed', 'not_known', 'nova_none', 'not_decided'} & set(verdicts)
    expect(not odd and verdicts.get('neither') == 1, f'verdicts: {verdicts}')
    return str(verdicts)


def _verdicts(trial: Trial, least: int) -> dict[str, int]:
    report = json.loads(trial.cloud.gantt_command('gantt-manage', 'shadow', 'report', '-f', 'json'))
    counts = {verdict: count for verdict, count in report['counts'].items() if count}
    return counts if sum(counts.values()) >= least else {}


STEPS = (change_over, shadow)
