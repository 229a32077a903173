# SPDX-License-Identifier: Apache-2.0
"""Usage by project: what its live claims take, and nothing of others."""

import msgspec
import pytest
import sqlalchemy as sa

from tests.builders import a_draft, a_guest, claimed, new_uuid
from tests.conftest import READERS

#: What is read has its twin in memory in SQLite.
KINDS = READERS


def _claim(store, host, project, **short):
    """A claim of a project."""
    draft = a_draft().taking(host, **short)
    [drafted] = draft.fields['claims']
    whose = msgspec.structs.replace(drafted.claim, project_id=project)
    return claimed(store, draft.having(claims=[msgspec.structs.replace(drafted, claim=whose)]))[0]


@pytest.fixture
def three(store, host):
    """Two claims of red, one of them confirmed, and one of blue."""
    first, second = (_claim(store, host, 'red', vcpu=2, ram=512) for _ in range(2))
    third = _claim(store, host, 'blue', vcpu=1, ram=256)
    host.confirm(first)
    return first, second, third


def _lines(usages):
    return [(u.project_id, u.claims, u.claims_in_flight, u.consumers, u.amounts) for u in usages]


RED = ('red', 2, 1, 2, {'VCPU': 4, 'MEMORY_MB': 1024})
BLUE = ('blue', 1, 1, 1, {'VCPU': 1, 'MEMORY_MB': 256})


def test_live_claims_are_added_up_by_project(store, three):
    assert _lines(store.quotas.usages(10)) == [BLUE, RED]


def test_one_project_is_asked_for_alone_and_others_page_by_page(store, three):
    assert _lines(store.quotas.usages(10, project='red')) == [RED]
    assert store.quotas.usages(10, project='green') == []
    assert _lines(store.quotas.usages(1)) == [BLUE]
    assert _lines(store.quotas.usages(1, 'blue')) == [RED]
    assert store.quotas.usages(1, 'red') == []


def test_the_usage_of_one_project_is_found_by_its_claims(make_store):
    """Whose members ask often read none of the claims of others."""
    store = make_store('sqlite')
    plans = []

    def note(_conn, cursor, statement, parameters, *_rest):
        if 'count(distinct' in statement.lower():
            rows = cursor.connection.execute(f'EXPLAIN QUERY PLAN {statement}', parameters)
            plans.append(' '.join(row[-1] for row in rows))

    sa.event.listen(store.database.engine, 'before_cursor_execute', note)
    assert store.quotas.usages(1, project='red') == []
    assert plans[0].count('ix_claims_project_id') == 2 and 'SCAN claims ' not in plans[0]


def test_a_claim_that_has_ended_takes_nothing(store, host, three):
    first, second, third = three
    host.release(first)
    store.claims.force_release(third.id, 'gone')
    assert _lines(store.quotas.usages(10)) == [('red', 1, 1, 1, {'VCPU': 2, 'MEMORY_MB': 512})]


def test_classes_without_a_column_count_as_well(store, host):
    store.vocabulary.declare_class('CUSTOM_LICENSE')
    host.report([a_guest(new_uuid(), vcpu=1, CUSTOM_LICENSE=number) for number in (1, 2)])
    # Whose they are nobody has said.
    assert _lines(store.quotas.usages(10)) == [('', 2, 0, 2, {'VCPU': 2, 'CUSTOM_LICENSE': 3})]
