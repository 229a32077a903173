# SPDX-License-Identifier: Apache-2.0
"""A zone below is believed of claims as far as it was asked for them, and no further."""

import logging
import re
import uuid

import msgspec
import pytest
import sqlalchemy as sa

from gantt.core.messages.request import GroupRef, Policy
from gantt.core.records.decision import Outcome
from gantt.db.schema import migration, models
from tests.world import a_request
from tests.zones.other_side import Liar
from tests.zones.tree import until


class LyingZone:
    """Stands for a zone below that says of claims what it likes.

    :ivar claims: what it says of them
    :ivar sent: bodies of what it was asked, by path
    """

    def __init__(self, top, score_set):
        self.claims, self.sent, self.heard, self.offers = [], [], 0, []
        self._score_set = score_set
        self.liar = Liar(str(uuid.uuid4()), self._answer)
        record = msgspec.structs.replace(
            top.store.zones.child_zones()[0], uuid=self.liar.uuid, name='liar', url=self.liar.url
        )
        record = msgspec.structs.replace(record, trusted=False)
        top.store.zones.save_child_zone(record)
        top.zones.directory.refresh()

    def _answer(self, method, path, body):
        if path.startswith('/evaluations'):
            self.sent.append(body)
            offers = [{'token': 't', 'level': 0, 'tier': 1e15, 'score': 1.0, 'fits': 1}]
            offers = offers if self.offers else []
            outcome = 'placed' if offers else 'no_valid_host'
            return 200, {'outcome': outcome, 'offers': offers, 'score_set': self._score_set}
        if path.startswith('/changes'):
            self.heard += 1
            return 200, {'incarnation': 1, 'revision': 1.0, 'claims': self.claims}
        if method == 'PUT':
            self.sent.append(body)
            return 409, {'errors': [{'code': 'gantt.offer_gone', 'detail': ''}]}
        if method == 'GET' and path.startswith('/allocations'):
            return 200, {'key': path.split('/')[-1], 'state': 'placed', 'members': []}
        return 200, {'key': 'k', 'state': 'cancelled', 'revision': 'r', 'facts': 'f', 'fits': {}}

    def says(self, consumer, key='', **more):
        """One more claim, which lives."""
        claim = {'claim_id': str(uuid.uuid4()), 'key': key or str(uuid.uuid4()), **more}
        self.claims.append({**claim, 'consumer': consumer, 'state': 'confirmed'})

    def is_heard(self):
        """Wait until all that it has said was heard."""
        since = self.heard
        until(lambda: self.heard > since + 1)


@pytest.fixture
def lying(zone):
    top, west = zone('top'), zone('west').hosts(4, 64)
    top.above(west)
    lying_zone = LyingZone(top, west.around.score_set())
    with lying_zone.liar:
        yield top, lying_zone
        top.over_zones.follower.stop(10.0)


def test_a_zone_that_was_only_asked_takes_nobody_and_no_group(lying, caplog):
    top, liar = lying
    first, group = a_request(vcpu=1), str(uuid.uuid4())
    top.select(msgspec.structs.replace(first, dry_run=True))
    assert liar.sent[0]['request']['consumers'] == first.consumers
    with caplog.at_level(logging.ERROR):
        for _ in range(1000):
            liar.says(str(uuid.uuid4()))
        liar.says(first.consumers[0])
        liar.says(str(uuid.uuid4()), group=group)
        liar.is_heard()
    # It may be heard while it still speaks.
    counts = re.findall(r'zone=liar claims=(\d+)', caplog.text)
    assert sum(map(int, counts)) == 1002
    assert top.store.child_claims.find(child=liar.liar.uuid) == []
    assert top.select(first).outcome is Outcome.PLACED
    of_group = a_request(vcpu=1, group=GroupRef(uuid=group, policy=Policy.AFFINITY))
    assert top.select(of_group).outcome is Outcome.PLACED


def test_a_receipt_is_good_for_what_it_was_given_for(lying):
    top, liar = lying
    liar.offers = ['some']
    request = a_request(vcpu=1, project_id='blue')
    assert top.select(request).outcome is Outcome.PLACED, 'elsewhere, as it refused'
    [message] = [message for message in liar.sent if 'tokens' in message]
    key, receipt = message['request']['request_id'], message['receipt']
    assert 'blue' not in receipt
    other = a_request(vcpu=1)
    liar.says(other.consumers[0], key, receipt=receipt)
    liar.says(request.consumers[0], str(uuid.uuid4()), receipt=receipt)
    liar.says(request.consumers[0], key, receipt=receipt[:-4] + 'AAAA')
    for _ in range(5):  # one of them at most, however many it says
        liar.says(request.consumers[0], key, receipt=receipt)
    liar.offers = []
    liar.is_heard()
    assert len(top.store.child_claims.find(child=liar.liar.uuid)) <= 1
    assert top.select(other).outcome is Outcome.PLACED


def test_what_was_forgotten_comes_back_as_the_project_had_it(zone):
    top, east = zone('top'), zone('east').hosts(1, 8)
    top.above(east)
    group = GroupRef(uuid=str(uuid.uuid4()), policy=Policy.ANTI_AFFINITY)
    request = a_request(vcpu=2, project_id='blue', group=group)
    assert top.select(request).outcome is Outcome.PLACED
    [before] = top.store.child_claims.find()
    usage = top.store.quotas.quota_usage(['blue'], ['VCPU', 'MEMORY_MB'])
    for table in (models.child_claims, models.requests, models.delegated_consumers):
        with top.store.database.engine.begin() as connection:
            connection.execute(sa.delete(table))
    migration.bump_incarnation(top.store.database.engine)
    top.zones.directory.refresh()
    until(lambda: top.store.child_claims.find())
    [back] = top.store.child_claims.find()
    assert back.restored
    same = ('claim_id', 'key', 'project_id', 'group', 'purpose', 'resources', 'consumer')
    assert [getattr(back, name) for name in same] == [getattr(before, name) for name in same]
    assert top.store.quotas.quota_usage(['blue'], ['VCPU', 'MEMORY_MB']) == usage
    assert usage['blue'].amounts['VCPU'] == 2
