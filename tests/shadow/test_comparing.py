# SPDX-License-Identifier: Apache-2.0
"""What is heard, decided and compared: a scheduler in memory, its clock in our hands."""

import pytest

from gantt import exceptions
from gantt.core.messages.base import derived_id
from gantt.core.records.shadow import (
    ObservedBegin,
    ObservedEnd,
    ObservedGuests,
    ObservedRequest,
    ShadowVerdict,
)
from gantt.insights.shadow import ShadowSettings
from tests.shadow.side import Side, ours_of


def test_the_same_host():
    side = Side(hosts=1)
    request = side.asked()
    side.seen('cmp-1', request)
    comparison = side.one()
    assert (comparison.verdict, comparison.gantt_host, comparison.nova_host, comparison.reason) == (
        'same',
        'cmp-1',
        'cmp-1',
        '',
    )
    assert (comparison.request_id, comparison.origin, comparison.purpose) == (
        request.request_id,
        'req-1',
        'create',
    )
    assert side.counts == {
        ('requests_total', 'received'): 1,
        ('requests_total', 'decided'): 1,
        ('comparisons_total', 'same'): 1,
    }


def test_another_host_that_fits_is_ranked():
    side = Side()
    side.world.hosts['cmp-3'].facts['foreign'] = {'MEMORY_MB': 20_000}
    side.look()
    request = side.asked()
    assert ours_of(side, request) != 'cmp-3'
    side.seen('cmp-3', request)
    comparison = side.one()
    assert comparison.verdict == 'other'
    assert 'cmp-3 is number 3 of 3' in comparison.reason
    assert 'RAMWeigher' in comparison.reason


def test_a_host_that_a_filter_removes_is_told_with_its_reason():
    side = Side()
    side.world.hosts['cmp-2'].facts['disabled'] = 'new disk'
    side.look()
    request = side.asked()
    side.seen('cmp-2', request)
    comparison = side.one()
    assert comparison.verdict == 'removed'
    assert 'cmp-2 was removed by ComputeFilter' in comparison.reason


def test_where_there_is_no_host_here_nova_has_one():
    side = Side()
    request = side.asked(vcpu=1000)
    side.seen('cmp-2', request)
    comparison = side.one()
    assert (comparison.verdict, comparison.gantt_host, comparison.nova_host) == (
        'removed',
        None,
        'cmp-2',
    )
    assert 'ResourcesFilter' in comparison.reason


def test_a_host_that_is_not_known_here():
    side = Side()
    request = side.asked()
    side.seen('strange', request)
    assert side.one().verdict == 'not_known'


@pytest.mark.parametrize(
    ('words', 'vcpu', 'verdict'),
    [
        pytest.param([ObservedBegin], 1, 'nova_none', id='refused'),
        pytest.param([ObservedBegin], 1000, 'neither', id='refused-by-both'),
        pytest.param([ObservedBegin, ObservedEnd], 1, 'not_observed', id='placed-and-lost'),
        pytest.param([], 1, 'not_observed', id='silence'),
    ],
)
def test_what_became_of_it_is_concluded_when_time_is_up(words, vcpu, verdict):
    side = Side(outcome_seconds=60.0)
    side.asked(vcpu=vcpu)
    for word in words:
        side.shadow.receive(word(origin='req-1'))
    assert side.look(30.0) == []
    assert side.one(31.0).verdict == verdict


def test_a_notice_that_names_a_guest_is_about_its_request():
    side = Side(outcome_seconds=60.0)
    request = side.asked(origin='req-1')
    side.shadow.receive(ObservedBegin(consumer=request.consumers[0]))
    side.shadow.receive(ObservedEnd(consumer='somebody else'))
    assert side.one(61.0).verdict == 'nova_none'


def test_without_notifications_nobody_says_that_nova_refused():
    side = Side(outcome_seconds=60.0)
    side.asked(origin='req-2')
    assert side.one(61.0).verdict == 'not_observed'


def test_the_source_of_a_move_does_not_tell_where_it_goes():
    side = Side()
    request = side.asked(source='cmp-1', purpose='live_migrate', ignore_hosts=['cmp-1'])
    side.seen('cmp-1', request)
    assert side.look() == []
    side.seen('cmp-2', request)
    assert side.one().nova_host == 'cmp-2'


def test_of_a_move_that_may_stay_nothing_tells():
    side = Side(outcome_seconds=60.0)
    request = side.asked(purpose='resize')
    side.seen('cmp-2', request)
    assert side.one(61.0).verdict == 'not_observed'


def test_members_are_compared_one_by_one():
    side = Side()
    request = side.asked(3)
    for consumer, host in zip(request.consumers, side.world.hosts, strict=True):
        side.shadow.receive(ObservedGuests(host=host, consumers=[consumer]))
    comparisons = {comparison.consumer: comparison for comparison in side.look()}
    assert [comparisons[c].nova_host for c in request.consumers] == ['cmp-1', 'cmp-2', 'cmp-3']
    assert len({comparison.id for comparison in comparisons.values()}) == 3


def test_what_is_not_decided_says_why():
    side = Side()
    side.error = exceptions.HostsUnknown(problem='nobody has reported')
    request = side.asked()
    side.seen('cmp-1', request)
    comparison = side.one()
    assert comparison.verdict == 'not_decided'
    assert 'nobody has reported' in comparison.reason


def test_a_repeat_is_one_request():
    side = Side(hosts=1)
    request = side.asked()
    side.shadow.receive(ObservedRequest(request=request, origin='req-1'))
    assert side.shadow.pending == 1
    side.seen('cmp-1', request)
    assert len(side.look()) == 1


def test_what_is_remembered_is_bounded():
    side = Side(pending_max=2, comparisons_most=3)
    for number in range(5):
        side.asked(origin=f'req-{number}')
    assert side.shadow.pending == 2
    assert side.counts['requests_total', 'dropped'] == 3
    for number in range(4):
        side.shadow.settings = ShadowSettings(comparisons_most=3)
        request = side.asked(origin=f'more-{number}')
        side.seen('cmp-1', request)
    assert len(side.look()) == 3
    assert len(side.look(400.0)) == 3
    assert side.shadow.pending == 0
    assert not side.shadow._pending_by_guest


def test_a_dry_run_changes_nothing():
    side = Side()
    before = [(c.row, c.placed) for c in side.world.store.feed.load_everything().hosts]
    for number in range(20):
        request = side.asked(2, origin=f'req-{number}')
        side.seen('cmp-1', request)
    assert [(c.row, c.placed) for c in side.world.store.feed.load_everything().hosts] == before
    assert len(side.look()) == 40
    assert side.world.store.claims.list_claims(limit=10) == []
    assert side.world.store.requests.load_request(request.request_id) is None
    assert not any(side.world.store.claims.audit().values())


def test_comparisons_wait_for_a_database_that_is_away():
    side = Side(hosts=1)
    keep, side.world.store.shadows.save_shadows = side.world.store.shadows.save_shadows, away
    side.seen('cmp-1', side.asked())
    assert side.look() == []
    side.world.store.shadows.save_shadows = keep
    assert side.one().verdict is ShadowVerdict.SAME


def away(*_):
    raise exceptions.DatabaseUnavailable(problem='on purpose')


def test_ids_are_those_of_the_guest_and_the_request():
    side = Side(hosts=1)
    request = side.asked()
    side.seen('cmp-1', request)
    assert side.one().id == derived_id('compared', request.request_id, request.consumers[0])
