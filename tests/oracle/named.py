# SPDX-License-Identifier: Apache-2.0
"""Services that run several nodes, hosts that requests name, and several instances at once."""

from collections import Counter
from typing import Any

from tests.oracle.clouds import Dice

#: What of a request says which hosts are meant.
NOBODY: dict[str, Any] = {'force_hosts': [], 'force_nodes': [], 'ignore_hosts': [], 'several': []}


def services(dice: Dice, cloud: dict[str, Any]) -> None:
    """Some clouds have a service that runs two or three of the hosts, as Ironic's does."""
    if dice.chance(0.8):
        return
    first, *others = dice.sample(cloud['hosts'], dice.choice((2, 2, 3)))
    renamed = {host['host']: first['host'] for host in others}
    for number, host in enumerate((first, *others)):
        host |= {
            'host': first['host'],
            'cell': first['cell'],
            'hypervisor_hostname': f'bm-{number}',
            'service': first['service'],
        }
    plain = cloud['options']['filter_scheduler']
    plain['isolated_hosts'] = _renamed(plain['isolated_hosts'], renamed)
    for aggregate in cloud['aggregates']:
        aggregate['hosts'] = _renamed(aggregate['hosts'], renamed)
    for group in cloud['groups']:
        group['hosts'] = sorted(_renamed(group['hosts'], renamed))


def _renamed(names: list[str], renamed: dict[str, str]) -> list[str]:
    return list(dict.fromkeys(renamed.get(name, name) for name in names))


def has_services(cloud: dict[str, Any]) -> bool:
    """Whether some host is one of several nodes."""
    return len({host['host'] for host in cloud['hosts']}) < len(cloud['hosts'])


def names_of(cloud: dict[str, Any]) -> list[str]:
    """What each host is called here: one of several nodes by its own name."""
    count = Counter(host['host'] for host in cloud['hosts'])
    return [
        host['hypervisor_hostname'] if count[host['host']] > 1 else host['host']
        for host in cloud['hosts']
    ]


def options(dice: Dice, cloud: dict[str, Any]) -> None:
    """Some operators keep images apart by some of the keys only."""
    if dice.chance(0.3):
        cloud['options']['filter_scheduler'] |= {
            'aggregate_image_properties_isolation_namespace': dice.choice(('os', 'hw', 'img')),
            'aggregate_image_properties_isolation_separator': dice.choice(('_', '_', '.')),
        }


def add(dice: Dice, cloud: dict[str, Any], wish: dict[str, Any]) -> None:
    """Make ``wish`` name hosts, or ask for several instances."""
    wish |= {name: list(value) for name, value in NOBODY.items()}
    kind = dice.random()
    if kind < 0.15:
        wish['force_hosts'] = _hosts(dice, cloud)
    if 0.1 < kind < 0.2:
        wish['force_nodes'] = _nodes(dice, cloud)
    if dice.chance(0.15):
        wish['ignore_hosts'] = _hosts(dice, cloud)
    if dice.chance(0.1):
        host = dice.choice(cloud['hosts'])
        wish['destination'] = {
            'cell': None,
            'allow_cross_cell_move': True,
            'host': host['host'],
            'node': dice.choice((None, host['hypervisor_hostname'])),
        }
    inside = 'numa' in wish['theme'] or 'devices' in wish['theme']
    if not inside and kind > 0.75:
        wish['several'] = [dice.a_uuid() for _ in range(dice.choice((1, 2, 3)))]


def _hosts(dice: Dice, cloud: dict[str, Any]) -> list[str]:
    names = [host['host'] for host in cloud['hosts']]
    chosen = dice.sample(names, dice.choice((1, 1, 2)))
    return [dice.choice((name, name, name.upper(), name[:-1])) for name in chosen]


def _nodes(dice: Dice, cloud: dict[str, Any]) -> list[str]:
    names = [host['hypervisor_hostname'] for host in cloud['hosts']]
    chosen = dice.sample(names, dice.choice((1, 2, 2)))
    return [dice.choice((name, name, name.upper())) for name in chosen]
