# SPDX-License-Identifier: Apache-2.0
"""What a zone of another owner hears of requests, and how long it may be made to keep something."""

import json
import tracemalloc
import uuid

import msgspec
import sqlalchemy as sa

from gantt.core.messages.request import Destination, Flavor, GroupRef, Image, Policy
from gantt.core.records.decision import Outcome
from gantt.db.schema import models
from gantt.zones.service.offers.dedup import EvaluationDedup
from tests.world import a_request
from tests.zones.test_protocol import allocate, call, evaluate, tokens_of
from tests.zones.test_protocol import east as east
from tests.zones.test_receipts import lying as lying

OURS = (
    'our-project',
    'our-user',
    'our-cmp-7',
    'payroll',
    'req-of-nova',
    'm1.of-ours',
    'of-billing',
)


def a_telling_request(**spec):
    """One that says much of who sends it."""
    request = a_request(
        vcpu=1,
        project_id='our-project',
        user_id='our-user',
        ignore_hosts=['our-cmp-7'],
        hints={'heat_stack_name': ['payroll'], 'location': ['room-1.site-1']},
        flavor=Flavor(name='m1.of-ours', extra_specs={'billing:code': 'of-billing', 'gpu': '1'}),
        image=Image(uuid='payroll', properties={'payroll': 'x', 'hw_architecture': 'x86_64'}),
        group=GroupRef(
            uuid=str(uuid.uuid4()), policy=Policy.SOFT_ANTI_AFFINITY, hosts=['our-cmp-7']
        ),
        **spec,
    )
    return msgspec.structs.replace(request, origin='req-of-nova')


def test_a_zone_of_another_owner_hears_what_it_needs_to_place_a_guest(lying):
    top, liar = lying
    liar.offers = ['some']
    request = a_telling_request()
    top.select(request)
    assert {('tokens' in message) for message in liar.sent} == {False, True}, 'asked, and sent'
    for body in liar.sent:
        document = json.dumps(body)
        assert not [text for text in OURS if text in document]
        spec = body['request']['spec']
        assert spec['hints'] == {'location': ['room-1.site-1']}
        assert spec['flavor']['extra_specs'] == {'gpu': '1'}
        assert spec['image']['properties'] == {'hw_architecture': 'x86_64'}
        assert spec['group']['uuid'] == request.spec.group.uuid
        assert body['request']['consumers'] == request.consumers
    child = msgspec.structs.replace(top.store.zones.child_zones()[0], trusted=True)
    assert child.uuid == liar.liar.uuid
    top.store.zones.save_child_zone(child)
    top.zones.directory.refresh()
    liar.sent.clear()
    top.select(a_telling_request())
    assert [text for text in OURS if text in json.dumps(liar.sent[0])] == list(OURS)


def test_a_request_that_names_hosts_is_for_no_zone_of_another_owner(lying):
    top, liar = lying
    for spec in ({'force_hosts': ['our-cmp-7']}, {'destination': Destination(host='our-cmp-7')}):
        top.select(a_request(vcpu=1, **spec))
    assert liar.sent == []


def test_what_is_never_used_is_held_for_a_day_at_most(east):
    request = a_request(vcpu=1)
    key, _ = allocate(east, request, tokens_of(evaluate(east, request)))
    with east.store.database.engine.begin() as connection:
        day_ago = models.claims.c.created_at - 86_390.0
        connection.execute(sa.update(models.claims).values(created_at=day_ago))
    for _ in range(3):
        lease = call(east, 'PUT', f'/allocations/{key}/lease', {'seconds': 60})
        assert lease.status_code == 200
    (claim,) = east.store.claims.list_claims(state='reserved', limit=5)
    before = claim.lease_until
    assert before <= claim.created_at + 86_400.0 + 60.0
    assert call(east, 'PUT', f'/allocations/{key}/lease', {'seconds': 60}).is_success
    (claim,) = east.store.claims.list_claims(state='reserved', limit=5)
    assert claim.lease_until == before
    assert east.select(a_request(vcpu=1)).outcome is Outcome.PLACED


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now


def test_large_requests_are_not_kept_beyond_their_time():
    clock = Clock()
    ways, names = EvaluationDedup(clock), [f'host-{n}' * 8 for n in range(1000)]

    def ask_once():
        clock.now += 0.05
        large = a_request(ignore_hosts=[f'{name}-{clock.now}' for name in names])
        ways.evaluate_once(large, lambda: 1, bool, lambda answer: 0)

    ask_once()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(400):
            ask_once()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 1 << 20
