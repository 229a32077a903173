# SPDX-License-Identifier: Apache-2.0
"""Perfect matches first, then rules given up in order; and the conflicts between rules."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantt import exceptions
from gantt.core.filters.destination import ForcedHostsFilter
from gantt.core.filters.rules import RulesFilter
from gantt.core.messages.request import Purpose
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Outcome
from gantt.core.rules import layers
from gantt.core.rules.expression import Expression
from gantt.core.rules.layers import is_impossible
from gantt.core.rules.parser import parse
from gantt.core.rules.rule import parse_rule, split_rules
from tests.core.builders import NOW, a_host, a_table, hosts_of, state_of
from tests.core.rules import trees
from tests.core.rules.reference import World
from tests.core.rules.worlds import a_pipeline, a_site, an_aggregate, asked, decide


def placed(*rules, table=None, pipeline=None, **spec):
    decision = decide(table or a_site(), asked(*rules, **spec), pipeline or a_pipeline())
    return decision, hosts_of(decision)


# -- the ladder ----------------------------------------------------------------------


def test_without_rules_the_filter_says_nothing():
    table, request = a_site(), asked()
    assert RulesFilter().mask_among(table, request.spec, np.ones(3, bool)) is None
    decision, hosts = placed()
    assert hosts == ['cmp-3']
    assert decision.relaxed == [] and decision.contradiction is None
    assert decision.members[0].level == 0


def test_a_hard_rule_is_kept_whatever_the_weights():
    assert placed('location in "s1"')[1] == ['cmp-2']
    assert placed('hard: location in "s1" and "SSD" in traits')[1] == ['cmp-1']


def test_a_perfect_match_is_taken_before_any_rule_is_given_up():
    decision, hosts = placed('drop 1: location in "s1"', 'drop 2: "SSD" in traits')
    assert hosts == ['cmp-1']
    assert decision.members[0].level == 0
    assert decision.relaxed == []


def test_rules_are_given_up_in_their_order_and_the_answer_says_which():
    decision, hosts = placed('drop 2: location in "s1"', 'drop 1: "GPU" in traits')
    assert hosts == ['cmp-2']
    member = decision.members[0]
    assert member.level == 1
    assert member.given_up == ['drop 1: "GPU" in traits (user)']
    assert decision.relaxed == ['up to step 1: drop 1: "GPU" in traits (user)']
    assert placed('drop 1: location in "s1"', 'drop 2: "GPU" in traits')[1] == ['cmp-3']


def test_a_rule_that_can_be_kept_is_kept_although_an_earlier_step_was_given_up():
    # No host is in s9; of the others only cmp-1 has SSD in s1.
    decision, hosts = placed(
        'drop 3: location in "s9"', 'drop 1: "SSD" in traits', 'drop 2: location in "s1"'
    )
    assert hosts == ['cmp-1']
    assert decision.members[0].level == 3
    assert decision.members[0].given_up == ['drop 3: location in "s9" (user)']


def test_rules_of_one_step_go_together():
    decision, hosts = placed('drop 1: location in "s1"', 'drop 1: "GPU" in traits')
    assert hosts == ['cmp-3']  # each misses one of the two: the step is gone for all
    assert decision.members[0].given_up == ['drop 1: location in "s1" (user)']


def test_soft_rules_weigh_and_are_never_in_the_way():
    assert placed('soft 5: location in "s1.r1"')[1] == ['cmp-1']
    decision, hosts = placed('soft 5: location in "s9"')
    assert hosts == ['cmp-3']
    score = decision.members[0].scores[0]
    assert score.raw[1] == 0.0
    decision, _ = placed('soft 3: location in "s1"', 'soft 1: "SSD" in traits')
    shares = {s.host: s.normalized[1] for s in decision.members[0].scores}
    assert shares == {'cmp-1': 1.0, 'cmp-2': 0.75, 'cmp-3': 0.25}


def test_each_member_has_the_best_level_that_is_left_for_it():
    table = a_site()
    decision = decide(table, asked('drop 1: location in "s1.r1"', count=6), a_pipeline())
    assert hosts_of(decision) == ['cmp-1'] * 4 + ['cmp-3', 'cmp-3']
    assert [m.level for m in decision.members] == [0] * 4 + [1] * 2
    assert decision.relaxed == ['for 2 members up to step 1: drop 1: location in "s1.r1" (user)']


def test_a_rule_about_what_picks_change_is_asked_after_each_pick():
    decision, hosts = placed('drop 1: instances < 2', count=7)
    assert [hosts.count(name) for name in ('cmp-1', 'cmp-2', 'cmp-3')] == [2, 2, 3]
    assert [m.level for m in decision.members] == [0] * 6 + [1]
    decision, hosts = placed('instances < 2', count=7)
    assert decision.outcome is Outcome.NO_VALID_HOST
    assert 'member 7 of 7' in decision.reason


def test_a_refused_request_gives_up_nothing_and_leaves_the_table_as_it_was():
    table = a_site()
    before = state_of(table)
    decision = decide(
        table, asked('drop 1: location in "s9"', 'instances < 1', count=4), a_pipeline()
    )
    assert decision.outcome is Outcome.NO_VALID_HOST
    assert decision.relaxed == []
    assert all(m.level == 0 and not m.given_up for m in decision.members)
    assert state_of(table) == before


def test_rules_are_not_asked_for_a_rebuild_nor_of_forced_hosts():
    usual = a_pipeline()
    pipeline = Pipeline([ForcedHostsFilter(), *usual.filters], usual.weighers)
    forced = {'force_hosts': ['cmp-1'], 'pipeline': pipeline}
    assert placed('location in "s9"', **forced)[1] == ['cmp-1']
    assert placed('location in "s9"', purpose=Purpose.REBUILD, **forced)[1] == ['cmp-1']


# -- layers --------------------------------------------------------------------------


def test_rules_of_the_configuration_bind_everybody():
    pipeline = a_pipeline('location in "s1"; request.resources.VCPU < 8 or "SSD" in traits')
    assert placed(pipeline=pipeline)[1] == ['cmp-2']
    big = {'VCPU': 8, 'MEMORY_MB': 1024}
    assert placed(pipeline=pipeline, resources=big)[1] == ['cmp-1']


def test_rules_of_a_flavor_bind_whoever_takes_it():
    assert placed(flavor={'ssd': '"SSD" in traits', 'site': 'location in "s1"'})[1] == ['cmp-1']


def test_rules_of_an_aggregate_bind_its_hosts_only():
    gold = an_aggregate(1, 'gold', 'cmp-3', rule__big='request.resources.VCPU >= 8')
    table = a_table(a_host(1), a_host(3, ram=65536), aggregates=[gold])
    assert placed(table=table)[1] == ['cmp-1']
    assert placed(table=table, resources={'VCPU': 8})[1] == ['cmp-3']
    decision, _ = placed('name == "cmp-3"', table=table)
    assert decision.contradiction.rules == [
        'request.resources.VCPU >= 8 (aggregate gold, rule:big)',
        'name == "cmp-3" (user)',
    ]


def test_a_rule_of_an_aggregate_that_is_not_understood_closes_its_hosts():
    bad = an_aggregate(1, 'gold', 'cmp-3', rule__big='request.resources.VCPUS ?')
    table = a_table(a_host(1), a_host(3, ram=65536), aggregates=[bad])
    assert placed(table=table)[1] == ['cmp-1']
    decision, _ = placed('name == "cmp-3"', table=table)
    assert "1 against the operator's rule big of an aggregate" in decision.reason
    (rules_result,) = [f for f in decision.members[0].filters if f.name == 'RulesFilter']
    assert any(
        'against the rule rule:big, which is not understood: character 25' in part
        for part in rules_result.detail['parts']
    )
    table.set_aggregates([an_aggregate(1, 'gold', 'cmp-3', rule__big='true')])
    assert placed('name == "cmp-3"', table=table)[1] == ['cmp-3']


def test_no_user_can_relax_or_contradict_a_rule_of_the_operator():
    for operator in ('location in "s1"', 'drop 1: location in "s1"'):
        pipeline = a_pipeline(operator)
        for user in ('name == "cmp-3"', 'hard: "GPU" in traits', 'location not in "s1"'):
            decision, _ = placed(user, pipeline=pipeline)
            assert decision.outcome is Outcome.NO_VALID_HOST, (operator, user)
            lines = [f'{operator} (configuration, rule 1)', f'{user} (user)']
            assert decision.contradiction.rules == lines
            assert 's1' not in decision.reason.replace(user, '')
            assert "the operator's rule 1 of the configuration" in decision.reason
        decision, hosts = placed('drop 1: "GPU" in traits', pipeline=pipeline)
        assert hosts == ['cmp-2']
        assert decision.members[0].given_up == ['drop 1: "GPU" in traits (user)']


def test_the_operator_gives_up_its_own_rules_where_nobody_fits():
    pipeline = a_pipeline('drop 1: location in "s1"')
    decision, hosts = placed(pipeline=pipeline, resources={'MEMORY_MB': 60000})
    assert hosts == ['cmp-3']
    assert decision.relaxed == ['up to step 1: drop 1: location in "s1" (configuration, rule 1)']
    decision, _ = placed(
        'drop 1: "NPU" in traits', pipeline=pipeline, resources={'MEMORY_MB': 60000}
    )
    assert decision.members[0].level == 2  # the steps of users come before the operator's


def test_all_soft_rules_of_a_user_weigh_less_than_the_lightest_of_the_operator():
    pipeline = a_pipeline(preferences='soft 0.1: location in "s1.r1"; soft 4: enabled')
    mine = [f'soft 1000: location in "s1.r{n}"' for n in (2, 2, 2)]
    decision, _ = placed(*mine, pipeline=pipeline)
    raw = {s.host: s.raw[1] for s in decision.members[0].scores}
    assert raw['cmp-1'] > raw['cmp-2'] > raw['cmp-3']


def test_which_facts_users_may_ask_about_is_the_operators_choice():
    rule = RulesFilter({'user_facts': ['zone', 'location']})
    rule.check_request(asked('zone == "a" and request.resources.VCPU < 8').spec)
    rule.check_request(asked(flavor={'x': 'name == "cmp-1"'}).spec)
    with pytest.raises(exceptions.InvalidRule, match='may not be about name') as caught:
        rule.check_request(asked('zone == "a"', 'name == "cmp-1"').spec)
    assert caught.value.kwargs['field'] == 'request.spec.hints.rules[1]'


@pytest.mark.parametrize(
    ('options', 'said'),
    [
        ({'operator_rules': 'zone = "a"'}, 'rule 1: character 6: expected a relation'),
        ({'operator_rules': 'enabled; soft 1: enabled'}, 'a soft rule'),
        ({'user_facts': ['zome']}, 'expected the name of a fact, got zome'),
        ({'operator_rules': 'enabled;' * 33}, 'at most 32 rules, got 33'),
    ],
    ids=range(4),
)
def test_options_are_checked_when_they_are_read(options, said):
    with pytest.raises(exceptions.PluginError, match=said):
        RulesFilter(options)


def test_a_wrong_rule_is_refused_before_anything_is_placed():
    table = a_site()
    with pytest.raises(exceptions.InvalidRule) as caught:
        decide(table, asked('enabled', 'drop 1: free.VCPU >'), a_pipeline())
    assert caught.value.message.startswith('request.spec.hints.rules[1]: character 20: ')
    with pytest.raises(exceptions.InvalidRule, match=r'extra_specs\.rule.x: character 1: '):
        decide(table, asked(flavor={'x': 'zome == "a"'}), a_pipeline())
    with pytest.raises(exceptions.InvalidRule, match='at most 32 rules'):
        decide(table, asked(*['enabled'] * 33), a_pipeline())


WRONG = [
    ('soft: enabled', 5, 'a weight above 0'),
    ('soft x: enabled', 5, 'a weight above 0'),
    ('soft 0: enabled', 5, 'a weight above 0'),
    ('soft 1001: enabled', 5, 'a weight above 0'),
    ('soft -1: enabled', 5, 'a weight above 0'),
    ('drop 0: enabled', 5, 'a number from 1'),
    ('drop 1.5: enabled', 5, 'a number from 1'),
    ('  drop 1: enabledd', 11, 'did you mean enabled?'),
    ('{"rule": {"op": "known", "fact": "zone"}, "soft": 1, "drop": 1}', 0, 'got both'),
    ('{"rule": {"op": "known", "fact": "zone"}, "soft": -1}', 0, 'a weight above 0'),
    ('{"rule": {"op": "known", "fact": "zone"}, "drop": 0}', 0, 'a number from 1'),
    ('{"rule": {"op": "known", "fact": "zome"}}', 0, 'did you mean zone?'),
    ('{"rules": 1}', 0, 'unknown field `rules`'),
]


@pytest.mark.parametrize(('text', 'at', 'said'), WRONG, ids=range(len(WRONG)))
def test_how_much_a_rule_binds_is_checked(text, at, said):
    with pytest.raises(exceptions.InvalidRule) as caught:
        parse_rule(text)
    assert caught.value.kwargs['at'] == at
    assert said in caught.value.message


@trees.unhurried
@given(st.text(max_size=80) | st.sampled_from(WRONG).map(lambda w: w[0]), st.text(max_size=10))
def test_any_text_is_a_rule_with_its_strength_or_refused(text, more):
    for each in (text, more + text, text + more, 'soft ' + text, 'drop 1:' + text, '{' + text):
        try:
            parse_rule(each)
        except exceptions.InvalidRule as e:
            assert 0 <= e.kwargs['at'] <= len(each) + 1


def test_rules_in_one_text_end_at_semicolons_outside_quotes():
    assert split_rules('a; b\n c == "x;\\"y" ;; d == \';\'') == [
        'a',
        'b',
        'c == "x;\\"y"',
        "d == ';'",
    ]
    assert split_rules(' \n;') == []


# -- against plain forms -------------------------------------------------------------

drops = st.builds(lambda n, expr: (f'drop {n}: ', expr), st.integers(1, 3), trees.conditions)
hards = trees.conditions.map(lambda expr: ('', expr))


@trees.unhurried
@given(
    st.lists(st.one_of(drops, hards), max_size=3),
    st.lists(st.one_of(drops, drops, hards), max_size=4),
    trees.clouds(),
    trees.specs,
    st.integers(0, 2**32),
)
def test_the_ladder_is_the_one_that_tries_step_after_step(operator, user, cloud, spec, seed):
    hosts, aggregates = cloud
    table, world = a_table(*hosts, aggregates=aggregates), World(aggregates, spec, NOW)
    alive = np.array([random.Random(seed + i).random() < 0.7 for i in range(len(hosts))])
    remaining = [h for h, yes in zip(hosts, alive, strict=True) if yes]
    ladder_layers = []
    for layer in (operator, user):
        remaining, kept = _climbed(layer, remaining, world)
        ladder_layers.append(
            layers.layer_of([parse_rule(prefix + trees.tree.to_text(e)) for prefix, e in layer])
        )
    mask = layers.narrow_hosts(table, spec, alive, ladder_layers)
    assert [h for h, yes in zip(hosts, mask, strict=True) if yes] == remaining
    for row in np.flatnonzero(mask):
        missed = {
            (step, text) for step, text in layers.rules_given_up(table, spec, row, ladder_layers)
        }
        assert len({step for step, _ in missed}) <= sum(len(f.steps) for f in ladder_layers)


def _climbed(layer, hosts, world):
    """Try steps from none given up to all, later ones given up as late as can be."""
    hard = [e for prefix, e in layer if not prefix]
    hosts = [h for h in hosts if all(world.holds(e, h) for e in hard)]
    orders = sorted({prefix for prefix, _ in layer if prefix})
    # Sets of steps to give up, in the order of trying: the last steps last.
    for given_up in sorted(
        itertools.product((0, 1), repeat=len(orders)), key=lambda bits: bits[::-1]
    ):
        kept = [e for prefix, e in layer if prefix and not given_up[orders.index(prefix)]]
        remaining = [h for h in hosts if all(world.holds(e, h) for e in kept)]
        if remaining:
            return remaining, kept
    return [], []


@trees.unhurried
@given(st.lists(st.one_of(drops, hards), max_size=4), trees.clouds(), st.integers(1, 6))
def test_members_one_by_one_are_placed_as_by_a_fresh_look_at_each(rules, cloud, count):
    hosts, aggregates = cloud
    texts = [prefix + trees.tree.to_text(expr) for prefix, expr in rules]
    request = asked(*texts, count=count, resources={'VCPU': 1}, alternates=1)
    quick = decide(a_table(*hosts, aggregates=aggregates), request, a_pipeline())
    fresh = decide(a_table(*hosts, aggregates=aggregates), request, a_pipeline(detailed=True))
    assert hosts_of(quick) == hosts_of(fresh)
    assert quick.relaxed == fresh.relaxed
    for member, other in zip(quick.members, fresh.members, strict=True):
        assert (member.verdicts, member.scores, member.level) == (
            other.verdicts,
            other.scores,
            other.level,
        )


@trees.unhurried
@given(st.lists(st.one_of(drops, hards), max_size=3), trees.clouds(), st.randoms())
def test_the_order_of_filters_changes_nobody(rules, cloud, rng):
    hosts, aggregates = cloud
    texts = [prefix + trees.tree.to_text(expr) for prefix, expr in rules]
    request = asked(*texts, resources={'VCPU': 2})
    usual = a_pipeline()
    filters = list(usual.filters)
    rng.shuffle(filters)
    other = Pipeline(filters, usual.weighers)
    tables = [a_table(*hosts, aggregates=aggregates) for _ in range(2)]
    usual_decision, other_decision = (
        decide(t, request, p) for t, p in zip(tables, (usual, other), strict=True)
    )
    assert hosts_of(usual_decision) == hosts_of(other_decision)
    assert usual_decision.members[0].survivors == other_decision.members[0].survivors


# -- contradictions ------------------------------------------------------------------


def test_the_rules_that_stand_in_the_way_are_named_and_no_others():
    decision, _ = placed('location in "s1"', '"GPU" in traits', 'enabled', 'free.VCPU >= 4')
    assert decision.contradiction.rules == [
        'location in "s1" (user)',
        '"GPU" in traits (user)',
    ]
    assert decision.contradiction.says == 'no host, however empty, meets all of these rules'
    assert decision.reason.endswith(decision.contradiction.line)
    decision, _ = placed('free.VCPU >= 400')
    assert decision.contradiction.line == 'no host now meets this rule: free.VCPU >= 400 (user)'
    decision, _ = placed('location in "s1"', resources={'MEMORY_MB': 60000})
    assert decision.contradiction.line == (
        'of the one host that fits otherwise none meets this rule: location in "s1" (user)'
    )


def test_rules_that_no_host_could_ever_meet_are_told_from_those_that_none_meets_now():
    for rules, says in (
        (['instances < 3', 'instances > 2'], 'no host now meets this rule'),
        (['instances < 3', 'instances >= 3'], 'no host could ever meet all of these rules'),
        (['free.VCPU == 4 and free.VCPU < 4'], 'no host could ever meet this rule'),
        (['location in "s1"', 'location in ["s2", "s3.r1"]'], 'no host could ever meet all of'),
    ):
        decision, _ = placed(*rules)
        assert decision.contradiction.says.startswith(says), rules


@trees.unhurried
@given(st.lists(trees.conditions, max_size=3), trees.clouds(), trees.specs)
def test_what_is_called_impossible_holds_for_no_host(conditions, cloud, spec):
    hosts, aggregates = cloud
    table = a_table(*hosts, aggregates=aggregates)
    if is_impossible(conditions):
        masks = [Expression(expr).mask(table, spec) for expr in conditions]
        assert not np.logical_and.reduce(masks).any()


NEVER = [
    ('instances > 3 and instances < 3', True),
    ('instances >= 3 and instances <= 3', False),
    ('instances > 3 and instances <= 3', True),
    ('instances in 1..4 and instances in 5..', True),
    ('instances in 1..4 and instances in 4..', False),
    ('instances in [1, 2] and instances == 3', True),
    ('instances in [1, 2] and instances > 1', False),
    ('zone == "a" and zone == "b"', True),
    ('zone in ["a", "b"] and zone == "b"', False),
    ('enabled and enabled == false', True),
    ('location in "a.b" and location in "a"', False),
    ('location in "a.b" and location in "*.c"', True),
    ('location in "a.b" and location in "*.b.c"', False),
    ('false', True),
    ('zone == v1 and zone == v1.0', False),
    ('traits == "a" and traits == "b"', False),
]


@pytest.mark.parametrize(('text', 'never'), NEVER, ids=range(len(NEVER)))
def test_what_is_impossible(text, never):
    assert is_impossible([parse(text).tree]) is never


def test_rules_are_not_blamed_where_nobody_has_room():
    decision, _ = placed('location in "s1"', resources={'MEMORY_MB': 600000})
    assert decision.outcome is Outcome.NO_VALID_HOST
    assert decision.contradiction is None
    decision, _ = placed('location in "s9"', resources={'MEMORY_MB': 600000})
    assert decision.contradiction.rules == ['location in "s9" (user)']


def test_the_counts_of_a_refusal_name_the_rules_and_add_up():
    decision, _ = placed('location in "s1"', '"GPU" in traits')
    assert decision.reason.startswith(
        '0/3 hosts fit: 2 against the rule "GPU" in traits (user), '
        '1 against the rule location in "s1" (user)'
    )
    assert decision.nearest == [
        'fits on cmp-1 and 1 more but for: "GPU" in traits (user); '
        'fits on cmp-3 but for: location in "s1" (user)',
    ]


@trees.unhurried
@given(
    st.lists(st.lists(st.booleans(), min_size=5, max_size=5), max_size=7),
    st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_a_conflict_is_minimal_by_brute_force(lines, base):
    base, masks = np.array(base), [np.array(line) for line in lines]

    def somebody(chosen):
        mask = base.copy()
        for i in chosen:
            mask &= masks[i]
        return mask.any()

    if somebody(range(len(masks))):
        return
    minimal = layers.minimal_conflict(base, masks)
    assert not somebody(minimal)
    for size in range(len(minimal)):
        for fewer in itertools.combinations(minimal, size):
            assert somebody(fewer)


@trees.unhurried
@given(st.lists(hards, min_size=1, max_size=5), st.lists(drops | hards, max_size=3), trees.clouds())
def test_a_conflict_of_rules_is_minimal_among_the_hosts(user, operator, cloud):
    hosts, aggregates = cloud
    table = a_table(*hosts, aggregates=aggregates)
    spec = trees.RequestSpec(resources={'VCPU': 1})
    alive = np.array([h.free('VCPU') >= 1 for h in hosts])
    conditions = [
        layers.layer_of([parse_rule(prefix + trees.tree.to_text(e)) for prefix, e in rules])
        for rules in (operator, user)
    ]
    rules, scope = layers.conflicting_rules(table, spec, alive, conditions)
    fits = layers.narrow_hosts(table, spec, alive, conditions).any()
    assert not (rules and fits)
    if alive.any() and not fits:
        assert rules
    if scope is layers.Scope.EVER:
        trees_of = [rule.condition.tree for rule in rules]
        assert is_impossible(trees_of)
        for i in range(len(rules)):
            assert not is_impossible(trees_of[:i] + trees_of[i + 1 :])
        return
    base = np.ones(len(hosts), bool) if scope is layers.Scope.KNOWN else alive
    masks = [rule.mask(table, spec) for rule in rules]
    for chosen in itertools.combinations(range(len(rules)), max(0, len(rules) - 1)):
        if rules:
            assert np.logical_and.reduce([base, *(masks[i] for i in chosen)]).any()
    if rules:
        assert not np.logical_and.reduce([base, *masks]).any()
