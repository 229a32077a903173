# SPDX-License-Identifier: Apache-2.0
"""Zones that are removed while a request is answered, or registered at once with another."""

import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from gantt import exceptions
from gantt.db.schema import models
from tests.builders import uuid_of
from tests.conftest import READERS
from tests.contract.test_threads import CALLERS, at_once
from tests.contract.test_zones import EAST, PARENT, a_request, below, finish, outcome_of
from tests.services import PATIENT

KINDS = READERS
ROUNDS = 10


@pytest.fixture
def store(request, make_store):
    return make_store(request.param, timeouts=PATIENT)


def removed(store):
    """Whether it is gone, not in use."""
    try:
        store.zones.remove_child_zone(EAST.uuid)
    except exceptions.InUse:
        return False
    return True


def agree(store, request, is_finished, is_removed):
    """Either the claim below is stored with its zone, or neither is there."""
    assert is_finished is not is_removed
    assert [child.uuid for child in store.zones.child_zones()] == (
        [EAST.uuid] if is_finished else []
    )
    assert len(store.child_claims.find(request.id)) == is_finished


def test_a_zone_is_not_removed_between_a_look_at_it_and_the_claim_there(store):
    store.zones.save_child_zone(EAST)
    request = a_request()
    assert outcome_of(store, request) == 'ours'
    claim = below(request)
    with ThreadPoolExecutor(2) as threads, store.database.engine.connect() as connection:
        # What is about to be stored waits for this row, after it has looked at the zone.
        with connection.begin() as begun:
            row = {
                'claim_id': claim.claim_id,
                'child': claim.child,
                'request_id': request.id,
                'request_key': claim.key,
                'consumer': claim.consumer,
                'purpose': claim.purpose.value,
                'state': 'released',
                'sealed_host': '',
                'created_at': 0.0,
                'updated_at': 0.0,
            }
            connection.execute(models.child_claims.insert(), row)
            finished = threads.submit(finish, store, request, claim)
            time.sleep(0.5)
            gone = threads.submit(removed, store)
            time.sleep(0.5)
            begun.rollback()
        agree(store, request, finished.result(60), gone.result(60))


def test_an_answer_and_the_removal_of_its_zone_at_once(store):
    for number in range(ROUNDS):
        store.zones.save_child_zone(EAST)
        request = a_request(consumers=[uuid_of(f'guest {number}')])
        assert outcome_of(store, request) == 'ours'
        claim = below(request)
        with ThreadPoolExecutor(2) as threads:
            finished = threads.submit(finish, store, request, claim)
            gone = threads.submit(removed, store)
            agree(store, request, finished.result(60), gone.result(60))
        if not store.zones.child_zones():
            continue
        note = models.child_claims.delete()
        with store.database.engine.begin() as connection:
            connection.execute(note)
        assert removed(store)


def registered(save):
    """'it is', or why it is not; whatever else comes is a defect."""
    try:
        save()
    except exceptions.Refused as e:
        return e.message
    return 'it is'


def test_of_zones_below_that_come_at_once_under_one_name_one_is_registered(store):
    zones = [msgspec.structs.replace(EAST, uuid=uuid_of(f'east {n}')) for n in range(CALLERS)]
    answers = at_once(lambda n: registered(lambda: store.zones.save_child_zone(zones[n])))
    [child] = store.zones.child_zones()
    assert [answer == 'it is' for answer in answers] == [zone.uuid == child.uuid for zone in zones]
    others = {answer for answer in answers if answer != 'it is'}
    assert others == {"name 'east' is that of another zone; expected a name that no zone has"}


def test_one_zone_below_that_comes_at_once_under_many_names_has_one(store):
    zones = [msgspec.structs.replace(EAST, name=f'east-{n}') for n in range(CALLERS)]
    answers = at_once(lambda n: registered(lambda: store.zones.save_child_zone(zones[n])))
    [child] = store.zones.child_zones()
    assert [answer == 'it is' for answer in answers] == [zone.name == child.name for zone in zones]


def test_of_zones_above_that_come_at_once_with_one_identity_one_is_registered(store):
    zones = [msgspec.structs.replace(PARENT, name=f'top-{n}') for n in range(CALLERS)]
    answers = at_once(lambda n: registered(lambda: store.zones.save_parent_zone(zones[n])))
    [parent] = store.zones.parent_zones()
    assert [answer == 'it is' for answer in answers] == [zone.name == parent.name for zone in zones]
