# SPDX-License-Identifier: Apache-2.0
"""Whose consumers are, and what no other claim may have beside one, by rows of claims alone."""

import pytest
import sqlalchemy as sa

from gantt.db.claims import one_trip
from gantt.db.claims.batch import CommitBatch
from gantt.db.schema import models
from tests.builders import CLEAN, a_draft, a_host, claimed, commit, new_uuid
from tests.db.conftest import KINDS
from tests.services import PATIENT


@pytest.mark.parametrize('kind', KINDS)
def test_a_consumer_stays_its_projects_while_a_claim_of_it_is_stored(kind, open_store):
    store = open_store(kind)
    host = a_host().with_room(vcpu=100).on(store)
    consumer = new_uuid()
    (first,) = claimed(store, a_draft(project_id='red').taking(host, consumer))
    store.claims.force_release(first.id, 'ended')
    theirs = a_draft(project_id='blue', only_project='blue').taking(host, consumer)
    assert commit(store, theirs).outcomes[0].outcome == 'rejected'
    for fields in ({}, {'only_project': 'red'}):
        (again,) = claimed(store, a_draft(project_id='red', **fields).taking(host, consumer))
        store.claims.force_release(again.id, 'ended')
    # Who may claim for anybody: what is stored says whose it is.
    (other,) = claimed(store, a_draft(project_id='blue').taking(host, consumer))
    assert other.project_id == 'red'
    assert store.quotas.owners_of([consumer]) == {consumer: 'red'}
    (mixed, _) = claimed(
        store, a_draft(project_id='blue').taking(host, consumer, purpose='migrate').taking(host)
    )
    assert mixed.project_id == 'red'
    assert store.quotas.quota_usage(['red', 'blue'], ['VCPU'])['red'].live_claims == 1
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('kind', KINDS)
def test_projects_of_any_length_are_counted(kind, open_store):
    store = open_store(kind)
    host = a_host().with_room(vcpu=100).on(store)
    long = '\U0001f300' * 1024
    twin = long[:100] + 'x' + long[101:]  # beyond what the index has
    for project in (long, long, twin):
        claimed(store, a_draft(project_id=project).taking(host))
    usage = store.quotas.quota_usage([long, twin], ['VCPU'])
    assert [usage[project].live_claims for project in (long, twin)] == [2, 1]
    assert len(store.claims.list_claims(project=long)) == 2


@pytest.mark.parametrize('kind', KINDS[1:])  # SQLite has one writer
@pytest.mark.parametrize('grouped', [False, True], ids=['plain', 'grouped'])
def test_what_was_inserted_and_confirmed_meanwhile_is_looked_at_again(
    kind, grouped, open_store, monkeypatch
):
    """A confirmed claim frees its unique key, so that only reading again finds it."""
    store = open_store(kind, timeouts=PATIENT)
    other = open_store(like=store, timeouts=PATIENT)
    host, other_host = a_host('here').on(store), a_host('there').on(other)
    consumer, begun, claims = new_uuid(), [], []

    def meanwhile():
        if not begun:
            begun.append(True)
            claims.extend(claimed(other, a_draft().taking(other_host, consumer)))
            other_host.confirm(claims[0])

    judge, execute = CommitBatch.check_consumers, getattr(store.requests.committer, 'execute', None)

    def judge_then(self, *rest):
        judge(self, *rest)
        meanwhile()

    def execute_after(raw, statement, parameters):
        if statement is one_trip.INSERT_CLAIMS:
            meanwhile()
        return execute(raw, statement, parameters)

    draft = a_draft().taking(host, consumer)
    if grouped:
        draft = a_draft().planned_at(0, new_uuid()).taking(host, consumer)
    if execute is not None and not grouped:
        monkeypatch.setattr(store.requests.committer, 'execute', execute_after)
    else:
        monkeypatch.setattr(CommitBatch, 'check_consumers', judge_then)
    outcome = commit(store, draft).outcomes[0]
    assert claims
    assert outcome.outcome == 'rejected'
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('kind', KINDS)
def test_what_is_reserved_alone_bars_by_the_table(kind, open_store):
    store = open_store(kind)
    host = a_host().with_room(vcpu=100).on(store)
    unique_key = sa.select(models.claims.c.unique_key)

    def unique_keys():
        with store.database.engine.connect() as connection:
            return set(connection.execute(unique_key).scalars())

    placed, moving = new_uuid(), new_uuid()
    first, _ = claimed(
        store, a_draft().taking(host, placed).taking(host, moving, purpose='migrate')
    )
    assert unique_keys() == {placed, f'{moving} move'}
    store.requests.extend_request(first.request_id, 60.0, 600.0)
    assert unique_keys() == {placed, f'{moving} move'}
    host.confirm(first)
    assert unique_keys() == {None, f'{moving} move'}
    store.requests.cancel_request(first.request_id, '')
    assert unique_keys() == {None}
    with store.database.engine.begin() as connection:
        connection.execute(models.claims.update().values(unique_key=models.claims.c.id))
    assert len(store.claims.audit()['leaked']) == 2
