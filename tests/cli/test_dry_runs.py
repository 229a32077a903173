# SPDX-License-Identifier: Apache-2.0
"""``--dry-run`` of the commands that write to Placement's interface.

The plain reference is the command itself: right after its dry run, which has changed nothing, it is
run, and ends as the dry run did, with the same error where there is one.
"""

import contextlib
import functools
import json
import random
import re
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from gantt.db.schema import models
from tests.builders import uuid_of
from tests.cli.conftest import Gantt, Run
from tests.http.site import Site

POOL, BELOW, VM, AGGREGATE = (uuid_of(name) for name in ('pool', 'below', 'vm', 'aggregate'))
_OWNER = ('--project', 'p', '--user', 'u')
#: Of the random commands.
PROVIDERS = ('one', 'two', 'three', 'cmp-1', 'cmp-2')
CLASSES = ('CUSTOM_A', 'CUSTOM_B', 'VCPU', 'MEMORY_MB', 'CUSTOM_NONE')
TRAITS = ('CUSTOM_T', 'HW_CPU_X86_AVX2', 'CUSTOM_U')
_REQUEST_ID = re.compile('req-[-0-9a-f]+')
#: Tables of what a command changes, beside counters of writers.
_TABLES = (
    *(models.providers, models.inventories, models.provider_traits, models.provider_aggregates),
    *(models.resource_classes, models.traits, models.claims, models.allocations),
)


def _rows(site: Site) -> list[list[tuple]]:
    with site.world.store.database.engine.connect() as connection:
        return [
            sorted((tuple(row) for row in connection.execute(sa.select(table))), key=repr)
            for table in _TABLES
        ]


@contextlib.contextmanager
def _nothing_committed(site: Site) -> Iterator[None]:
    """Check that no other connection changes the database."""
    with site.world.store.database.engine.connect() as connection:
        connection.info['gantt_reads'] = True
        before = connection.exec_driver_sql('PRAGMA data_version').scalar_one()
        connection.rollback()
        yield
        assert connection.exec_driver_sql('PRAGMA data_version').scalar_one() == before


def _error(run: Run) -> str:
    """Return the error without the parts done before it, and with one id for all requests."""
    lines = [line for line in run.err.splitlines() if not line.startswith('  done before: ')]
    return _REQUEST_ID.sub('req-ID', '\n'.join(lines))


@pytest.fixture
def both(gantt: Gantt, site: Site) -> Gantt:
    """``both('class', 'create', ...)``: the dry run, then the command; what the first was."""

    def run(*words: str) -> Run:
        before = _rows(site)
        with _nothing_committed(site):
            tried = gantt(*words, '--dry-run')
        assert _rows(site) == before
        run_for_real = gantt(*words)
        assert (tried.code, _error(tried)) == (run_for_real.code, _error(run_for_real)), words
        changed = _rows(site) != before
        if not tried.code:
            assert ('nothing would change' in tried.out) is not changed, (tried.out, words)
        return tried

    return run


def test_a_day_of_a_pool_is_tried_before_it_is_done(both: Gantt) -> None:
    for words, effect in (
        (('class', 'create', 'CUSTOM_LICENCE'), 'resource class CUSTOM_LICENCE would be there'),
        (
            ('class', 'create', 'CUSTOM_LICENCE'),
            'resource class CUSTOM_LICENCE would be there: nothing would change',
        ),
        (('class', 'create', 'CUSTOM_IOPS'), 'resource class CUSTOM_IOPS would be there'),
        (('trait', 'create', 'CUSTOM_SITE'), 'trait CUSTOM_SITE would be there'),
        (
            (
                *('provider', 'create', 'pool', '--uuid', POOL, '--trait', 'CUSTOM_SITE'),
                *('--inventory', 'CUSTOM_LICENCE=20,reserved=2', '--aggregate', AGGREGATE),
            ),
            f'provider pool would be created: {POOL}: + CUSTOM_LICENCE=20,reserved=2; '
            f'+ trait CUSTOM_SITE; + aggregate {AGGREGATE}',
        ),
        (
            ('provider', 'create', 'below', '--uuid', BELOW, '--parent', 'pool'),
            f'provider below would be created: {BELOW}',
        ),
        (
            (
                *('provider', 'set', 'pool', '--name', 'disks', '--no-trait', 'CUSTOM_SITE'),
                *('--inventory', 'CUSTOM_LICENCE=30', '--inventory', 'CUSTOM_IOPS=7,step_size=7'),
            ),
            'provider disks would be changed: ~ name=disks (was pool); '
            '+ CUSTOM_IOPS=7,step_size=7; ~ CUSTOM_LICENCE=30,reserved=2 (was 20,reserved=2); '
            '- trait CUSTOM_SITE',
        ),
        (
            (
                *('allocation', 'set', VM, 'disks:CUSTOM_LICENCE=3', '--project', 'p'),
                *('--user', 'u', '--type', 'LICENCE'),
            ),
            f'consumer {VM} would have 1 allocations: + {POOL}:CUSTOM_LICENCE=3',
        ),
        (
            ('allocation', 'set', VM, 'disks:CUSTOM_LICENCE=5', 'disks:CUSTOM_IOPS=7'),
            f'consumer {VM} would have 2 allocations: + {POOL}:CUSTOM_IOPS=7; '
            f'~ {POOL}:CUSTOM_LICENCE=5 (was 3)',
        ),
        (
            ('allocation', 'delete', VM),
            f'consumer {VM} would have nothing: - {POOL}:CUSTOM_IOPS=7; - {POOL}:CUSTOM_LICENCE=5',
        ),
        (
            ('provider', 'set', 'below', '--no-parent'),
            f'provider below would be changed: ~ parent=none (was {POOL})',
        ),
        (
            ('provider', 'set', 'disks', '--no-inventory', 'CUSTOM_LICENCE'),
            'provider disks would be changed: - CUSTOM_LICENCE=30,reserved=2',
        ),
        (('provider', 'delete', 'disks'), 'provider disks would be deleted'),
        (('class', 'delete', 'CUSTOM_LICENCE'), 'resource class CUSTOM_LICENCE would be deleted'),
        (('trait', 'delete', 'CUSTOM_SITE'), 'trait CUSTOM_SITE would be deleted'),
    ):
        assert both(*words).out == f'dry run: {effect}\n'


def test_what_would_be_refused_is_refused_in_the_same_words(both: Gantt, gantt: Gantt) -> None:
    for name in ('CUSTOM_A', 'CUSTOM_B'):
        gantt('class', 'create', name)
    gantt('trait', 'create', 'CUSTOM_T')
    content = ('--inventory', 'CUSTOM_A=4,reserved=1,max_unit=2', '--trait', 'CUSTOM_T')
    gantt('provider', 'create', 'pool', '--uuid', POOL, *content)
    gantt('provider', 'create', 'below', '--uuid', BELOW, '--parent', 'pool')
    owner = (*_OWNER, '--type', 'LICENCE')
    gantt('allocation', 'set', uuid_of('other'), 'pool:CUSTOM_A=2', *owner)
    for words in (
        ('class', 'delete', 'VCPU'),
        ('class', 'delete', 'CUSTOM_NONE'),
        ('class', 'delete', 'CUSTOM_A'),
        ('trait', 'create', 'OWN'),
        ('trait', 'delete', 'HW_CPU_X86_AVX2'),
        ('trait', 'delete', 'CUSTOM_NONE'),
        ('trait', 'delete', 'CUSTOM_T'),
        ('provider', 'create', 'pool'),
        ('provider', 'create', 'new', '--uuid', POOL),
        ('provider', 'create', '', '--uuid', AGGREGATE),
        ('provider', 'create', 'new', '--parent', 'nobody'),
        ('provider', 'set', 'pool', '--name', 'below'),
        ('provider', 'set', 'pool', '--parent', 'below'),
        ('provider', 'set', 'cmp-1', '--parent', 'pool'),
        ('provider', 'set', 'cmp-1', '--name', 'new'),
        ('provider', 'set', 'cmp-1', '--name', 'cmp-2'),
        ('provider', 'set', 'cmp-1', '--inventory', 'VCPU=64'),
        ('provider', 'set', 'cmp-1', '--trait', 'CUSTOM_T'),
        ('provider', 'set', 'cmp-1', '--aggregate', AGGREGATE),
        ('provider', 'set', 'pool', '--inventory', 'CUSTOM_NONE=1'),
        ('provider', 'set', 'pool', '--inventory', 'CUSTOM_B=1,reserved=2'),
        ('provider', 'set', 'pool', '--no-inventory', 'CUSTOM_A'),
        ('provider', 'set', 'pool', '--no-inventory', 'CUSTOM_B'),
        ('provider', 'set', 'pool', '--trait', 'CUSTOM_NONE'),
        ('provider', 'set', 'nobody', '--trait', 'CUSTOM_T'),
        ('provider', 'delete', 'pool'),
        ('provider', 'delete', 'cmp-1'),
        ('allocation', 'set', VM, 'pool:CUSTOM_A=1'),
        ('allocation', 'set', VM, 'pool:CUSTOM_B=1', *owner),
        ('allocation', 'set', VM, 'pool:CUSTOM_A=1', 'below:CUSTOM_A=1', *owner),
        ('allocation', 'set', VM, 'pool:CUSTOM_A=1', 'pool:CUSTOM_NONE=1', *owner),
        ('allocation', 'set', VM, 'pool:CUSTOM_A=3', *owner),
        ('allocation', 'set', VM, 'pool:CUSTOM_A=2', *owner),
        ('allocation', 'set', VM, 'pool:CUSTOM_A=1', *_OWNER, '--type', 'vm'),
        ('allocation', 'delete', VM),
        ('class', 'create', 'OWN'),
        ('provider', 'create', 'x' * 201, '--uuid', AGGREGATE),
        ('provider', 'set', 'pool', '--inventory', f'VCPU={2**31}'),
        ('provider', 'set', 'pool', '--inventory', 'VCPU=0'),
        ('provider', 'set', 'pool', '--inventory', 'CUSTOM_B=1', '--trait', 'CUSTOM_NONE'),
        ('provider', 'create', 'new', '--inventory', 'CUSTOM_B=1', '--trait', 'CUSTOM_NONE'),
    ):
        assert both(*words).code == 1, words
    gantt('provider', 'delete', 'below')
    assert both('provider', 'delete', 'pool').code == 1  # it has allocations


def test_what_a_host_runs_unclaimed_counts(both: Gantt) -> None:
    """cmp-2 promises 16 VCPU, 8 in one piece; and it runs one that nobody claimed."""
    owner = (*_OWNER, '--type', 'INSTANCE')
    for amount, code in (('9', 1), ('8', 0), ('9', 1)):
        assert both('allocation', 'set', VM, f'cmp-2:VCPU={amount}', *owner).code == code
    assert both('allocation', 'set', AGGREGATE, 'cmp-2:VCPU=8', *owner).code == 1
    assert both('allocation', 'set', AGGREGATE, 'cmp-2:VCPU=7', *owner).code == 0


def test_a_number_that_is_none_is_wrong_usage(both: Gantt, gantt: Gantt) -> None:
    gantt('provider', 'create', 'pool')
    wrong = ('provider', 'set', 'pool', '--inventory', 'VCPU=1,allocation_ratio=nan')
    assert both(*wrong).code == 64


def test_programs_read_that_it_was_a_dry_run(gantt: Gantt) -> None:
    tried = json.loads(gantt('trait', 'create', 'CUSTOM_T', '--dry-run', '-f', 'json').out)
    assert tried == {'dry_run': True, 'message': 'trait CUSTOM_T would be there'}
    answer = json.loads(gantt('trait', 'create', 'CUSTOM_T', '-f', 'json').out)
    assert answer == {'dry_run': False, 'message': 'trait CUSTOM_T is there'}
    refused = gantt('class', 'delete', 'VCPU', '--dry-run', '-f', 'json')
    assert json.loads(refused.out)['error']['status'] == 400


def _words(dice: random.Random) -> list[str]:
    """Any command of these, about few names."""
    choose = dice.choice
    provider, name, trait = (functools.partial(choose, of) for of in (PROVIDERS, CLASSES, TRAITS))
    vm, aggregate = uuid_of(f'vm {choose("ab")}'), uuid_of(f'aggregate {choose("ab")}')
    numbers = ('', '', ',reserved=7', ',allocation_ratio=0.5', ',step_size=3', ',max_unit=4')

    def some(words: list[str], odds: float = 0.4) -> list[str]:
        return words if dice.random() < odds else []

    content = [
        *some(['--inventory', f'{name()}={choose("159")}{choose(numbers)}'], 0.7),
        *some(['--trait', trait()]),
        *some(['--aggregate', aggregate]),
    ]
    below = some(['--parent', provider()])
    shares = {f'{provider()}:{name()}': choose('123459') for _ in range(dice.randint(1, 2))}
    return choose(
        [
            [choose(('class', 'trait')), choose(('create', 'delete')), choose((*CLASSES, *TRAITS))],
            ['provider', 'create', provider(), '--uuid', uuid_of(provider()), *below, *content],
            *[
                ['provider', 'set', provider(), *below, *content, *some(['--name', provider()])],
                ['provider', 'set', provider(), *content, '--no-inventory', name()],
                ['provider', 'set', provider(), *some(['--no-parent']), '--no-trait', trait()],
            ],
            ['provider', 'delete', provider()],
            *[['allocation', 'set', vm, *map('='.join, shares.items()), *_OWNER, '--type', 'VM']]
            * 3,
            ['allocation', 'delete', vm],
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(3))
def test_any_command_ends_as_its_dry_run(site: Site, gantt: Gantt, seed: int) -> None:
    for name in CLASSES[:2]:
        site.world.store.vocabulary.create_class(name)
    dice = random.Random(seed)
    done_at_all = 0
    for _ in range(60):
        words, before = _words(dice), _rows(site)
        with _nothing_committed(site):
            tried = gantt(*words, '--dry-run')
        assert _rows(site) == before
        run_for_real = gantt(*words)
        assert (tried.code, _error(tried)) == (run_for_real.code, _error(run_for_real)), words
        if not run_for_real.code:
            done_at_all += 1
            assert ('nothing would change' in tried.out) is (_rows(site) == before), words
    assert done_at_all > 5
