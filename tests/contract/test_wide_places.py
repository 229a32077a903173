# SPDX-License-Identifier: Apache-2.0
"""Places of planned groups where claims are in the wide form, or on the way from it."""

import pytest

from gantt.db.claims.contract import ClaimsContract
from tests.builders import CLEAN, a_host, new_uuid
from tests.conftest import WIDE
from tests.plans import a_create, by, created, places, planned

KINDS = WIDE


def narrow(store):
    """Take the step after which claims are narrow."""
    contract = ClaimsContract(store)
    contract.mark()
    while contract.move():
        pass
    while contract.forget_consumers():
        pass


@pytest.mark.parametrize('when', ['wide', 'marked', 'moved'])
def test_whose_a_place_is_follows_it_in_every_form(store, host, when):
    found = planned(store, {'a': host, 'b': host, 'c': host}, project='p1', vcpu=2)
    group = found['a'].group
    drafts = {name: created(store, found[name]) for name in 'ab'}
    if when == 'marked':
        ClaimsContract(store).mark()
    elif when == 'moved':
        narrow(store)
    store.cancel_request(drafts['a'].id, 'not needed')
    back = places(store, group)['a']
    assert (back.project_id, back.user_id, back.consumer_type) == ('p1', None, 'INSTANCE')
    consumer = new_uuid()
    created(store, back, consumer)
    taken = places(store, group)['a']
    assert (taken.consumer, taken.project_id, taken.user_id) == (consumer, 'p2', 'u2')
    host.confirm(taken)
    other = a_host('cmp-2').on(store)
    moved = a_create(by(found['c'])).taking(other, taken.consumer)
    assert store.commit([moved.build()]).outcomes[0].outcome == 'barred'
    assert places(store, group)['c'].project_id == 'p1'
    assert store.planned_usage('p1').places == 1
    assert store.audit() == CLEAN
    if when == 'marked':
        narrow(store)
    store.release_plan(group, '')
    assert {name: one.project_id for name, one in places(store, group).items()} == {
        'a': 'p2',
        'b': 'p2',
    }
    assert store.audit() == CLEAN
