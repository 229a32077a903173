# SPDX-License-Identifier: Apache-2.0
"""place(): the decision, its changes of the table, and its report."""

import msgspec
import numpy as np
import pytest

from gantt import exceptions, plugin_loader
from gantt.core.filters.affinity import DifferentHostFilter, ServerGroupAntiAffinityFilter
from gantt.core.filters.base import Filter, PairwiseFilter, PerHostFilter, RelaxableFilter
from gantt.core.messages.request import GroupRef, Policy, Purpose
from gantt.core.placement.pipeline import Pipeline, PipelineSettings
from gantt.core.placement.place import undo_decision
from gantt.core.plugin import Option
from gantt.core.records import decision_codec
from gantt.core.records.decision import CHOSEN_VERDICT, PASSED_VERDICT, Outcome
from gantt.core.weighers.base import Weigher
from tests.core.builders import (
    a_change,
    a_guest,
    a_host,
    a_request,
    a_table,
    an_id,
    decide,
    hosts_of,
    state_of,
)

GROUP = an_id(9)


def a_row_of(count: int, **fields):
    """Return hosts of rising size: the last one is best."""
    return [a_host(n, ram=16384 + n * 4096, **fields) for n in range(1, count + 1)]


def test_the_best_host_is_chosen_and_the_next_best_are_alternates():
    table = a_table(*a_row_of(5))
    decision = decide(table, a_request())
    (member,) = decision.members
    assert decision.outcome is Outcome.PLACED
    assert member.selection.host == 'cmp-5'
    assert member.selection.claim_id
    assert member.selection.resources == {'VCPU': 2, 'MEMORY_MB': 4096, 'DISK_GB': 20}
    assert [a.host for a in member.alternates] == ['cmp-4', 'cmp-3']
    assert [a.claim_id for a in member.alternates] == [None, None]
    assert [s.host for s in member.scores] == ['cmp-5', 'cmp-4', 'cmp-3', 'cmp-2', 'cmp-1']
    assert decision.reason == 'placed on cmp-5; 5/5 hosts fit'


def test_the_pick_stays_on_the_table_until_it_is_undone():
    table = a_table(*a_row_of(3))
    before, request = state_of(table), a_request(2)
    decision = decide(table, request)
    host = table.host_state('cmp-3')
    assert host.consumers == [request.consumers[0]]
    assert (host.free('VCPU'), host.free('MEMORY_MB')) == (14, 28672 - 4096)
    undo_decision(table, decision, request)
    assert state_of(table) == before
    undo_decision(table, decision, request)
    assert state_of(table) == before


def test_members_see_each_other_and_no_alternate_is_somebodys_selection():
    table = a_table(*(a_host(n, ram=4096 * n) for n in range(1, 5)))
    decision = decide(table, a_request(3))
    assert len(set(hosts_of(decision))) > 1
    for member in decision.members:
        assert not {a.host for a in member.alternates} & set(hosts_of(decision))
    for row in range(4):
        assert (table.free[:, row] >= 0).all()


def test_a_request_is_placed_whole_or_not_at_all():
    table = a_table(a_host(1, vcpu=4), a_host(2, vcpu=2))
    before = state_of(table)
    decision = decide(table, a_request(4))
    assert decision.outcome is Outcome.NO_VALID_HOST
    assert hosts_of(decision) == [None] * 4
    assert state_of(table) == before
    assert decision.reason == (
        'member 4 of 4, with 3 before it placed: 0/2 hosts fit: '
        '2 too little free VCPU (need 2 vCPU, best has 0 vCPU)'
    )
    assert decision.nearest[0] == 'fits with one member fewer'
    assert not any(CHOSEN_VERDICT in m.verdicts for m in decision.members)


def test_alternates_are_of_the_same_cell():
    cells = [an_id(n) for n in range(2)]
    table = a_table(*(a_host(n, ram=20000 + n * 100, cell=cells[n % 2]) for n in range(1, 30)))
    decision = decide(table, a_request(alternates=6))
    (member,) = decision.members
    assert member.selection.host == 'cmp-29'
    assert [a.host for a in member.alternates] == [f'cmp-{n}' for n in range(27, 15, -2)]


def test_the_counts_add_up_and_the_verdicts_name_the_filter():
    table = a_table(
        a_host(1),
        a_host(2, disabled='x'),
        a_host(3, zone='east'),
        a_host(4, used={'VCPU': 16}),
        a_host(5, ram=1000),
        a_host(6),
    )
    request = a_request(availability_zone='nova', ignore_hosts=['cmp-6'])
    decision = decide(table, request)
    (member,) = decision.members
    names = [f.name for f in member.filters]
    removed = {f.name: f.removed for f in member.filters if f.removed}
    assert removed == {
        'IgnoredHostsFilter': 1,
        'ComputeFilter': 1,
        'AvailabilityZoneFilter': 1,
        'ResourcesFilter': 2,
    }
    assert sum(removed.values()) + member.survivors == decision.hosts == 6
    verdicts = [names[v] if v < PASSED_VERDICT else v for v in member.verdicts]
    assert verdicts == [
        CHOSEN_VERDICT,
        'ComputeFilter',
        'AvailabilityZoneFilter',
        'ResourcesFilter',
        'ResourcesFilter',
        'IgnoredHostsFilter',
    ]
    assert np.frombuffer(decision.provider_ids, np.int64).tolist() == [1, 2, 3, 4, 5, 6]


def test_a_refusal_says_why_with_counts_that_add_up_biggest_first():
    table = a_table(
        *(a_host(n, used={'MEMORY_MB': 32768 - 1024 * n}) for n in range(1, 4)),
        *(a_host(n, used={'VCPU': 15}) for n in range(4, 6)),
        a_host(6, disabled='x'),
    )
    decision = decide(table, a_request())
    assert decision.outcome is Outcome.NO_VALID_HOST
    assert decision.reason == (
        '0/6 hosts fit: 3 too little free MEMORY_MB (need 4 GiB, best has 3 GiB), '
        '2 too little free VCPU (need 2 vCPU, best has 1 vCPU), 1 disabled'
    )
    assert decision.nearest == [
        'fits if RAM <= 3 GiB (on cmp-3)',
        'fits on 1 host if cmp-6 is enabled',
    ]


def test_nearest_when_no_single_change_is_enough():
    table = a_table(a_host(1, disabled='x', vcpu=1), a_host(2, disabled='x', vcpu=1, zone='east'))
    decision = decide(table, a_request(availability_zone='nova'))
    assert decision.nearest == [
        'no single change is enough; nearest is cmp-1: ComputeFilter and ResourcesFilter'
    ]


def test_no_host_known_at_all():
    decision = decide(a_table(), a_request())
    assert decision.outcome is Outcome.NO_VALID_HOST
    assert decision.reason == 'no host is known'
    assert (decision.hosts, decision.nearest) == (0, [])


def test_scores_show_raw_normalized_and_weighted():
    table = a_table(a_host(1, ram=8192), a_host(2, ram=16384))
    decision = decide(
        table, a_request(), plugin_loader.load_pipeline(options={'ram_weight_multiplier': 3.0})
    )
    best, other = decision.members[0].scores
    ram = decision.weighers.index('RAMWeigher')
    assert (best.raw[ram], best.normalized[ram], best.weighted[ram]) == (16384, 1.0, 3.0)
    assert (other.raw[ram], other.normalized[ram], other.weighted[ram]) == (8192, 0.5, 1.5)
    for score in (best, other):
        assert score.total == pytest.approx(sum(score.weighted))


def test_a_weigher_without_multiplier_is_not_asked():
    decision = decide(a_table(a_host(1)), a_request())
    assert 'NumInstancesWeigher' not in decision.weighers


def test_a_negative_multiplier_packs():
    pipeline = plugin_loader.load_pipeline(options={'ram_weight_multiplier': -1.0})
    assert hosts_of(decide(a_table(*a_row_of(3)), a_request(), pipeline)) == ['cmp-1']


def test_ties_go_to_the_first_or_by_the_seed_where_that_is_asked():
    table = a_table(*(a_host(n) for n in range(1, 9)))

    def picks(pipeline):
        chosen = set()
        for seed in range(40):
            request = a_request(number=seed, dry_run=True)
            decision = decide(table, request, pipeline, seed=seed)
            assert hosts_of(decision) == hosts_of(decide(table, request, pipeline, seed=seed))
            assert decision.members[0].scores[0].total == max(
                s.total for s in decision.members[0].scores
            )
            chosen.update(hosts_of(decision))
        return chosen

    assert picks(plugin_loader.load_pipeline()) == {'cmp-1'}
    assert picks(plugin_loader.load_pipeline(shuffle_best=True)) == {
        f'cmp-{n}' for n in range(1, 9)
    }


def test_a_random_pick_among_the_best_few():
    table = a_table(*a_row_of(8))
    pipeline = plugin_loader.load_pipeline(subset_size=3)
    decisions = [
        decide(table, a_request(number=seed, dry_run=True), pipeline, seed=seed)
        for seed in range(40)
    ]
    assert {hosts_of(d)[0] for d in decisions} == {'cmp-6', 'cmp-7', 'cmp-8'}
    for decision in decisions:
        assert hosts_of(decision)[0] not in [a.host for a in decision.members[0].alternates]


def test_who_lost_a_race_picks_among_more():
    table = a_table(*a_row_of(8))
    hosts_by_races = {
        spread: {
            hosts_of(decide(table, a_request(number=seed, dry_run=True), seed=seed, spread=spread))[
                0
            ]
            for seed in range(40)
        }
        for spread in (1, 2, 4, 16)
    }
    assert [len(hosts) for hosts in hosts_by_races.values()] == [1, 2, 4, 8]
    assert hosts_by_races[1] < hosts_by_races[2] < hosts_by_races[4] < hosts_by_races[16]


def test_a_dry_run_leaves_nothing_and_claims_nothing():
    table = a_table(*a_row_of(3))
    before = state_of(table)
    decision = decide(table, a_request(2, dry_run=True))
    assert decision.is_placed
    assert [m.selection.claim_id for m in decision.members] == [None, None]
    assert state_of(table) == before


def test_a_rebuild_looks_at_its_host_and_takes_nothing():
    table = a_table(a_host(1, used={'VCPU': 16}, traits=['A']), a_host(2))
    before = state_of(table)
    request = a_request(purpose=Purpose.REBUILD, force_hosts=['cmp-1'], required_traits=['A'])
    decision = decide(table, request)
    assert hosts_of(decision) == ['cmp-1']
    assert decision.members[0].selection.claim_id is None
    assert state_of(table) == before
    forbidden = a_request(
        purpose=Purpose.REBUILD, force_hosts=['cmp-1'], forbidden_traits=['A'], number=2
    )
    assert decide(table, forbidden).outcome is Outcome.NO_VALID_HOST


def test_forced_hosts_skip_filters_but_neither_capacity_nor_group_rules():
    table = a_table(
        a_change(a_host(1), a_guest(1, 1)),
        a_host(2, used={'VCPU': 16}),
        a_change(a_host(3), a_guest(1, 3, GROUP)),
    )
    fields = {
        'different_host': [an_id(1, 3)],  # the guest on cmp-1
        'force_hosts': ['cmp-1', 'cmp-2', 'cmp-3'],
        'group': GroupRef(uuid=GROUP, policy=Policy.ANTI_AFFINITY),
    }
    assert decide(table, a_request(2, **fields)).outcome is Outcome.NO_VALID_HOST
    assert hosts_of(decide(table, a_request(1, **fields))) == ['cmp-1']
    del fields['force_hosts']
    assert hosts_of(decide(table, a_request(1, **fields))) == [None]


def test_members_of_a_hard_group_are_apart_also_within_the_request():
    table = a_table(*a_row_of(3))
    group = GroupRef(uuid=GROUP, policy=Policy.ANTI_AFFINITY)
    decision = decide(table, a_request(3, group=group))
    assert sorted(hosts_of(decision)) == ['cmp-1', 'cmp-2', 'cmp-3']
    before = state_of(table)
    again = decide(table, a_request(1, number=2, group=group))
    assert again.outcome is Outcome.NO_VALID_HOST
    assert again.reason == '0/3 hosts fit: 3 with 1 of the server group already'
    assert state_of(table) == before


def test_members_of_an_affinity_group_are_together_or_nowhere():
    group = GroupRef(uuid=GROUP, policy=Policy.AFFINITY)
    table = a_table(a_host(1, vcpu=6), a_host(2, vcpu=6))
    assert len(set(hosts_of(decide(table, a_request(3, group=group))))) == 1
    table = a_table(a_host(1, vcpu=4), a_host(2, vcpu=4))
    before = state_of(table)
    refused = decide(table, a_request(3, group=group))
    assert hosts_of(refused) == [None] * 3
    assert state_of(table) == before


def test_soft_rules_prefer():
    here = [a_change(a_host(1), a_guest(1, 1, GROUP)), a_host(2), a_host(3)]
    options = {
        name: 0.0
        for name in ('ram_weight_multiplier', 'cpu_weight_multiplier', 'disk_weight_multiplier')
    }
    pipeline = plugin_loader.load_pipeline(options=options)
    near = GroupRef(uuid=GROUP, policy=Policy.SOFT_AFFINITY)
    far = GroupRef(uuid=GROUP, policy=Policy.SOFT_ANTI_AFFINITY)
    assert hosts_of(decide(a_table(*here), a_request(3, group=near), pipeline)) == ['cmp-1'] * 3
    assert hosts_of(decide(a_table(*here), a_request(3, group=far), pipeline)) == [
        'cmp-2',
        'cmp-3',
        'cmp-1',
    ]


def test_a_group_without_its_rule_is_refused_by_name():
    with pytest.raises(exceptions.InvalidMessage, match='request.spec.group.policy'):
        decide(a_table(a_host(1)), a_request(group=GroupRef(uuid=GROUP)))


def test_only_the_members_named_are_placed():
    table = a_table(a_host(1))
    request = a_request(5)
    decision = decide(table, request, members=[1, 3], attempt=2)
    assert [m.member for m in decision.members] == [1, 3]
    claim = table.host_state(0).instance_claim(request, 3, attempt=2)
    assert decision.members[1].selection.claim_id == claim.id
    assert table.host_state(0).consumers == [request.consumers[1], request.consumers[3]]


def test_the_age_is_of_the_oldest_report_among_the_finalists():
    table = a_table(a_host(1, reported_at=999_900.0), a_host(2, reported_at=999_990.0))
    assert decide(table, a_request()).age_seconds == 100


class Limit(PerHostFilter):
    """At most so many guests per host."""

    reason = 'has {limit} guests'
    columns = ('placed',)
    options = (Option('limit', int, 1, 'guests', min=1),)
    limit: int
    asked: list[str] = []

    def host_passes(self, host, spec):
        self.asked.append(host.name)
        return host.instances < self.limit

    def detail(self, hosts, spec, rows):
        return {'limit': self.limit}


def test_a_filter_by_host_is_asked_about_survivors_and_again_about_changed_hosts_only():
    Limit.asked = []
    rules = [*plugin_loader.load(['ComputeFilter', 'ResourcesFilter']), Limit({'limit': 2})]
    pipeline = Pipeline(rules, plugin_loader.load(['RAMWeigher'], group=plugin_loader.WEIGHERS))
    table = a_table(a_host(1), a_host(2, disabled='x'), a_host(3, ram=65536), a_host(4))
    decision = decide(table, a_request(3), pipeline)
    assert hosts_of(decision) == ['cmp-3', 'cmp-3', 'cmp-1']
    assert Limit.asked == ['cmp-1', 'cmp-3', 'cmp-4', 'cmp-3', 'cmp-3']
    refused = decide(
        a_table(a_change(a_host(1), a_guest(1, 1), a_guest(2, 1))), a_request(), pipeline
    )
    assert refused.reason == '0/1 hosts fit: 1 has 2 guests'


class NotTheFirst(DifferentHostFilter):
    """A rule of somebody else, made from one of ours that says which requests concern it."""

    def mask(self, hosts, spec):
        mask = np.ones(len(hosts), bool)
        mask[0] = False
        return mask


class Hinted(NotTheFirst):
    def concerns(self, spec):
        return bool(spec.same_host)


def test_a_rule_made_from_one_of_ours_is_asked_whatever_concerns_that_one():
    table = a_table(a_host(1, ram=65536), a_host(2))
    assert hosts_of(decide(table, a_request(), Pipeline([NotTheFirst()], []))) == ['cmp-2']
    assert hosts_of(decide(table, a_request(), Pipeline([Hinted()], []))) == ['cmp-1']


class FarApart(ServerGroupAntiAffinityFilter):
    """A rule of somebody else, made from one of ours that names the rows that it removes."""

    def mask_for(self, hosts, spec, consumer):
        return np.array([False, True])


def test_a_rule_made_from_one_that_names_rows_is_asked_for_its_mask():
    group = GroupRef(uuid=an_id(9), policy=Policy.ANTI_AFFINITY)
    table, request = a_table(a_host(1, ram=65536), a_host(2)), a_request(group=group)
    nearer = Pipeline([ServerGroupAntiAffinityFilter()], [])
    assert hosts_of(decide(table.copy(), request, nearer)) == ['cmp-1']
    assert hosts_of(decide(table, request, Pipeline([FarApart()], []))) == ['cmp-2']


class GivesUp(RelaxableFilter):
    """Has a say about requests with a hint, and gives its only rule up."""

    columns = ('names',)

    def mask_among(self, hosts, spec, alive):
        return alive.copy() if 'picky' in spec.hints else None

    def given_up(self, hosts, spec, row):
        return [(1, f'drop 1: name == "none", on {hosts.names[row]}')]


@pytest.mark.parametrize('hints', [{}, {'picky': ['yes']}])
def test_who_lets_all_pass_is_not_asked_what_is_given_up(hints):
    decision = decide(a_table(*a_row_of(3)), a_request(hints=hints), Pipeline([GivesUp()], []))
    assert decision.is_placed
    assert len(decision.relaxed) == len(hints)


class Broken(Filter):
    reason = 'never'

    def mask(self, hosts, spec):
        raise RuntimeError('out of cheese')


class BrokenNames(PairwiseFilter):
    def removed_for(self, hosts, spec, consumer):
        return [len(hosts)]


class NegativeNames(PairwiseFilter):
    def removed_for(self, hosts, spec, consumer):
        return np.array([-1])


class FractionNames(PairwiseFilter):
    def removed_for(self, hosts, spec, consumer):
        return [0.5]


class NamesTwice(PairwiseFilter):
    """Names the first host, as often as it likes."""

    reason = 'twice'

    def removed_for(self, hosts, spec, consumer):
        return [0, 0, 0]


def test_a_host_that_is_named_twice_is_removed_once():
    decision = decide(a_table(a_host(1), a_host(2)), a_request(1), Pipeline([NamesTwice()], []))
    assert hosts_of(decision) == ['cmp-2']
    assert [count.removed for count in decision.members[0].filters] == [1]


class WrongShape(Filter):
    def mask(self, hosts, spec):
        return np.ones(len(hosts) + 1, bool)


class WrongType(Filter):
    def mask(self, hosts, spec):
        return np.ones(len(hosts), int)


class NotANumber(Weigher):
    def raw(self, hosts, spec, rows):
        return np.full(len(rows), np.nan)


@pytest.mark.parametrize(
    'plugin', [Broken, BrokenNames, NegativeNames, FractionNames, WrongShape, WrongType, NotANumber]
)
def test_a_plugin_that_fails_fails_that_request_and_is_named(plugin):
    table = a_table(a_host(1), a_host(2))
    before = state_of(table)
    parts = ([plugin()], []) if issubclass(plugin, Filter) else ([], [plugin()])
    decision = decide(table, a_request(2), Pipeline(*parts))
    assert decision.outcome is Outcome.FAILED
    assert plugin.__name__ in decision.reason
    assert hosts_of(decision) == [None] * len(decision.members)
    assert state_of(table) == before


@pytest.mark.parametrize('plugin', [Broken, BrokenNames, WrongShape, NotANumber])
def test_a_failing_plugin_may_be_skipped_and_the_decision_says_so(plugin):
    parts = ([plugin()], []) if issubclass(plugin, Filter) else ([], [plugin()])
    pipeline = Pipeline(*parts, PipelineSettings(skip_failing=True))
    decision = decide(a_table(a_host(1)), a_request(2), pipeline)
    assert decision.is_placed
    (message,) = decision.relaxed
    assert message.startswith(f'skipped {plugin.__name__}, which failed with ')


def test_details_of_placed_decisions_where_asked():
    hosts = [a_host(1), a_host(2, used={'VCPU': 15}), a_host(3, disabled='x')]
    brief = decide(a_table(*hosts), a_request()).members[0]
    full = decide(a_table(*hosts), a_request(), plugin_loader.load_pipeline(detailed=True)).members[
        0
    ]
    counts = [(f.name, f.removed) for f in brief.filters]
    assert counts == [(f.name, f.removed) for f in full.filters]
    parts_by_filter = {f.name: f.detail.get('parts') for f in full.filters if f.removed}
    assert parts_by_filter == {
        'ComputeFilter': {'disabled': 1},
        'ResourcesFilter': {'too little free VCPU (need 2 vCPU, best has 1 vCPU)': 1},
    }


def test_a_decision_survives_packing():
    request = a_request(2)
    decision = decide(a_table(*a_row_of(4)), request)
    unpacked = decision_codec.unpack(decision_codec.pack(decision, request))
    assert unpacked.request == request
    assert (
        msgspec.structs.replace(unpacked.decision, provider_ids=decision.provider_ids) == decision
    )


def test_verdicts_of_a_huge_request_stay_bounded():
    table = a_table(*(a_host(n, vcpu=2000, ram=10**7, disk=10**6) for n in range(1, 201)))
    rows = len(table)
    decision = decide(table, a_request(1000))
    kept = sum(len(m.verdicts) for m in decision.members)
    assert decision.is_placed
    assert rows <= kept <= 1 << 22


def test_the_digest_follows_what_decides():
    digests = {
        plugin_loader.load_pipeline().digest,
        plugin_loader.load_pipeline(options={'ram_weight_multiplier': 2.0}).digest,
        plugin_loader.load_pipeline(plugin_loader.DEFAULT_FILTERS[:-1]).digest,
        plugin_loader.load_pipeline(tuple(reversed(plugin_loader.DEFAULT_FILTERS))).digest,
        plugin_loader.load_pipeline(subset_size=2).digest,
    }
    assert len(digests) == 5
    assert plugin_loader.load_pipeline().digest in digests
