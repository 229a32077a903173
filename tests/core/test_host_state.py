# SPDX-License-Identifier: Apache-2.0
"""HostState: the typed view of a host, and the claims it makes."""

import pytest

from gantt import exceptions
from gantt.core.claims.claim import State, claim_id
from gantt.core.messages.request import GroupRef, Lifecycle, Policy, Purpose
from tests.core.builders import NOW, a_change, a_guest, a_host, a_request, a_table, an_id


def test_a_host_nobody_knows_is_not_found():
    with pytest.raises(exceptions.NotFound, match='cmp-9'):
        a_table(a_host(1)).host_state('cmp-9')


def test_service_state_says_who_disabled_it_and_how_old_it_is():
    table = a_table(
        a_host(1, disabled='repair'),
        a_host(2, service_disabled='stopping'),
        a_host(3, reported_at=NOW - 200),
        a_host(4, reported_at=0.0),
    )
    states = [table.host_state(i) for i in range(4)]
    assert [s.is_enabled for s in states] == [False, False, True, True]
    assert [s.disabled_reason for s in states] == ['repair', 'stopping', None, None]
    assert [s.age_seconds for s in states] == [10, 10, 200, None]
    assert [s.is_up(180) for s in states] == [True, True, False, False]


def test_consumers_are_listed_once_and_by_group():
    state = a_table(a_change(a_host(1), a_guest(1, 1, an_id(9)), a_guest(2, 1))).host_state(0)
    assert state.consumers == [an_id(1, 3), an_id(2, 3)]
    assert state.instances == 2
    assert state.instances_of(an_id(9)) == [an_id(1, 3)]


def test_an_instance_claim_is_what_is_committed():
    table = a_table(a_host(1), a_host(2))
    request = a_request(2, group=GroupRef(uuid=an_id(9), policy=Policy.AFFINITY), project_id='p')
    claim = table.host_state('cmp-2').instance_claim(request, 1, attempt=3)
    assert claim.id == claim_id(request.request_id, 3, 1)
    assert claim.consumer == request.consumers[1]
    assert claim.allocations == {2: request.spec.resources}
    assert (claim.provider_id, claim.host, claim.state) == (2, 'cmp-2', State.RESERVED)
    assert (claim.group, claim.project_id, claim.move_id) == (an_id(9), 'p', None)
    assert (claim.lifecycle, claim.purpose) == (Lifecycle.HOST, Purpose.CREATE)


def test_a_resize_claim_is_tied_to_its_move():
    state = a_table(a_host(1)).host_state(0)
    resize = a_request(purpose=Purpose.RESIZE)
    derived = state.resize_claim(resize, 0)
    assert derived.move_id
    assert derived.move_id == state.resize_claim(resize, 0).move_id
    given = a_request(purpose=Purpose.RESIZE, move_id=an_id(7))
    assert state.resize_claim(given, 0).move_id == an_id(7)
    assert state.claim(resize, 0) == derived
    with pytest.raises(exceptions.InvalidMessage, match='purpose'):
        state.instance_claim(resize, 0)
    with pytest.raises(exceptions.InvalidMessage, match='purpose'):
        state.resize_claim(a_request(), 0)
    with pytest.raises(exceptions.InvalidMessage, match='purpose'):
        state.claim(a_request(purpose=Purpose.REBUILD), 0)


def test_fit_says_what_is_in_the_way():
    state = a_table(a_host(1, used={'VCPU': 15})).host_state(0)
    assert state.fit({'VCPU': 1}).ok
    answer = state.fit({'VCPU': 2})
    assert not answer.ok
    assert answer.reason == 'too little free VCPU (need 2 vCPU, has 1 vCPU)'
