# SPDX-License-Identifier: Apache-2.0
"""Answers over RPC, in which hosts stand once, say all that was answered."""

import json
import uuid

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.records.decision import Answer, Outcome, ProviderAllocation, Selection
from gantt.core.records.members import AnswerByHosts, AnswerHost, AnswerMember
from gantt.rpc import wire
from gantt.rpc.amqp import caller, envelope


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


def sent(answer):
    """The result of a call as its caller has it."""
    result, error = wire.answer(answer)
    assert error is None
    return json.loads(msgspec.json.encode(result))


def a_part(provider_id):
    return ProviderAllocation(
        provider_id=provider_id, uuid=fixed(provider_id), name='pool', resources={'DISK_GB': 5}
    )


_places = st.one_of(
    st.builds(
        a_host,
        st.integers(1, 6),
        cell=st.sampled_from([None, fixed(70)]),
        zone=st.sampled_from([None, 'az1']),
        resources=st.sampled_from([{'VCPU': 2}, {'VCPU': 2}, {'VCPU': 3}, {}]),
        allocations=st.sampled_from([[], [], [a_part(1), a_part(91)], [a_part(1), a_part(92)]]),
    ),
    st.builds(
        lambda sealed_host: {
            **{'host': '', 'node': '', 'uuid': '', 'provider_id': 0},
            **{'child': 'berlin', 'sealed_host': sealed_host},
        },
        st.sampled_from(['sealed one', 'sealed two', '']),
    ),
)


@st.composite
def _selected(draw):
    """Of one consumer: the chosen one, then alternates."""
    first, *others = draw(st.lists(_places, min_size=1, max_size=4))
    consumer = draw(st.sampled_from([fixed(1), fixed(2)]))
    chosen = Selection(
        **first,
        consumer=consumer,
        claim_id=draw(st.sampled_from([None, fixed(3)])),
        lease_seconds=draw(st.sampled_from([0.0, 900.0])),
        layout=draw(st.sampled_from([None, LAYOUT])),
    )
    return [chosen, *(Selection(**other, consumer=consumer) for other in others)]


_answers = st.builds(
    Answer,
    request_id=st.just(fixed(900)),
    decision_id=st.just(fixed(901)),
    outcome=st.just(Outcome.PLACED),
    selections=st.lists(_selected(), max_size=5),
    age_seconds=st.sampled_from([0.0, 1.5]),
    level=st.integers(0, 2),
    given_up=st.lists(st.just('the rule ssd'), max_size=2),
    dry_run=st.booleans(),
)
_usual = st.builds(an_answer, st.integers(0, 60), st.integers(0, 7), dry_run=st.booleans())


@given(_answers | _usual)
@settings(max_examples=120, deadline=None)
def test_a_caller_has_the_answer_as_it_was(answer):
    body = sent(answer)
    assert 'selections' not in body
    assert wire.read_answer(body) == wire.decision.answer_for_caller(answer)


def test_each_host_stands_once():
    body = sent(an_answer(50))
    assert [host['host'] for host in body['hosts']] == [f'compute-{n:03}' for n in range(1, 9)]
    assert body['members'][9] == [fixed(1009), [1, 2, 3], fixed(2009), 900.0, None]


def test_a_host_stands_again_where_it_gives_other_amounts():
    hosts = [a_host(1), a_host(1, resources={'VCPU': 3}), a_host(2)]
    body = sent(an_answer(2, hosts=hosts))
    assert [host['host'] for host in body['hosts']][:3] == [
        'compute-001',
        'compute-001',
        'compute-002',
    ]


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
    body = sent(an_answer(2)) | change
    with pytest.raises(exceptions.InvalidMessage) as caught:
        wire.read_answer(body)
    assert caught.value.kwargs['field'] == field


def test_a_running_scheduler_answers_again_what_it_answered(bus):
    request = SelectDestinations(
        request_id=fixed(900),
        spec=RequestSpec(resources={'VCPU': 1}),
        consumers=[fixed(1), fixed(2)],
    )
    for version in (wire.VERSION, f'{wire.MAJOR}.{wire.MINOR + 1}'):
        raw = bus.raw('gantt-scheduler', version)
        answer = raw.call({}, 'select_destinations', request=base.to_builtins(request))
        assert raw.call({}, 'get_request', request={'request_id': request.request_id}) == answer
    theirs = bus.scheduler().select_destinations(request)
    assert theirs == wire.read_answer(answer)
    assert [len(hosts) for hosts in theirs.selections] == [3, 3]


def test_the_largest_answer_is_within_the_bound_of_callers():
    """No two of 1,000 members share a host, and each alternate is another one."""
    members, each, cpus = base.LIST_MAX, 21, 512
    name = 'x' * base.NAME_MAX
    layout = {
        'cells': [
            {
                **{'cell': 0, 'memory_mb': 1 << 20, 'page_kb': 1 << 20},
                'vcpus': list(range(cpus)),
                'pins': [(cpu, 4000 + cpu) for cpu in range(cpus)],
                'blocked': list(range(5000, 5000 + cpus)),
            }
        ]
    }
    answer = AnswerByHosts(
        request_id=fixed(900),
        decision_id=fixed(901),
        outcome=Outcome.PLACED,
        hosts=[
            AnswerHost(
                **{'host': name, 'node': name, 'uuid': fixed(n), 'provider_id': n},
                **{'cell': fixed(1), 'zone': name, 'build_topic': base.topic_of(name)},
                resources={f'CUSTOM_CLASS_OF_THE_SITE_{c}': 2**40 for c in range(8)},
            )
            for n in range(members * each)
        ],
        members=[
            AnswerMember(fixed(m), [each * m + n for n in range(each)], fixed(m), 86_400.0, layout)
            for m in range(members)
        ],
    )
    size = len(envelope.reply_body(fixed(1), answer))
    assert caller.ANSWER_BYTES_MAX / 2 < size < caller.ANSWER_BYTES_MAX
