# SPDX-License-Identifier: Apache-2.0
"""What somebody is told whose request is refused: the cause, and nothing that hides it."""

import logging

import pytest

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.near import nearest_names
from gantt.core.messages.request import Destination, GroupRef, Policy, Purpose, RequestSpec
from gantt.core.records.decision import Answered
from gantt.core.resources.host import Aggregate
from gantt.telemetry import answer_log
from tests.core.builders import a_change, a_host, a_request, a_table, an_id, decide
from tests.http.site import Site


def a_cloud():
    red = Aggregate(id=1, uuid=an_id(1), name='red', hosts=['cmp-1'])
    return a_table(
        a_host(1, zone='az-1', traits=['CUSTOM_SSD']),
        a_host(2, zone='az-2', disabled='drain test'),
        a_host(3, zone='az-2', traits=['CUSTOM_GONE']),
        aggregates=[red],
    )


def refused(table=None, **spec):
    decision = decide(table if table is not None else a_cloud(), a_request(**spec))
    assert decision.outcome == 'no_valid_host'
    return decision


UNKNOWN = [
    ({'availability_zone': 'az-9'}, 'availability zone az-9 (did you mean az-1 or az-2?)'),
    ({'availability_zone': 'moon'}, 'availability zone moon'),
    ({'required_traits': ['CUSTOM_SDS']}, 'trait CUSTOM_SDS (did you mean CUSTOM_SSD?)'),
    ({'any_traits': [['CUSTOM_NVME']]}, 'trait CUSTOM_NVME'),
    ({'member_of': [['rde']]}, 'aggregate rde (did you mean red?)'),
    ({'member_of': [[an_id(7)]]}, f'aggregate {an_id(7)}'),
    ({'destination': Destination(aggregates=[['nope']])}, 'aggregate nope'),
    ({'destination': Destination(host='cmp-l')}, 'host cmp-l (did you mean cmp-1 or cmp-2 or'),
    ({'force_hosts': ['elsewhere']}, 'host elsewhere'),
]


@pytest.mark.finding('N10', 'a zone, trait, aggregate or host that is not there is called unknown')
@pytest.mark.parametrize(('asked', 'said'), UNKNOWN, ids=range(len(UNKNOWN)))
def test_what_no_host_has_is_called_unknown_and_what_may_be_meant_is_said(asked, said):
    decision = refused(**asked)
    assert decision.reason.startswith(f'unknown {said}')
    assert '0/3 hosts fit: ' in decision.reason
    assert 'did you mean' in said or 'did you mean' not in decision.reason


@pytest.mark.finding('N10', 'a zone, trait, aggregate or host that is not there is called unknown')
def test_what_some_host_has_is_not_called_unknown_whoever_it_is():
    queries = [
        {'availability_zone': 'az-2', 'required_traits': ['CUSTOM_SSD']},
        {'member_of': [['red', 'nope']], 'availability_zone': 'az-2'},
        {'any_traits': [['CUSTOM_SSD', 'CUSTOM_NONE']], 'availability_zone': 'az-2'},
        {'forbidden_aggregates': ['red', 'nope'], 'required_traits': ['CUSTOM_SSD']},
    ]
    for fields in queries:
        assert 'unknown' not in refused(**fields).reason, fields


@pytest.mark.finding('N10', 'a zone, trait, aggregate or host that is not there is called unknown')
def test_a_trait_that_the_last_host_has_lost_is_unknown_again():
    table = a_cloud()
    table.apply(a_change(a_host(3, zone='az-2', version=2)))
    assert refused(table, required_traits=['CUSTOM_GONE']).reason.startswith(
        'unknown trait CUSTOM_GONE; 0/3'
    )


@pytest.mark.finding('N10', 'a zone, trait, aggregate or host that is not there is called unknown')
def test_hundreds_of_unknown_traits_are_not_all_told():
    reason = refused(required_traits=[f'CUSTOM_{n}' for n in range(500)]).reason
    assert reason.count('unknown trait') == 3


@pytest.mark.finding('N11', 'of the host that was asked for the reason comes first and alone')
@pytest.mark.parametrize(
    'asked',
    [
        {'destination': Destination(host='cmp-2')},
        {'force_hosts': ['CMP-2']},
        {'destination': Destination(host='cmp-2'), 'force_nodes': ['cmp-2']},
    ],
    ids=['destination', 'forced', 'both'],
)
def test_the_one_host_that_was_asked_for_is_told_with_the_reason_it_is_disabled(asked):
    decision = refused(**asked)
    assert decision.reason == 'cmp-2 is disabled: drain test'
    counts = decision.members[0].filters
    assert sum(count.removed for count in counts) == 3
    assert 'drain' not in str(counts), "an operator's words stand in the verdict alone"


@pytest.mark.finding('N11', 'of the host that was asked for the reason comes first and alone')
def test_whatever_is_wrong_with_the_asked_host_is_said_of_it():
    destination = {'destination': Destination(host='cmp-1')}
    assert refused(**destination, resources={'VCPU': 99}).reason == (
        'cmp-1: too little free VCPU (need 99 vCPU, has 16 vCPU)'
    )
    assert refused(**destination, required_traits=['CUSTOM_XXL']).reason == (
        'cmp-1: no trait CUSTOM_XXL; unknown trait CUSTOM_XXL'
    )
    silent = a_table(a_host(1, reported_at=0.0), a_host(2))
    assert refused(silent, **destination).reason == 'cmp-1 has been silent for more than 180 s'
    # Who rebuilds a guest did not name its host.
    rebuilt = refused(purpose=Purpose.REBUILD, force_hosts=['cmp-1'], required_traits=['CUSTOM_X'])
    assert rebuilt.reason.startswith('its host: no trait CUSTOM_X')


@pytest.mark.finding('N11', 'of the host that was asked for the reason comes first and alone')
def test_of_several_asked_hosts_all_are_counted():
    reason = refused(force_hosts=['cmp-1', 'cmp-2'], resources={'VCPU': 99}).reason
    assert reason.startswith('0/3 hosts fit: 1 ')


@pytest.mark.finding('N9', 'refusals are told apart by what decided them')
def test_refusals_have_the_same_cause_where_the_same_decided_and_only_there():
    causes = [
        refused(availability_zone='az-9').cause,
        refused(required_traits=['CUSTOM_SDS']).cause,
        refused(member_of=[['nope']]).cause,
        refused(destination=Destination(host='cmp-2')).cause,
        refused(resources={'VCPU': 99}).cause,
    ]
    assert len(set(causes)) == len(causes)
    assert refused(resources={'VCPU': 77}).cause == causes[-1]
    assert decide(a_cloud(), a_request()).cause == ''


@pytest.mark.finding('N9', 'refusals are told apart by what decided them')
def test_the_status_counts_refusals_of_one_shape_by_their_cause():
    site = Site()
    site.world.store.hosts.disable_host('cmp-3', 'drain test', 'ann')
    site.world.turn(1.0)
    shapes = [{'required_traits': ['CUSTOM_SDS']}] * 2
    shapes += [{'availability_zone': 'az9'}, {'destination': Destination(host='cmp-3')}]
    for number, fields in enumerate(shapes):
        with pytest.raises(exceptions.NoValidHost):
            site.client.select_destinations(a_request(number=number, **fields))
    groups = site.insights.status().refusals
    assert {group.reason.partition(';')[0]: group.count for group in groups} == {
        'unknown trait CUSTOM_SDS': 2,
        'unknown availability zone az9 (did you mean az1 or az2?)': 1,
        'cmp-3 is disabled: drain test': 1,
    }
    assert len({group.shape for group in groups}) == 1


@pytest.mark.finding('N12', 'the age of the oldest report has one name, that of the table another')
def test_the_log_and_the_explanation_call_the_age_of_reports_alike(caplog):
    site = Site()
    site.world.turn(20.0)
    answer = site.client.select_destinations(a_request())
    explanation = site.insights.explain(answer.decision_id)
    assert explanation.oldest_report_age_seconds >= 20 > site.insights.status().table_age_seconds
    # By its former name as well, which microversions before 1.3 have.
    (line,) = (line for line in explanation.lines if 'oldest report' in line)
    assert f'oldest report {explanation.oldest_report_age_seconds:.1f} s old' in line
    with caplog.at_level(logging.INFO):
        answer_log.log_answers(logging.getLogger('decided'), True, [Answered(answer, 0.1, None)])
    assert f'oldest_report_age_seconds={answer.age_seconds:.6g} ' in caplog.text


@pytest.mark.finding('N24', 'words')
@pytest.mark.parametrize(
    ('body', 'said'),
    [
        ({'resources': {'VCPU': 'two'}}, 'expected a whole number, got text'),
        ({'resources': {'VCPU': 0}}, 'expected a whole number >= 1'),
        ({'ignore_hosts': 'cmp-1'}, 'expected a list, got text'),
        ({'availability_zone': 3}, 'expected text or null, got a whole number'),
        ({'volume_backed': 'yes'}, 'expected true or false, got text'),
        ([], 'expected an object, got a list'),
    ],
)
def test_types_are_told_in_words_of_json(body, said):
    with pytest.raises(exceptions.InvalidMessage) as caught:
        base.decode(body, RequestSpec, inside='body')
    assert caught.value.kwargs['problem'] == said


@pytest.mark.finding('N24', 'words')
def test_a_full_group_is_told_so_of_any_number_of_hosts():
    group = GroupRef(uuid=an_id(9), policy=Policy.ANTI_AFFINITY)
    table = a_table(a_host(1))
    decision = decide(table, a_request(2, group=group))
    assert decision.reason.endswith('0/1 hosts fit: 1 with 1 of the server group already')


@pytest.mark.finding('N24', 'words')
def test_one_host_is_explained_with_its_own_reason_not_with_all_that_a_filter_may_say():
    site = Site()
    site.world.store.hosts.disable_host('cmp-3', 'drain test', 'ann')
    site.world.turn(1.0)
    answer = site.client.select_destinations(a_request())
    site.world.turn(1.0)
    (verdict,) = site.insights.explain(answer.decision_id, host='cmp-3').host_verdicts
    assert verdict == 'member 0: cmp-3 was removed by ComputeFilter: disabled'


@pytest.mark.finding('N22', 'did-you-mean does not guess where nothing is near')
@pytest.mark.parametrize(
    ('name', 'known', 'expected'),
    [
        ('foo', ['host list', 'host show', 'host disable'], []),
        ('topic', ['nova_topic', 'transport_url'], []),
        (
            'fake-0001x',
            [f'fake-{n:05}' for n in range(100)],
            ['fake-00010', 'fake-00011', 'fake-00012'],
        ),
        ('enabled_filter', ['enabled_filters', 'enabled_weighers'], ['enabled_filters']),
        ('custom-ssd', ['CUSTOM_SSD', 'CUSTOM_SSE'], ['CUSTOM_SSD']),
        ('rde', ['red', 'green'], ['red']),
        ('CUSTOM_NVME', ['CUSTOM_GONE', 'CUSTOM_SSD'], []),
        ('max_pool', ['max_pool_size', 'max_poor', 'pool'], ['max_poor']),
        ('max_pool', ['max_pool_size', 'pool'], ['max_pool_size']),
        ('fake', [f'fake-{n:05}' for n in range(100)], []),
        ('', ['a'], []),
        ('x' * 300, ['x' * 299], []),
    ],
)
def test_names_are_near_by_few_slips_and_the_nearest_alone_are_told(name, known, expected):
    assert nearest_names(name, known) == expected
