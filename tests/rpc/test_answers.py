# SPDX-License-Identifier: Apache-2.0
"""Answers in which hosts stand once say what the others do, to callers that understand them."""

import json
import uuid

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.records.decision import Answer, Outcome, Selection
from gantt.rpc import answers, wire


def fixed(number):
    """A UUID that says its number."""
    return str(uuid.UUID(int=number))


LAYOUT = {'cells': [{'id': 0, 'cpus': [1, 2]}]}


def a_host(number, **fields):
    name = f'compute-{number:03}'
    return {
        'host': name,
        'node': name,
        'uuid': fixed(number),
        'provider_id': number,
        'build_topic': base.topic_of(name),
        'resources': {'VCPU': 2, 'MEMORY_MB': 2048},
        **fields,
    }


def an_answer(members, alternates=2, hosts=None, **fields):
    """Of so many members, each on the next of the hosts, and alternates on those after it."""
    hosts = hosts or [a_host(n) for n in range(1, 9)]
    return Answer(
        request_id=fixed(900),
        decision_id=fixed(901),
        outcome=Outcome.PLACED,
        selections=[
            [
                Selection(
                    **hosts[(m + place) % len(hosts)],
                    consumer=fixed(1000 + m),
                    claim_id=fixed(2000 + m) if place == 0 else None,
                    lease_seconds=900.0 if place == 0 else 0.0,
                )
                for place in range(1 + alternates)
            ]
            for m in range(members)
        ],
        **fields,
    )


def sent(answer, minor):
    """The result of a call as its caller has it."""
    result, error = wire.answer(answer, minor)
    assert error is None
    return json.loads(msgspec.json.encode(result))


_hosts = st.builds(
    a_host,
    st.integers(1, 6),
    cell=st.sampled_from([None, fixed(70)]),
    zone=st.sampled_from([None, 'az1']),
    resources=st.sampled_from([{'VCPU': 2}, {'VCPU': 2}, {'VCPU': 3}, {}]),
)
_selections = st.builds(
    lambda host, **fields: Selection(**host, **fields),
    _hosts,
    consumer=st.sampled_from([fixed(1), fixed(1), fixed(2)]),
    claim_id=st.sampled_from([None, fixed(3)]),
    lease_seconds=st.sampled_from([0.0, 900.0]),
    layout=st.sampled_from([None, LAYOUT]),
)
_answers = st.builds(
    Answer,
    request_id=st.just(fixed(900)),
    decision_id=st.just(fixed(901)),
    outcome=st.just(Outcome.PLACED),
    selections=st.lists(st.lists(_selections, max_size=4), max_size=5),
    age_seconds=st.sampled_from([0.0, 1.5]),
    level=st.integers(0, 2),
    given_up=st.lists(st.just('the rule ssd'), max_size=2),
    dry_run=st.booleans(),
)
_usual = st.builds(
    an_answer,
    st.integers(0, 60),
    st.integers(0, 7),
    st.lists(_hosts, min_size=1, max_size=6, unique_by=lambda host: host['provider_id']),
    dry_run=st.booleans(),
    given_up=st.lists(st.just('the rule ssd'), max_size=2),
)


@given(_answers | _usual)
@settings(max_examples=120, deadline=None)
def test_a_caller_has_the_same_answer_in_either_form(answer):
    shown = wire.decision.for_caller(answer)
    for minor in (answers.HOSTS_ONCE - 1, answers.HOSTS_ONCE):
        assert answers.decoded(sent(answer, minor)) == shown


@given(_usual)
@settings(max_examples=50, deadline=None)
def test_an_older_caller_gets_the_bytes_that_it_always_got(answer):
    result, _ = wire.answer(answer, answers.HOSTS_ONCE - 1)
    assert msgspec.json.encode(result) == msgspec.json.encode(wire.decision.for_caller(answer))


def test_each_host_stands_once():
    body = sent(an_answer(50), answers.HOSTS_ONCE)
    assert [host['host'] for host in body['hosts']] == [f'compute-{n:03}' for n in range(1, 9)]
    assert 'selections' not in body
    assert body['members'][9] == [fixed(1009), [1, 2, 3], fixed(2009), 900.0, None]
    older = sent(an_answer(50), answers.HOSTS_ONCE - 1)
    assert len(json.dumps(older)) > 5 * len(json.dumps(body))


@pytest.mark.parametrize(
    'answer',
    [
        an_answer(0),
        an_answer(1),
        an_answer(2, hosts=[a_host(1), a_host(1, resources={'VCPU': 3}), a_host(2)]),
        msgspec.structs.replace(an_answer(1), selections=[[], []]),
    ],
    ids=['no members', 'one member', 'one host with two amounts', 'members without hosts'],
)
def test_what_has_not_that_form_comes_in_the_other(answer):
    body = sent(answer, answers.HOSTS_ONCE)
    assert 'members' not in body and answers.decoded(body) == answer


@pytest.mark.parametrize(
    ('change', 'field'),
    [
        ({'members': [['c', [8]]]}, 'answer.members'),
        ({'members': [['c', [-1]]]}, 'answer.members[0][1][0]'),
        ({'members': [['c']]}, 'answer.members[0]'),
        ({'members': {}}, 'answer.members'),
        ({'hosts': [{'host': 'a'}]}, 'answer.hosts[0].node'),
    ],
)
def test_an_answer_that_is_none_is_named_by_its_field(change, field):
    body = sent(an_answer(2), answers.HOSTS_ONCE) | change
    with pytest.raises(exceptions.InvalidMessage) as caught:
        answers.decoded(body)
    assert caught.value.kwargs['field'] == field


def test_who_asks_in_an_older_version_gets_the_older_form_from_a_running_scheduler(bus):
    request = SelectDestinations(
        request_id=fixed(900),
        spec=RequestSpec(resources={'VCPU': 1}),
        consumers=[fixed(1), fixed(2)],
    )
    by_version = {}
    for version in ('1.0', '1.10', wire.HOSTS_ONCE, f'1.{wire.MINOR + 1}'):
        raw = bus.raw('gantt-scheduler', version)
        answer = raw.call({}, 'select_destinations', request=base.to_builtins(request))
        again = raw.call({}, 'get_request', request={'request_id': request.request_id})
        assert answer == again
        by_version[version] = answer
    older, _, newer, newest = by_version.values()
    assert older == by_version['1.10'] and 'members' not in older
    assert newer == newest and 'selections' not in newer
    theirs = bus.scheduler().select_destinations(request)
    assert theirs == answers.decoded(older) == answers.decoded(newer)
    assert [len(found) for found in theirs.selections] == [3, 3]
