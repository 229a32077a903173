# SPDX-License-Identifier: Apache-2.0
"""The reply to COMMIT is lost: the transaction is there, and nobody knows.

kill -9 hardly ever hits this moment, so it is made: the connection breaks
right after the server has committed, or right before.
"""

import functools

import psycopg
import pytest

from gantt import exceptions
from gantt.core.resources.group_rule import placements_since_first
from gantt.db.claims.commit_postgresql import PessimisticCommitter
from gantt.db.engine import retry
from tests.builders import CLEAN, a_draft, a_host, claimed, commit, list_providers, uuid_of
from tests.db.conftest import KINDS, contents


class Losing:
    """Loses answers to COMMIT, of the numbers given; breaks the connection too."""

    def __init__(self, store, lose, before=False):
        self.lose = set(lose)
        self.before = before
        self.count = 0
        self.real = type(store.database.writes).commit
        for database in {store.database.writes, store.database.commits}:
            database.commit = functools.partial(self.commit, database)
        if before and isinstance(store.requests.committer, PessimisticCommitter):
            # Its COMMIT goes out with the writes, before the database's turn.
            store.requests.committer.send_commit = self.send

    def commit(self, database, transaction):
        self.count += 1
        lost = self.count in self.lose
        if not (lost and self.before):
            self.real(database, transaction)
        if lost:
            transaction.connection.invalidate()
            raise retry.CommitOutcomeUnknown('connection reset by peer')

    def send(self, raw):
        if self.count + 1 in self.lose:
            self.count += 1
            raw.pgconn.finish()
            raise psycopg.OperationalError('connection reset by peer')
        raw.commit()


@pytest.fixture
def host(store):
    return a_host().on(store)


@pytest.mark.parametrize('lost', [{1}, {1, 3}, {1, 2, 3}])
def test_a_batch_is_made_once_and_answered_as_made(store, host, lost):
    other = a_host('cmp-2').on(store)
    first = a_draft().taking(host, vcpu=6)
    Losing(store, lost)
    result = commit(store, first, a_draft().taking(host, vcpu=3).taking(other, vcpu=3))
    assert [(f.outcome, f.accepted) for f in result.outcomes] == [('placed', [0]), ('partial', [1])]
    assert {row.name: row.used for row in result.hosts} == {
        'cmp-1': {'VCPU': 6},
        'cmp-2': {'VCPU': 3},
    }
    assert len(store.claims.list_claims()) == 2
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('before', [False, True])
@pytest.mark.parametrize('lost', [{1}, {1, 3}])
def test_a_provider_is_made_and_deleted_once(store, lost, before):
    pool = store.providers.create_provider('pool').uuid
    Losing(store, lost, before)
    provider = store.providers.create_provider('below', uuid=uuid_of('below'), parent=pool)
    assert list_providers(store, name='below') == [provider]
    with pytest.raises(exceptions.InvalidMessage, match=r'provider.uuid: '):
        store.providers.create_provider('below', uuid=provider.uuid)
    Losing(store, lost, before)
    store.providers.delete_provider(provider.uuid)
    with pytest.raises(exceptions.NotFound):
        store.providers.delete_provider(provider.uuid)
    assert [provider.uuid for provider in list_providers(store)] == [pool]


def test_a_batch_that_was_not_committed_is_made_then(store, host):
    Losing(store, {1}, before=True)
    assert commit(store, a_draft().taking(host)).outcomes[0].outcome == 'placed'
    assert len(store.claims.list_claims()) == 1


def test_a_group_is_stepped_once(store, host):
    group = uuid_of('group')
    Losing(store, {1})
    result = commit(store, a_draft().planned_at(0, group).taking(host))
    assert result.outcomes[0].outcome == 'placed'
    assert result.groups == {group: store.groups.load_group(group).generation}
    assert placements_since_first(result.groups[group]) == 1


def test_a_continued_request_is_continued_once(store, host):
    begun = a_draft().unfinished().taking(host)
    assert commit(store, begun).outcomes[0].outcome == 'partial'
    Losing(store, {1})
    result = commit(store, begun.having(completes=True).continuing(1).taking(host))
    assert result.outcomes[0].outcome == 'placed'
    assert len(store.claims.list_claims(request_id=begun.id)) == 2
    assert store.claims.audit() == CLEAN


def test_a_take_over_is_done_once(store, host):
    begun = a_draft().unfinished().within(-1).taking(host)
    commit(store, begun)
    Losing(store, {1})
    taken = a_draft(begun.id).by('worker-2').taking_over(1).taking(host)
    assert commit(store, taken).outcomes[0].outcome == 'placed'
    states = sorted(claim.state for claim in store.claims.list_claims(request_id=begun.id))
    assert states == ['released', 'reserved']
    assert store.claims.audit() == CLEAN


def test_a_batch_that_dropped_everything_is_dropped_again(store, host):
    Losing(store, {1})
    assert commit(store, a_draft().taking(host, vcpu=9)).outcomes[0].outcome == 'dropped'
    assert store.claims.audit() == CLEAN


def test_words_of_a_host_are_answered_alike(store, host):
    claims = claimed(store, a_draft().taking(host).taking(host))
    Losing(store, {1})
    assert [f.outcome for f in host.confirm(*claims)] == ['ok', 'ok']
    Losing(store, {1})
    again = host.register('nonce-2')
    Losing(store, {1})
    assert host.register('nonce-2') == again


def test_a_report_counts_once(store, host):
    claim = claimed(store, a_draft().taking(host))[0]
    host.confirm(claim)
    Losing(store, {1})
    host.report()
    assert store.claims.load_claim(claim.id).state == 'released'
    assert host.row.used == {}
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('kind', KINDS)
def test_answers_that_keep_being_lost_end_as_unavailable(kind, open_store, quick):
    store = open_store(kind, policy=quick)
    host = a_host().on(store)
    before = contents(store)
    Losing(store, range(1, 100), before=True)
    with pytest.raises(exceptions.DatabaseUnavailable, match='connection reset'):
        commit(store, a_draft().taking(host))
    assert contents(store) == before
