# SPDX-License-Identifier: Apache-2.0
"""Decisions about creates of planned members: explained, made again, tried on a copy."""

import pytest

from gantt import exceptions
from gantt.core.records.decision import Outcome
from gantt.insights.replaying import Otherwise
from tests.groups.planned import LARGE, SPEC, a_body, plan
from tests.http.site import Site, fixed

MORE = {'resources': {**SPEC['resources'], 'MEMORY_MB': 2048}}


@pytest.fixture
def site():
    return Site()


def flush(site):
    site.world.turn()
    site.world.scheduler.cache.log.flush(site.world.store.table_logs)
    site.insights.reload_soon()


def ask(site, request):
    """The outcome of a create, as a word."""
    try:
        return site.client.select_destinations(request).outcome
    except exceptions.GanttError as e:
        return type(e).__name__


def test_every_decision_about_a_create_is_made_again_bit_for_bit(site):
    group = plan(site.world, a_body(on_difference='replan'))
    strict = plan(site.world, a_body({'name': 'a', 'count': 2, 'spec': SPEC}))
    creates = [
        group.request('web-2', request_id=fixed(1)),
        group.request('web', count=2, request_id=fixed(2)),
        group.request(spec={'resources': {'VCPU': 3}}, request_id=fixed(3)),
        group.request('db', spec=MORE, request_id=fixed(4)),
        strict.request('a-1', spec=LARGE, request_id=fixed(5)),
        strict.request('b', request_id=fixed(6)),
        strict.request(request_id=fixed(7), dry_run=True),
    ]
    outcomes = [ask(site, create) for create in creates]
    placed, refused = Outcome.PLACED, 'Refused'
    assert outcomes == [placed, placed, refused, placed, refused, refused, placed]
    flush(site)
    for number in range(1, len(creates) + 1):
        replay = site.insights.replay(fixed(number))
        assert replay.same, (number, replay.differences)
        assert replay.again.reason == replay.then.reason
    first, anew, differs = (site.insights.explain(fixed(n)) for n in (1, 4, 5))
    assert 'the place of web-2 in revision 1 of the plan of group' in first.reason
    assert [step.filter for step in first.members[0].funnel] == ['PlaceOfPlan']
    assert first.members[0].host == group.hosts['web-2']
    assert anew.reason.startswith('planned anew, as the place of db was planned otherwise: ')
    line = 'member a-1 was planned otherwise: resources.MEMORY_MB: the plan has 1024, the request'
    assert differs.reason.startswith(line)


def test_other_filters_say_nothing_of_a_place(site):
    group = plan(site.world)
    ask(site, group.request('web-1', request_id=fixed(1)))
    flush(site)
    replay = site.insights.replay(fixed(1), Otherwise(filters=['ComputeFilter']))
    assert replay.again.members[0].host == group.hosts['web-1']
    explained = site.insights.explain(fixed(1), host=group.hosts['web-1'])
    assert any(line.endswith('was chosen') for line in explained.host_verdicts)
    other = next(host for host in site.hosts if host not in group.hosts.values())
    line = 'was removed by PlaceOfPlan: have no place of the plan for it'
    assert any(
        line in verdict for verdict in site.insights.explain(fixed(1), host=other).host_verdicts
    )


def test_a_repeat_reads_the_answer_of_a_place_also_where_it_is_stored(site):
    group = plan(site.world)
    request = group.request('web', count=3, request_id=fixed(1))
    first = site.client.select_destinations(request)
    again = site.client.select_destinations(request)
    assert again.selections == first.selections
    assert [places[0].claim_id for places in first.selections] == [
        group.claims[f'web-{n}'] for n in (1, 2, 3)
    ]
