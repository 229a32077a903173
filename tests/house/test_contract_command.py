# SPDX-License-Identifier: Apache-2.0
"""gantt-manage db contract, as an operator runs it, on a SQLite file of wide claims."""

import pytest

from gantt.db.stores.store import SqlStore
from tests.builders import CLEAN, a_draft, a_host, claimed
from tests.db.test_contract_step import older_seen
from tests.forms import contract_of, forms, set_form


@pytest.fixture
def store(synced):
    found = SqlStore.for_url(f'sqlite:///{synced}/gantt.db')
    set_form(found.engine, 'wide')
    yield found
    found.close()


def test_it_names_the_price_and_does_nothing_by_itself(store, program):
    claimed(store, a_draft().taking(a_host().on(store)))
    code, _, error = program('manage', 'db', 'contract')
    assert code == 1
    assert 'claims are in the wide form' in error
    assert 'the release before can not be put back' in error
    assert forms(store)['wide'] == 1


def test_it_moves_all_claims_and_says_so(store, program):
    host = a_host().on(store)
    for _ in range(3):
        claimed(store, a_draft().taking(host))
    code, out, error = program('manage', 'db', 'contract', '--yes')
    assert (code, error) == (0, ''), error
    assert out.startswith('3 claims moved') and 'all are narrow now' in out
    assert forms(store) == {'narrow': 3, 'wide': 0, 'allocations': 0, 'consumers': 0}
    assert store.audit() == CLEAN
    code, out, _ = program('manage', 'db', 'contract')
    assert (code, out) == (0, 'all claims are in the narrow form already\n')


def test_it_is_refused_beside_the_release_before(store, program):
    older_seen(store, 'ctl-1:1:old', 5.0)
    code, _, error = program('manage', 'db', 'contract', '--yes')
    assert code == 1
    assert 'ctl-1:1:old' in error


def test_the_check_says_when_it_is_due(store, program, site):
    with site.joinpath('gantt.conf').open('a') as config:
        config.write('[DEFAULT]\ntransport_url = kombu+memory:///\n')

    def check():
        _, out, _ = program('status', 'upgrade', 'check')
        return ' '.join(out.replace('|', ' ').split())

    assert '"gantt-manage db contract" is due' in check()
    older_seen(store, 'ctl-1:1:old', 5.0)
    assert 'as processes of the release before run' in check()
    older_seen(store, 'ctl-1:1:old', 500.0)
    host = a_host().on(store)
    claimed(store, a_draft().taking(host).taking(host))
    step = contract_of(store)
    step.mark()
    step.move(1)
    assert 'run "gantt-manage db contract --yes" again' in check()
