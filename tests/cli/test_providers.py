# SPDX-License-Identifier: Apache-2.0
"""``gantt provider``, ``class``, ``trait`` and ``allocation``."""

import json

import pytest

from tests.builders import CLEAN, uuid_of
from tests.cli.conftest import Gantt
from tests.contract.damage import SqlDamage
from tests.http.site import Site, fixed
from tests.nested import below
from tests.shared_pools import a_shared_pool

POOL, BELOW, VM, AGGREGATE = (uuid_of(name) for name in ('pool', 'below', 'vm', 'aggregate'))
_TREE = ('pool', 'part', 'piece')


def shown(gantt: Gantt, name: str) -> dict:
    return json.loads(gantt('provider', 'show', name, '-f', 'json').out)


def test_a_day_of_a_pool(gantt: Gantt) -> None:
    assert gantt('class', 'create', 'CUSTOM_LICENCE').out == (
        'resource class CUSTOM_LICENCE is there\n'
    )
    assert gantt('trait', 'create', 'CUSTOM_SITE').out == 'trait CUSTOM_SITE is there\n'
    run = gantt(
        *('provider', 'create', 'pool', '--uuid', POOL, '--trait', 'CUSTOM_SITE'),
        *('--inventory', 'CUSTOM_LICENCE=20,reserved=2,max_unit=5', '--aggregate', AGGREGATE),
    )
    assert (run.code, run.out) == (0, f'provider pool is created: {POOL}\n')
    assert gantt('provider', 'create', 'below', '--uuid', BELOW, '--parent', 'pool').code == 0
    provider = shown(gantt, 'pool')
    assert provider['inventories']['CUSTOM_LICENCE'] == {
        **{'total': 20, 'reserved': 2, 'min_unit': 1, 'max_unit': 5, 'step_size': 1},
        'allocation_ratio': 1.0,
    }
    assert (provider['traits'], provider['aggregates']) == (['CUSTOM_SITE'], [AGGREGATE])
    allocated = gantt(
        *('allocation', 'set', VM, 'pool:CUSTOM_LICENCE=3', '--project', 'red', '--user', 'ann'),
        *('--type', 'LICENCE'),
    )
    assert allocated.out == f'consumer {VM} has 1 allocations\n'
    assert gantt('allocation', 'set', VM, f'{POOL}:CUSTOM_LICENCE=4').code == 0
    text = gantt('allocation', 'show', VM).out
    assert text.startswith(f'consumer {VM}, type LICENCE, project red, user ann, generation 2\n')
    assert f'{POOL}  CUSTOM_LICENCE       4' in text
    listed = gantt('allocation', 'list', 'pool').out
    assert [line.split() for line in listed.splitlines()] == [
        ['CONSUMER', 'RESOURCES'],
        [VM, 'CUSTOM_LICENCE=4'],
    ]
    lines = gantt('provider', 'show', 'pool').out.splitlines()
    assert lines[0].startswith(f'provider    pool ({POOL}), generation ')
    assert lines[-1].split() == ['CUSTOM_LICENCE', '20', '2', '1', '1..5/1', '4']
    refused = gantt('provider', 'delete', 'pool')
    assert (refused.code, 'It has child resource providers' in refused.err) == (1, True)
    assert gantt('allocation', 'delete', VM).out == f'consumer {VM} has nothing\n'
    assert gantt('allocation', 'show', VM).out == f'consumer {VM} has nothing\n'
    for name in ('below', POOL):
        assert gantt('provider', 'delete', name).code == 0
    assert gantt('class', 'delete', 'CUSTOM_LICENCE').code == 0
    assert gantt('trait', 'delete', 'CUSTOM_SITE').code == 0
    assert gantt('trait', 'list', '--custom', '--filter', 'NAME=CUSTOM_SITE').out == (
        'there is no such trait\n'
    )


def test_what_is_not_named_stays(gantt: Gantt) -> None:
    gantt('class', 'create', 'CUSTOM_A')
    gantt('class', 'create', 'CUSTOM_B')
    gantt('trait', 'create', 'CUSTOM_T')
    gantt('provider', 'create', 'pool', '--inventory', 'CUSTOM_A=4', '--inventory', 'CUSTOM_B=1')
    changed = gantt(
        *('provider', 'set', 'pool', '--name', 'disks', '--inventory', 'CUSTOM_A=9,reserved=1'),
        *('--no-inventory', 'CUSTOM_B', '--trait', 'CUSTOM_T', '--trait', 'HW_CPU_X86_AVX2'),
    )
    assert (changed.code, changed.out) == (0, 'provider disks is changed\n')
    gantt('provider', 'set', 'disks', '--no-trait', 'CUSTOM_T', '--aggregate', AGGREGATE)
    provider = shown(gantt, 'disks')
    assert set(provider['inventories']) == {'CUSTOM_A'}
    assert provider['inventories']['CUSTOM_A']['total'] == 9
    assert (provider['traits'], provider['aggregates']) == (['HW_CPU_X86_AVX2'], [AGGREGATE])
    gantt('provider', 'create', 'part', '--parent', 'disks')
    assert shown(gantt, 'part')['parent_provider_uuid'] == provider['uuid']
    assert gantt('provider', 'set', 'part', '--no-parent').code == 0
    assert shown(gantt, 'part')['parent_provider_uuid'] is None


def test_a_broken_tree_is_mended_as_the_audit_says(gantt: Gantt, site: Site) -> None:
    """What is named is sent also where it is shown to be so."""
    store = site.world.store
    for name, *parent in (('pool',), ('part', '--parent', 'pool'), ('piece', '--parent', 'part')):
        gantt('provider', 'create', name, *parent)
    pool, part, piece = (
        store.providers.load_provider(shown(gantt, name)['uuid']) for name in _TREE
    )
    damage = SqlDamage(store)
    damage.write_provider(part, root_id=piece.id)
    assert gantt('provider', 'set', 'part', '--parent', 'pool').code == 0
    assert store.claims.audit() == CLEAN
    damage.forget(pool)
    assert shown(gantt, 'part')['parent_provider_uuid'] is None
    assert gantt('provider', 'set', 'part', '--no-parent').code == 0
    assert store.claims.audit() == CLEAN
    assert shown(gantt, 'piece')['root_provider_uuid'] == part.uuid


def test_lists(gantt: Gantt, site: Site) -> None:
    rows = json.loads(gantt('provider', 'list', '-f', 'json').out)
    assert sorted(row['name'] for row in rows) == [f'cmp-{i}' for i in range(1, 7)]
    table = gantt('provider', 'list', '--resource', 'VCPU=4', '--required', 'CUSTOM_FAST').out
    assert [line.split()[0] for line in table.splitlines()] == ['NAME', 'cmp-1', 'cmp-2']
    assert gantt('provider', 'list', '--in-tree', 'cmp-3').out.count('\n') == 2
    short = gantt('provider', 'list', '--limit', '2').out
    assert short.splitlines()[-1] == '2 shown, there are more: --limit N, or --all'
    classes = gantt('class', 'list', '-f', 'value', '--filter', 'NAME=VC*').out
    assert classes == 'VCPU\n'
    traits = gantt('trait', 'list', '--associated', '-f', 'value').out.split()
    assert traits == ['HW_CPU_X86_AVX2', 'CUSTOM_FAST']
    assert gantt('trait', 'list', '--prefix', 'HW_CPU_X86_AVX2', '-f', 'value').out
    # What schedulers have claimed is there, too.
    chosen = site.place(1).selections[0][0]
    listed = json.loads(gantt('allocation', 'list', chosen.host, '-f', 'json').out)
    assert [row['consumer'] for row in listed] == [fixed(1000)]
    assert listed[0]['resources'] == {'VCPU': 2, 'MEMORY_MB': 4096, 'DISK_GB': 20}


def test_what_is_below_hosts_and_shared_is_counted_once(gantt: Gantt, site: Site) -> None:
    store = site.world.store
    store.vocabulary.create_class('CUSTOM_LICENCE')
    store.declarations.save_aggregate('rack', {}, ['cmp-1', 'cmp-2'])
    (rack,) = store.feed.load_everything().aggregates
    a_shared_pool(store, 'licences', [rack.uuid], CUSTOM_LICENCE=20)
    for number in (1, 2, 6):  # the last host is silent
        host = shown(gantt, f'cmp-{number}')['uuid']
        below(store, f'gpu-{number}', host, VGPU=1000)
    site.world.turn()
    placed = site.place(1, VCPU=1, VGPU=300, CUSTOM_LICENCE=2).selections[0][0]
    gpu = placed.host.replace('cmp', 'gpu')
    site.world.turn()
    usage = {
        use['resource_class']: use for use in json.loads(gantt('status', '-f', 'json').out)['usage']
    }
    assert [usage['VGPU'][name] for name in ('cap', 'claimed', 'free')] == [2000, 300, 1700]
    assert [usage['CUSTOM_LICENCE'][name] for name in ('cap', 'claimed')] == [20, 2]
    assert usage['VCPU']['claimed'] == 1
    assert 'VGPU 2000 300 0 1700 15 %' in ' '.join(gantt('status').out.split())
    tree = gantt('provider', 'list', '--long', '--in-tree', placed.host).out.splitlines()
    assert [line.strip() for line in tree[2::2]] == [
        'DISK_GB 500/500G, MEMORY_MB 32/32G, VCPU 15/16 free',
        'VGPU 700/1000 free',
    ]
    pool = gantt('provider', 'list', '--long', '--name', 'licences').out
    assert pool.endswith('  CUSTOM_LICENCE 18/20 free\n')
    assert shown(gantt, gpu)['usages'] == {'VGPU': 300}


def test_what_is_refused_is_said_and_what_was_done_before(gantt: Gantt) -> None:
    half = gantt('provider', 'create', 'pool', '--inventory', 'CUSTOM_NONE=4')
    assert half.code == 1
    assert 'No such resource class CUSTOM_NONE' in half.err
    assert 'done before: provider pool is created' in half.err
    host = gantt('provider', 'set', 'cmp-1', '--trait', 'HW_CPU_X86_AVX2', '--trait', 'CUSTOM_FAST')
    assert (host.code, 'its reports say what it has' in host.err) == (1, True)
    for words, expected in (
        (('provider', 'show', 'nobody'), "there is no provider with the name 'nobody'"),
        (('provider', 'show', POOL), 'there is no provider with the uuid'),
        (('provider', 'set', 'pool', '--no-inventory', 'VCPU'), 'has no inventory of VCPU'),
        (('class', 'create', 'OWN'), 'OWN'),
        (('provider', 'create', 'pool'), 'gantt: Conflicting resource provider name: pool'),
        (('class', 'delete', 'VCPU'), 'Cannot delete standard resource class'),
        (('trait', 'delete', 'CUSTOM_NONE'), 'No such trait'),
        (('allocation', 'delete', VM), 'No allocations for consumer'),
        (('allocation', 'set', VM, 'pool:VCPU=1'), 'is new: expected --project'),
        (
            ('allocation', 'set', VM, 'pool:VCPU=1', '--project', 'p', '--user', 'u'),
            'expected --type',
        ),
    ):
        refused = gantt(*words)
        assert (refused.code, expected in refused.err) == (1, True), (words, refused.err)
        assert '\\n' not in refused.err, 'the sentence about the status is left out'


def test_wrong_usage(gantt: Gantt, capsys: pytest.CaptureFixture[str]) -> None:
    for words, expected in (
        (('provider', 'create', 'a', '--uuid', 'b'), 'expected a uuid'),
        (('provider', 'create', 'a', '--inventory', 'VCPU'), 'expected CLASS=TOTAL'),
        (('provider', 'create', 'a', '--inventory', 'VCPU=1,size=2'), 'expected CLASS=TOTAL'),
        (('provider', 'create', 'a', '--inventory', 'VCPU=many'), 'expected CLASS=TOTAL'),
        (('allocation', 'set', VM, 'VCPU=1'), 'expected PROVIDER:CLASS=AMOUNT'),
        (('allocation', 'set', VM, 'pool:VCPU=0'), 'whole number above 0'),
        (('allocation', 'show', 'web-1'), 'expected a uuid'),
    ):
        assert gantt(*words).code == 64, words
        assert expected in capsys.readouterr().err
    for words in (
        ('provider', 'set', 'cmp-1'),
        ('provider', 'set', 'cmp-1', '--no-parent', '--parent', 'cmp-2'),
    ):
        assert gantt(*words).code == 64, words
