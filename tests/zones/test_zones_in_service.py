# SPDX-License-Identifier: Apache-2.0
"""Zones in service: one gets a zone above it while it runs, a host goes over to another one."""

import threading
import uuid

from gantt.core.claims.claim import State
from gantt.core.messages.report import RegisterHost, Running
from gantt.core.records.decision import Outcome
from gantt.zones.service.audit import ZoneAudit
from tests.world import a_request
from tests.zones.tree import until


def audited(zone):
    audit = ZoneAudit(zone.store, zone.around.calls).run()
    assert not any(summary.problem for summary in audit.zones)
    return [line for lines in audit.lines.values() for line in lines]


def test_a_zone_above_is_put_over_one_that_runs(zone):
    hall = zone('hall').hosts(4, 64)
    first = hall.select(a_request())
    answers, stop = [], threading.Event()

    def call():
        while not stop.is_set():
            answers.append(hall.select(a_request(vcpu=1, ram=64)))

    caller = threading.Thread(target=call)
    caller.start()
    try:
        until(lambda: len(answers) > 3)
        before = len(answers)
        top = zone('top').above(hall)
        answer = top.select(a_request(ram=64))
        until(lambda: len(answers) > before + 3)
    finally:
        stop.set()
        caller.join()
    assert (answer.outcome, answer.selections[0][0].child) == (Outcome.PLACED, 'hall')
    # Nothing was started anew, and its callers get what they got before: hosts.
    assert {answer.outcome for answer in answers} == {Outcome.PLACED}
    assert all(
        answer.selections[0][0].host and not answer.selections[0][0].child for answer in answers
    )
    mine = hall.store.claims.load_claim(first.selections[0][0].claim_id)
    assert (mine.state, mine.parent_key) == (State.RESERVED, None)
    assert audited(top) == []
    [above] = hall.get('/v1/zone-tree').json()['parents']
    assert (above['name'], above['claims']) == ('top', 1)
    # And it is taken away again: what it has there stays until it ends.
    assert top.get('/v1/zones/hall').json()['claims'] == 1
    hall.put('/v1/parents/top', {'enabled': False})
    assert hall.select(a_request(ram=64)).outcome is Outcome.PLACED


def test_a_host_with_its_guests_goes_to_a_sibling(zone):
    old, new = zone('old'), zone('new')
    journal = str(uuid.uuid4())

    def register(of):
        message = RegisterHost(
            name='cmp-7', boot_nonce=str(uuid.uuid4()), journal=journal, journal_count=count.pop()
        )
        of.epochs['cmp-7'], of.sequences['cmp-7'] = of.scheduler.register_host(message).epoch, 0

    count = [2, 1]
    top = zone('top').above(old, new)
    register(old)
    old.report('cmp-7', 16)
    guests = [top.select(a_request(vcpu=4)).selections[0][0] for _ in range(2)]
    assert {old.store.claims.load_claim(guest.claim_id).host for guest in guests} == {'cmp-7'}
    for guest in guests:
        assert old.confirm(guest.claim_id) == 'ok'
    old.host('cmp-1')
    top.over_zones.follower.step()
    assert audited(top) == []

    # 1. Nothing new lands there.
    assert old.put('/v1/hosts/cmp-7/disable', {'reason': 'goes to new'}).status_code == 200
    # 2. Its agent, with its journal, registers in the other zone, which adopts what runs.
    register(new)
    running = [
        Running(consumer=guest.consumer, claim_id=guest.claim_id, resources={'VCPU': 4})
        for guest in guests
    ]
    new.report('cmp-7', 16, running=running)
    adopted = new.store.claims.list_claims(host='cmp-7', state='confirmed', limit=10)
    assert {claim.consumer for claim in adopted} == {guest.consumer for guest in guests}
    # Meanwhile it is registered twice, and the zone above says so without knowing its name.
    [line] = audited(top)
    assert 'is registered in zones new and old' in line and 'the same journal' in line
    assert 'cmp-7' not in line
    chosen = top.select(a_request(vcpu=8)).selections[0][0]
    unsealed = (old if chosen.child == 'old' else new).unseal(chosen.sealed_host)
    assert (chosen.child, unsealed['host']) != ('old', 'cmp-7')
    # 3. The claims of before end, then the host is forgotten where it was.
    for guest in guests:
        gone = old.delete(f'/v1/claims/{guest.claim_id}?reason=moved')
        assert gone.status_code == 200, gone.text

    def states():
        by_claim = {row.claim_id: row.state for row in top.store.child_claims.find()}
        return {by_claim[guest.claim_id] for guest in guests}

    until(lambda: states() == {'released'})
    old.store.hosts.decommission_host('cmp-7')
    assert audited(top) == []
    assert new.store.claims.load_claim(adopted[0].id).state is State.CONFIRMED
