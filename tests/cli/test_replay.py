# SPDX-License-Identifier: Apache-2.0
"""``gantt replay`` and ``gantt what-if`` against a live server."""

import json

import pytest

from gantt.core.messages.resource_classes import Inventory
from tests.cli.conftest import Gantt
from tests.http.site import Site, fixed


def flush(site: Site) -> None:
    site.world.turn()
    site.world.scheduler.cache.log.flush(site.world.store.table_logs)
    site.insights.reload_soon()


def test_a_decision_is_replayed_the_same_and_otherwise(site: Site, gantt: Gantt) -> None:
    site.place(1, 2)
    flush(site)
    replayed = gantt('replay', fixed(1))
    assert replayed.code == 0, replayed.err
    assert 'the same, bit for bit' in replayed.out
    other = gantt('replay', fixed(1)[:8], '--set', 'ram_weight_multiplier=-1', '--shuffle')
    assert other.code == 0, other.err
    assert other.out.startswith('replayed with ram_weight_multiplier -1; shuffle_best True')
    whole = json.loads(gantt('replay', fixed(1), '--seed', '7', '-f', 'json').out)
    assert whole['otherwise'] == ['seed 7']
    wrong = gantt('replay', fixed(1), '--set', 'ram_weight=1')
    assert wrong.code == 1
    assert "expected an option of a filter or weigher that runs; got 'ram_weight'" in wrong.err
    assert gantt('replay', fixed(1), '--set', 'ram_weight').code == 64


def test_hosts_are_edited_on_the_command_line(site: Site, gantt: Gantt) -> None:
    shape = ('--resource', 'VCPU=30', '--resource', 'MEMORY_MB=1024')
    assert gantt('what-if', *shape).code == 2
    compared = gantt(
        'what-if',
        *shape,
        '--count',
        '2',
        '--remove-host',
        'cmp-1',
        '--add-host',
        'new,like=cmp-2,count=2,VCPU=32,trait=CUSTOM_X,zone=az9',
        '--change-host',
        'cmp-3,enabled=no',
    )
    assert compared.code == 0, compared.err
    assert 'without cmp-1' in compared.out
    assert 'cmp-3 disabled' in compared.out
    assert 'new-1' in compared.out
    assert all(len(line) <= 80 for line in compared.out.splitlines())


def test_pools_are_edited_on_the_command_line(site: Site, gantt: Gantt) -> None:
    for name in ('old', 'full'):
        disk = Inventory(total=100, reserved=90, max_unit=1000)
        site.world.store.providers.create_provider(name, inventories={'DISK_GB': disk})
    site.world.turn()
    site.insights.reload_soon()
    aggregate = fixed(9)
    words = (
        *('what-if', '--kind', 'pool', '--resource', 'DISK_GB=300', '--member-of', aggregate),
        *('--add-host', f'new,like=old,reserved.DISK_GB=0,aggregate={aggregate}'),
        *('--change-host', f'full,allocation_ratio.DISK_GB=40.5,aggregate={aggregate}'),
    )
    refused = gantt(*words, '--change-host', f'old,no-aggregate={aggregate}')
    assert (refused.code, '; got old' in refused.err) == (1, True), refused.err
    compared = gantt(*words)
    assert compared.code == 0, compared.err
    assert 'placed on full' in compared.out
    assert 'with new like old 0 GiB DISK_GB reserved, in aggregate' in compared.out
    assert 'full DISK_GB at a ratio of 40.5, in aggregate' in compared.out


@pytest.mark.parametrize(
    ('edit', 'expected'),
    [
        ('cmp-1,colour=red', "no key 'colour'"),
        ('cmp-1,enabled=maybe', 'expected yes or no'),
        ('cmp-1,VCPU=many', 'expected a whole number'),
        ('cmp-1,reserved.VCPU=0.5', "reserved.VCPU: expected a whole number, got '0.5'"),
        ('cmp-1,allocation_ratio.VCPU=1_0', 'allocation_ratio.VCPU: expected a number'),
        ('cmp-1,empty', 'expected NAME[,KEY=VALUE...]'),
    ],
    ids=range(6),
)
def test_a_wrong_edit_is_a_usage_error(gantt: Gantt, edit: str, expected: str) -> None:
    refused = gantt('what-if', '--resource', 'VCPU=1', '--change-host', edit)
    assert refused.code == 64
    assert expected in refused.err
