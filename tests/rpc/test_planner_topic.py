# SPDX-License-Identifier: Apache-2.0
"""Topic gantt-planner: groups planned, changed, shown, held and given back over the broker."""

import uuid

import oslo_messaging as om
import pytest

from gantt import exceptions
from gantt.client.calls import NoAnswer
from gantt.core.messages import base
from gantt.groups.client import PlannerClient
from gantt.rpc import wire
from tests.planner import a_change, a_description, a_member, a_plan_request
from tests.rpc.planning_bus import PlanningBus
from tests.rpc.test_whole_service import HOSTS


@pytest.fixture(scope='module')
def served():
    new_bus = PlanningBus()
    yield new_bus
    new_bus.close()


@pytest.fixture(scope='module')
def calls(served):
    return PlannerClient(served.carrier())


def test_a_group_lives_over_the_broker(served, calls):
    group = str(uuid.uuid4())
    request = a_plan_request(a_description(uuid=group))
    answer = calls.place_group(request)
    assert calls.place_group(request) == answer
    assert (answer.group, answer.revision) == (group, 1)
    assert {member.name for member in answer.plan.members} == {'web-1', 'web-2', 'db'}
    shares = answer.plan.members[0].allocations
    assert shares[0].resources == {'VCPU': 1, 'MEMORY_MB': 1024}
    grown = calls.change_group(
        a_change(a_description(a_member('web', 3), a_member('db'), uuid=group))
    )
    assert grown.revision == 2 and len(grown.stayed) == 3
    view = calls.show_group_plan(group, check=True)
    assert [member.state for member in view.members] == ['planned'] * 4 and view.violated == []
    assert calls.extend_group_plan(group, 7200)['lease_seconds'] == 7200
    assert len(calls.release_group_plan(group, 'done')['claims']) == 4
    with pytest.raises(exceptions.NotFound):
        calls.show_group_plan(group)


def test_what_cannot_be_placed_comes_with_what_is_known_of_it(calls):
    with pytest.raises(exceptions.NoValidHost) as caught:
        calls.place_group(a_plan_request(a_description(a_member('web', 9))))
    assert caught.value.kwargs['missing_count'] == 9 - len(HOSTS)
    assert caught.value.kwargs['proofs'].startswith('OR-tools is not installed')


def test_a_call_without_an_answer_may_have_been_done_and_its_repeat_finds_out(served, monkeypatch):
    def no_answer(*_, **__):
        raise NoAnswer('place_group: no answer from gantt-planner within 1.0 s')

    calls = PlannerClient(served.carrier())
    monkeypatch.setattr(calls._caller, 'call', no_answer)
    monkeypatch.setattr(calls._caller, 'is_unheard', lambda: False)  # somebody listens
    request = a_plan_request(a_description(), budget_ms=100, plan_ms=1)
    with pytest.raises(exceptions.Unavailable) as caught:
        calls.place_group(request)
    assert f'may have been planned: repeat it under its id {request.request_id}' in str(
        caught.value
    )
    monkeypatch.setattr(calls._caller, 'is_unheard', lambda: True)
    request = a_plan_request(a_description(), budget_ms=100, plan_ms=1)
    with pytest.raises(exceptions.Unavailable, match='no gantt-planner is running') as caught:
        calls.place_group(request)
    # One that had a try of it may have ended since.
    assert 'may have been planned' in str(caught.value)


def test_a_release_whose_answer_is_lost_is_repeated_as_one(served, monkeypatch):
    calls = PlannerClient(served.carrier())
    group = calls.place_group(a_plan_request(a_description())).group
    call, lost = calls._caller.call, []

    def loses_the_first(method, *args, **fields):
        answer = call(method, *args, **fields)
        if method == 'release_group_plan' and not lost:
            lost.append(answer)
            raise NoAnswer('release_group_plan: no answer from gantt-planner within 1.0 s')
        return answer

    monkeypatch.setattr(calls._caller, 'call', loses_the_first)
    monkeypatch.setattr(calls._caller, 'is_unheard', lambda: False)
    assert calls.release_group_plan(group) == {'group': group, 'claims': []}
    assert len(lost[0]['claims']) == 3
    with pytest.raises(exceptions.NotFound):
        calls.release_group_plan(group)


def test_a_release_names_the_plan_that_it_is_of(calls):
    group = calls.place_group(a_plan_request(a_description())).group
    with pytest.raises(exceptions.Refused, match=r'request\.planned_by: expected'):
        calls.release_group_plan(group, planned_by=str(uuid.uuid4()))
    view = calls.show_group_plan(group)
    assert {member.state for member in view.members} == {'planned'}
    assert len(calls.release_group_plan(group, planned_by=view.request_id)['claims']) == 3


def refused(served, method='place_group', version=wire.VERSION, **request):
    """The error of a call with a body that our own client would not send."""
    raw = served.raw('gantt-planner', version)
    with pytest.raises((exceptions.GanttError, om.RemoteError)) as caught:
        raw.call({}, method, request=request)
    return caught.value


def a_body(**changes):
    return {**base.to_builtins(a_plan_request()), **changes}


@pytest.mark.parametrize(
    ('change', 'field'),
    [
        ({'request_id': 'no'}, 'request.request_id'),
        ({'lease_seconds': 604_801}, 'request.lease_seconds'),
        ({'lease_seconds': 1}, 'request.lease_seconds'),
        ({'plan_ms': 0}, 'request.plan_ms'),
        ({'plan_ms': 120_001}, 'request.plan_ms'),
        ({'budget_ms': 600_001}, 'request.budget_ms'),
        ({'grop': {}}, 'request.grop'),
        ({'group': {'members': []}}, 'request.group.members'),
        (
            {'group': {'members': [a_member('web', 1001)]}},
            'request.group.members[0].count',
        ),
        (
            {'group': {'members': [a_member('web')], 'subgroups': {'all': []}}},
            'request.group.subgroups.all',
        ),
        (
            {'group': {'members': [a_member('web', user_data='x')]}},
            'request.group.members[0].user_data',
        ),
        (
            {'group': {'members': [a_member('web', spec={'user_data': 'x'})]}},
            'request.group.members[0].spec.user_data',
        ),
        (
            {'group': {'members': [a_member('web', spec={'project_id': 'p2'})]}},
            'request.group.members[0].spec.project_id',
        ),
    ],
)
def test_absurd_requests_are_refused_by_their_field(served, change, field):
    error = refused(served, **a_body(**change))
    assert isinstance(error, exceptions.InvalidMessage)
    assert error.kwargs['field'] == field


def test_a_change_names_its_group(served):
    body = {'request_id': str(uuid.uuid4()), 'group': a_description()}
    assert refused(served, 'change_group', **body).kwargs['field'] == 'request.group.uuid'


def test_other_methods_and_versions_are_refused(served):
    assert refused(served, 'select_destinations', **a_body()).kwargs['field'] == 'method'
    error = refused(served, version='2.0', **a_body())
    assert isinstance(error, exceptions.UnsupportedVersion)


def test_too_large_a_message_is_refused_unread(served):
    many = [a_member(f'm{i}', spec={'hints': {'x': ['y' * 1000]}}) for i in range(1000)]
    error = refused(served, **a_body(group={'members': many}))
    assert isinstance(error, exceptions.PayloadTooLarge)


def test_many_members_no_two_of_which_are_alike_are_taken(served, calls):
    members = [a_member(f'm{i}', spec={'hints': {'x': [f'{i}']}}) for i in range(300)]
    request = a_plan_request({'members': members}, dry_run=True, plan_ms=1)
    answer = calls.place_group(request)
    assert len(answer.plan.members) + len(answer.plan.missing) == 300
