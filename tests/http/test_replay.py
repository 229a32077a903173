# SPDX-License-Identifier: Apache-2.0
"""Kept decisions made again, hosts edited, and who may read what of it."""

import sys

import httpx2 as httpx
import msgspec
import pytest

from gantt import exceptions
from gantt.cmd.http_app import make_app
from gantt.core.messages import base
from gantt.core.messages.policy_set import GroupPolicyKind, LevelPolicy, PolicySet
from gantt.core.messages.request import GroupRef, Policy, RequestSpec, SelectDestinations
from gantt.core.placement.what_if_edits import HostEdit, HostEdits
from gantt.http.context import Caller
from gantt.insights.replaying import Otherwise
from tests.http.site import Site, fixed


@pytest.fixture
def site() -> Site:
    return Site()


def ask(number: int, count: int = 1, **spec) -> SelectDestinations:
    spec.setdefault('resources', {'VCPU': 2, 'MEMORY_MB': 4096, 'DISK_GB': 20})
    return SelectDestinations(
        request_id=fixed(number),
        spec=RequestSpec(**spec),
        consumers=[fixed(number * 1000 + i) for i in range(count)],
    )


def refused(site: Site, request: SelectDestinations) -> None:
    with pytest.raises(exceptions.NoValidHost):
        site.client.select_destinations(request)


def busy(site: Site) -> list[int]:
    """Placed and refused, alone and together, with groups; their numbers."""
    group = GroupRef(uuid=fixed(9), policy=Policy.ANTI_AFFINITY)
    site.place(1)
    site.place(2, 4)
    refused(site, ask(3, resources={'VCPU': 400}))
    site.client.select_destinations(ask(4, 2, group=group))
    refused(site, ask(5, 4, group=group))
    refused(site, ask(6, 30, resources={'MEMORY_MB': 12_000}))
    site.world.store.hosts.disable_host('cmp-1', 'fan', 'ann')
    site.world.turn(1.0)
    site.client.select_destinations(ask(7, availability_zone='az1'))
    flush(site)
    return [1, 2, 3, 4, 5, 6, 7]


def flush(site: Site) -> None:
    site.world.turn()
    site.world.scheduler.cache.log.flush(site.world.store.table_logs)
    site.insights.reload_soon()


def test_every_kept_decision_is_made_again_bit_for_bit(site: Site) -> None:
    for number in busy(site):
        replay = site.insights.replay(fixed(number))
        assert replay.same, (number, replay.differences)
        assert replay.differences == []
        assert 'the same, bit for bit' in replay.lines
        assert replay.config_then == replay.config_again
        assert replay.again.reason == replay.then.reason


def test_a_decision_of_filters_in_another_order_is_made_again_in_that_order(site: Site) -> None:
    placing = site.world.scheduler.placing
    names = [rule.name for rule in placing.pipeline.filters]
    placing.use_pipeline(placing.pipeline.in_order(names[::-1]))
    busy(site)
    for number in (1, 3, 5):
        replay = site.insights.replay(fixed(number))
        assert replay.same, replay.differences
        assert [step.filter for step in replay.then.members[0].funnel] != names


def test_decisions_under_policies_of_groups_are_made_again(site: Site) -> None:
    policies = PolicySet(
        policies=[
            LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY, level='host'),
            LevelPolicy(policy=GroupPolicyKind.SPREAD, level='zone', max_skew=1, soft=2.0),
            LevelPolicy(policy=GroupPolicyKind.AFFINITY, level='zone', drop=1),
        ],
        subgroups={'front': ['web']},
    )
    group = GroupRef(uuid=fixed(9), policies=policies, member='web-1')
    site.client.select_destinations(ask(1, 3, group=group))
    site.client.select_destinations(ask(2, group=GroupRef(uuid=fixed(9))))
    refused(site, ask(3, 4, group=GroupRef(uuid=fixed(9), member='web-2')))
    flush(site)
    for number in (1, 2, 3):
        replay = site.insights.replay(fixed(number))
        assert replay.same, (number, replay.differences)
    reason = site.insights.replay(fixed(3)).then.reason
    assert 'against anti-affinity at host' in reason


def test_other_settings_are_shown_beside_those_in_force(site: Site) -> None:
    busy(site)
    otherwise = Otherwise(options={'ram_weight_multiplier': -1.0}, shuffle_best=True)
    replay = site.insights.replay(fixed(1), otherwise)
    assert not replay.same
    assert replay.otherwise == ['ram_weight_multiplier -1.0', 'shuffle_best True']
    assert replay.config_then != replay.config_again
    assert replay.then.members[0].host != replay.again.members[0].host
    assert any(line.split()[:2] == ['then', 'replayed'] for line in replay.lines)
    assert all(len(line) <= 80 for line in replay.lines)
    fewer = site.insights.replay(fixed(3), Otherwise(filters=['ComputeFilter']))
    assert fewer.again.outcome == 'placed'


def test_what_cannot_be_replayed_says_so_and_why(site: Site) -> None:
    busy(site)
    with pytest.raises(exceptions.InvalidMessage, match="did you mean 'ram_weight_multiplier'"):
        site.insights.replay(fixed(1), Otherwise(options={'ram_weight_multiplyer': 2.0}))
    site.world.clock.advance(7200)
    site.world.store.table_logs.purge_table_log(1800)
    with pytest.raises(exceptions.NotFound, match='can be explained but not replayed'):
        site.insights.replay(fixed(2))


WRONG = {
    'module': ({'filters': ['ComputeFilter', 'this:s']}, 'body.filters[1]'),
    'misspelt': ({'filters': ['ComputFilter']}, 'body.filters[0]'),
    'weigher': ({'weighers': ['RAMWeigher', 'CPUWeigher', 'x']}, 'body.weighers[2]'),
    'twice': ({'weighers': ['RAMWeigher', 'RAMWeigher']}, 'body.weighers[1]'),
    'other-kind': ({'filters': ['RAMWeigher']}, 'body.filters[0]'),
    'option': ({'options': {'ram_weight': 2}}, 'body.options.ram_weight'),
    'value': ({'options': {'ram_weight_multiplier': 'x'}}, 'body.options.ram_weight_multiplier'),
    'large': ({'options': {'ram_weight_multiplier': 1e300}}, 'body.options.ram_weight_multiplier'),
    'rule': ({'options': {'operator_rules': 'zone = "a"'}}, 'body.options.operator_rules'),
}


@pytest.mark.parametrize('case', WRONG)
def test_a_wrong_setting_is_a_mistake_of_the_caller_and_imports_nothing(site: Site, case) -> None:
    busy(site)
    body, field = WRONG[case]
    sys.modules.pop('this', None)
    transport = httpx.WSGITransport(app=site.app)
    with httpx.Client(transport=transport, base_url='http://localhost') as client:
        answer = client.post(f'/v1/decisions/{fixed(1)}/replay', json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()['errors'][0]['detail'].startswith(f'{field}: ')
    assert 'this' not in sys.modules


def test_of_a_host_every_filter_says_its_numbers(site: Site) -> None:
    busy(site)
    explanation = site.insights.explain(fixed(3), 'cmp-5')
    assert explanation.host_filters_when == 'then'
    steps = {step.filter: step for step in explanation.host_filters}
    room = steps['ResourcesFilter']
    assert room.passes is False
    assert room.why == 'too little free VCPU (need 400 vCPU, has 4 vCPU)'
    assert steps['ComputeFilter'].passes is True
    assert any('reported' in fact for fact in steps['ComputeFilter'].facts)
    assert steps['AvailabilityZoneFilter'].passes is None
    assert any('REMOVES' in line for line in explanation.lines)


def test_a_host_is_seen_as_the_member_that_failed_saw_it(site: Site) -> None:
    busy(site)
    explanation = site.insights.explain(fixed(6), 'cmp-4')
    room = {step.filter: step for step in explanation.host_filters}['ResourcesFilter']
    assert room.passes is False  # what the members before it took counts
    assert 'need 11.72 GiB' in room.why


def test_where_the_table_of_then_is_gone_the_host_is_shown_as_it_is(site: Site) -> None:
    busy(site)
    site.world.clock.advance(7200)
    site.world.store.table_logs.purge_table_log(1800)
    site.insights.reload_soon()
    explanation = site.insights.explain(fixed(3), 'cmp-5')
    assert explanation.host_filters_when == 'now'
    assert any('the table of then is gone' in line for line in explanation.lines)


def test_any_host_that_passed_is_compared_with_the_others(site: Site) -> None:
    busy(site)
    everybody = site.insights.explain(fixed(2))
    for number, member in enumerate(everybody.members):
        placed = site.insights.explain(fixed(2), member.host).host_scores[number]
        assert (placed.member, placed.rank, placed.score.chosen) == (number, 1, True)
        assert placed.survivors == member.survivors
    places = {}
    for n in range(1, 7):
        explanation = site.insights.explain(fixed(1), f'cmp-{n}')
        [host_score] = explanation.host_scores or [None]
        if host_score is not None:
            places[host_score.rank] = host_score.score
            line = f'is number {host_score.rank} of {host_score.survivors}'
            assert any(line in shown for shown in explanation.lines)
    assert sorted(places) == list(range(1, len(places) + 1))
    totals = [places[place].total for place in sorted(places)]
    assert totals == sorted(totals, reverse=True)
    best = site.insights.explain(fixed(1)).members[0].scores
    assert totals[: len(best)] == [score.total for score in best]


def test_no_score_is_shown_of_a_host_that_was_removed_or_whose_table_is_gone(site: Site) -> None:
    busy(site)
    assert site.insights.explain(fixed(3), 'cmp-5').host_scores == []
    assert site.insights.explain(fixed(7), 'cmp-1').host_scores == []  # disabled
    site.world.clock.advance(7200)
    site.world.store.table_logs.purge_table_log(1800)
    site.insights.reload_soon()
    assert site.insights.explain(fixed(1), 'cmp-4').host_scores == []


# -- what if -----------------------------------------------------------------------------
def test_hosts_are_added_removed_and_changed(site: Site) -> None:
    busy(site)
    large = ask(20, resources={'VCPU': 40})
    edits = HostEdits(
        add={'new': HostEdit(like='cmp-4', count=2, resources={'VCPU': 64})},
        change={'cmp-1': HostEdit(enabled=True), 'cmp-3': HostEdit(empty=True)},
        remove=['cmp-2'],
    )
    comparison = site.insights.what_if(large, edits)
    assert comparison.now.outcome == 'no_valid_host'
    assert comparison.then.outcome == 'placed'
    assert comparison.then.members[0].host in ('new-1', 'new-2')
    assert (comparison.now.hosts, comparison.then.hosts) == (6, 7)
    assert comparison.edits[0] == 'without cmp-2'
    assert site.insights.table().row_of('new-1') is None
    assert any(line.split()[:4] == ['as', 'it', 'is', 'what'] for line in comparison.lines)


def test_an_edit_that_changes_nothing_changes_no_answer(site: Site) -> None:
    busy(site)
    comparison = site.insights.what_if(ask(20, 3), HostEdits(change={'cmp-4': HostEdit()}))
    assert comparison.now.members == comparison.then.members


@pytest.mark.parametrize(
    ('edits', 'said'),
    [
        ({'remove': ['cmp-9']}, 'hosts.remove'),
        ({'change': {'cmp-9': HostEdit()}}, 'did you mean cmp-'),
        ({'change': {'cmp-1': HostEdit(like='cmp-2')}}, 'hosts.change.cmp-1.like'),
        ({'add': {'new': HostEdit()}}, 'hosts.add.new'),
        (
            {'add': {'cmp-1': HostEdit(like='cmp-2')}},
            'expected a new name; there is a host cmp-1 already',
        ),
        ({'add': {'new': HostEdit(resources={'RAM': 1})}}, 'RAM'),
        ({'change': {'cmp-1': HostEdit(aggregates=['x'])}}, 'hosts.change.cmp-1.aggregates'),
        (
            {'add': {'a': HostEdit(like='cmp-1', count=10_000), 'b': HostEdit(like='cmp-1')}},
            'at most 10000',
        ),
        (
            {'add': {'cmp': HostEdit(like='cmp-1', count=3)}, 'remove': ['cmp-1']},
            'hosts.add.cmp: expected a new name; there is a host cmp-2 already',
        ),
        (
            {'add': {'x-2': HostEdit(like='cmp-1'), 'x': HostEdit(like='cmp-1', count=3)}},
            'hosts.add.x: expected a new name; hosts.add.x-2 has a host x-2 as well',
        ),
        (
            {'change': {'cmp-1': HostEdit(traits=['CUSTOM_A', 'lower case!'])}},
            r'hosts.change.cmp-1.traits\[1\]: expected capitals, digits',
        ),
        (
            {'add': {'new': HostEdit(like='cmp-1', resources={'CUSTOM_NEVER': 1})}},
            'hosts.add.new.resources.CUSTOM_NEVER',
        ),
    ],
    ids=range(12),
)
def test_an_impossible_edit_is_refused_by_its_field(site: Site, edits, said) -> None:
    with pytest.raises(exceptions.GanttError, match=said):
        site.insights.what_if(ask(20), HostEdits(**edits))


def test_a_cell_is_a_uuid() -> None:
    with pytest.raises(exceptions.InvalidMessage, match=r'body.change.*cell: expected a UUID'):
        base.decode({'change': {'cmp-1': {'cell': 'one'}}}, HostEdits, inside='body')


# -- who may read what -------------------------------------------------------------------
@pytest.fixture
def member(site: Site):
    """A client of the interface who is a plain member of a project."""
    plain = Caller(user='eve', project='red', roles=('member', 'reader'))
    app = make_app(
        site.insights, site.world.store, site.client, site.metrics, strategy=lambda req: plain
    )
    transport = httpx.WSGITransport(app=app)
    with httpx.Client(transport=transport, base_url='http://localhost') as client:
        yield client


def test_plain_users_read_what_was_in_the_way_and_nothing_of_hosts(site: Site, member) -> None:
    refused(site, ask(3, resources={'VCPU': 400}, project_id='red'))
    site.client.select_destinations(ask(4, project_id='red'))
    flush(site)
    shown = member.get(f'/v1/decisions/{fixed(3)}', params={'explain': 'true'})
    assert shown.status_code == 200
    reason = shown.json()['reason']
    assert reason == 'no host fits; in the way: the amounts asked for, what only operators see'
    for number in (3, 4):
        text = member.get(f'/v1/decisions/{fixed(number)}', params={'explain': 'true'}).text
        assert 'cmp-' not in text
        assert 'Filter' not in text
        assert 'worker' not in msgspec.json.decode(text)['worker']
    denied = member.get(f'/v1/decisions/{fixed(3)}', params={'host': 'cmp-1'})
    assert denied.status_code == 403


def test_plain_users_read_of_their_own_project_only(site: Site, member) -> None:
    refused(site, ask(3, resources={'VCPU': 400}, project_id='blue'))
    flush(site)
    assert member.get(f'/v1/decisions/{fixed(3)}').status_code == 404
    assert member.get('/v1/decisions').json()['decisions'] == []


def test_plain_users_are_refused_without_the_reasons(site: Site, member) -> None:
    body = msgspec.to_builtins(ask(3, resources={'VCPU': 400}))
    answer = member.post('/v1/requests', json={**body, 'dry_run': True})
    assert answer.status_code == 409
    assert 'no host fits' in answer.text
    assert 'cmp-' not in answer.text
    assert '/6' not in answer.text


@pytest.mark.parametrize('path', ['decisions/x/replay', 'what-if'])
def test_plain_users_neither_replay_nor_ask_what_if(member, path) -> None:
    assert member.post(f'/v1/{path}', json={}).status_code == 403
