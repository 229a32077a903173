# SPDX-License-Identifier: Apache-2.0
"""What an operator reads of answers: each refusal, and a batch in one line."""

import logging
import re

import msgspec

from gantt.core.records.decision import Answer, Answered, Outcome, Selection
from gantt.core.records.members import AnswerMember, SelectionColumns
from gantt.telemetry import answer_log, log
from tests.core.builders import an_id


def answered(number, outcome=Outcome.PLACED, members=1, seconds=0.004, **more):
    chosen = Selection(host=f'cmp-{number}', node='', uuid='', provider_id=1, consumer='')
    answer = Answer(
        request_id=an_id(number, 1),
        decision_id=f'd-{number}',
        outcome=outcome,
        selections=[[chosen]] * members if outcome is Outcome.PLACED else [],
        reason='' if outcome is Outcome.PLACED else '0/412 hosts fit: 412 too little free VCPU',
        age_seconds=number / 10,
    )
    return Answered(answer, seconds, more.get('origin'))


def lines_of(answers, each=False, level=logging.INFO):
    """(request id, line) as written."""
    seen = []

    class Keep(logging.Handler):
        def emit(self, record):
            seen.append((record.request_id, record.getMessage()))

    logger = logging.Logger('gantt.test', level)
    logger.addHandler(Keep())
    answer_log.log_answers(logger, each, answers)
    assert log.context.get_current() is None
    return seen


def facts_of(line):
    return dict(re.findall(r'(\w+)=("[^"]*"|\S+)', line))


def test_an_answer_by_itself_is_a_line_with_its_request_id():
    refused = answered(0, Outcome.NO_VALID_HOST, origin='req-1', seconds=0.0042)
    assert lines_of([refused]) == [
        (
            an_id(0, 1),
            'Request was decided: id=d-0 origin=req-1 outcome=no_valid_host '
            'oldest_report_age_seconds=0 ms=4.2 reason="0/412 hosts fit: 412 too little free VCPU"',
        )
    ]
    [(request_id, line)] = lines_of([answered(1, members=2)])
    assert request_id == an_id(1, 1)
    assert line == (
        'Request was decided: id=d-1 outcome=placed members=2 hosts=cmp-1,cmp-1 '
        'oldest_report_age_seconds=0.1 ms=4'
    )


def test_a_batch_is_one_line_that_adds_up():
    batch = [answered(n, members=3, seconds=n / 1000, origin=f'req-{n}') for n in range(1, 6)]
    assert lines_of(batch) == [
        (
            '-',
            'Requests were decided: answers=5 placed=5 members=15 '
            'oldest_report_age_seconds=0.5 slowest_ms=5 '
            f'slowest={an_id(5, 1)} requests={",".join(an_id(n, 1) for n in range(1, 6))} '
            'origins=req-1,req-2,req-3,req-4,req-5',
        )
    ]


def test_each_refusal_of_a_batch_has_its_line_and_its_reason():
    outcomes = [o for o in Outcome if o is not Outcome.PLACED][: answer_log.REFUSALS_MOST]
    refused = [answered(n, outcome) for n, outcome in enumerate(outcomes)]
    placed = [answered(n) for n in range(20, 23)]
    *alone, (_, summed) = lines_of(placed[:1] + refused + placed[1:])
    assert [request_id for request_id, _ in alone] == [
        refusal.answer.request_id for refusal in refused
    ]
    for (_, line), refusal in zip(alone, refused, strict=True):
        assert f'outcome={refusal.answer.outcome.value} ' in line
        assert line.endswith('reason="0/412 hosts fit: 412 too little free VCPU"')
    facts = facts_of(summed)
    assert (facts['answers'], facts['placed']) == (str(len(refused) + 3), '3')
    assert all(facts[outcome.value] == '1' for outcome in outcomes)
    assert facts['requests'] == ','.join(placement.answer.request_id for placement in placed)


def test_a_flood_of_refusals_is_bounded_and_counted():
    batch = [answered(n, Outcome.NO_VALID_HOST) for n in range(100)] + [answered(200)]
    *alone, (_, summed) = lines_of(batch)
    assert len(alone) == answer_log.REFUSALS_MOST
    facts = facts_of(summed)
    assert (facts['answers'], facts['no_valid_host'], facts['placed']) == ('101', '100', '1')
    named = facts['requests'].split(',')
    assert named[0] == an_id(answer_log.REFUSALS_MOST, 1)
    assert len(alone) + len(named) + int(facts['not_named']) == len(batch)


def test_refusals_that_all_have_a_line_are_not_summed_up_again():
    lines = lines_of([answered(n, Outcome.CONFLICT) for n in range(3)])
    assert [line.split()[0] for _, line in lines] == ['Request'] * 3


def test_by_option_every_answer_has_a_line():
    batch = [answered(1), answered(2, Outcome.FAILED), answered(3)]
    lines = lines_of(batch, each=True)
    assert [request_id for request_id, _ in lines] == [an_id(n, 1) for n in (1, 2, 3)]


def test_nothing_is_written_above_info():
    assert lines_of([answered(1), answered(2)], level=logging.WARNING) == []


def test_chosen_hosts_are_the_same_of_columns_as_of_lists():
    hosts = [
        Selection(host=f'cmp-{number}', node='', uuid='', provider_id=number, consumer='')
        for number in range(3)
    ]
    members = [AnswerMember('c-1', [2, 0]), AnswerMember('c-2', [0]), AnswerMember('c-3', [2, 1])]
    columns = Answer(
        request_id=an_id(1, 1),
        decision_id='d',
        outcome=Outcome.PLACED,
        selections=SelectionColumns(hosts, members),
    )
    [(_, line)] = lines_of([Answered(columns, 0.004, None)])
    lists = msgspec.structs.replace(columns, selections=list(columns.selections))
    assert [(an_id(1, 1), line)] == lines_of([Answered(lists, 0.004, None)])
    assert facts_of(line)['hosts'] == 'cmp-2,cmp-0,cmp-2'
