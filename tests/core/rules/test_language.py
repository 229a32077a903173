# SPDX-License-Identifier: Apache-2.0
"""The rule language against a plain evaluator, and against everything that is no rule."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantt import exceptions
from gantt.core.messages.report import ReportedMetric
from gantt.core.rules import tree
from gantt.core.rules.expression import Expression
from gantt.core.rules.parser import checked_tree, parse
from gantt.core.table.metrics import DeclaredMetric
from tests.core.builders import NOW, a_host, a_table
from tests.core.rules import trees
from tests.core.rules.reference import World


@trees.unhurried
@given(trees.conditions, trees.clouds(), trees.specs, trees.declared)
def test_it_says_of_every_host_what_the_plain_evaluator_says(expr, cloud, spec, declared):
    hosts, aggregates = cloud
    table = a_table(*hosts, aggregates=aggregates)
    table.set_metrics(declared)
    world = World(aggregates, spec, NOW, declared={metric.name: metric for metric in declared})
    expression = Expression(expr)
    holds = expression.mask(table, spec).tolist()
    assert dict(zip(table.names, holds, strict=True)) == {
        host.name: world.holds(expr, host) for host in hosts
    }
    assert [expression.holds(table, spec, row) for row in range(len(table))] == holds


@trees.unhurried
@given(trees.conditions)
def test_both_forms_come_back_as_the_same_tree(expr):
    assert parse(tree.to_text(expr)).tree == expr
    assert trees.from_json(trees.to_json(expr)).tree == expr
    assert checked_tree(expr).text == tree.to_text(expr)


WRONG = [
    ('', 1, 'expected a comparison such as free.VCPU >= 4, got the end'),
    ('fre.VCPU >= 4', 1, 'expected the name of a fact, got fre.VCPU; did you mean free.CLASS?'),
    ('enabled and hypervisor.tipe == "x"', 13, 'did you mean hypervisor.type?'),
    ('free >= 4', 1, 'expected free.CLASS, got free'),
    ('zone.x == "a"', 1, "zone has no 'x'; expected zone alone"),
    ('free.VCPU >= "4"', 14, 'expected a number of at most 2^53, got "4"'),
    ('free.VCPU >= 9007199254740993', 14, 'expected a number of at most 2^53'),
    ('"x" < location', 5, 'location is a path: expected one of ==, in, !=, got >'),
    ('location in "a..b"', 13, 'expected a place such as "site1.room2", got "a..b"'),
    ('zone = "a"', 6, "expected a relation such as '==' or '>=', got '='"),
    ('zone in ["a", 4]', 9, 'expected a list such as ["a", "b"] or a range of versions'),
    ('zone in ["a" "b"]', 14, 'expected \',\', got "b"'),
    ('zone in ["a", zone]', 15, "expected a text in quotes, a number or a version, got 'zone'"),
    ('instances in "abc"', 14, 'expected numbers: a list such as [1, 2] or a range such as'),
    ('hypervisor.version >= "4"', 23, 'expected a version such as v4.2.1, got "4"'),
    ('hypervisor.version >= v4.2.1.7', 23, 'expected a version such as v4.2.1, got v4.2.1.7'),
    ('enabled == 1', 12, 'enabled is a yes or no: expected true or false, got 1'),
    ('enabled < true', 9, 'expected one of ==, !=, got <'),
    ('zone == name', 9, 'zone is a text: expected a text, or a fact of the request, got name'),
    ('zone', 5, "expected a relation such as '==' or 'in', got the end"),
    ('1 == 1', 1, "expected a fact on one side of '=='"),
    ('"a" contains zone', 1, "expected a fact on the left side of 'contains'"),
    ('(enabled', 9, "expected ')', got the end"),
    ('enabled)', 8, "expected 'and', 'or' or the end, got ')'"),
    ('enabled && enabled', 9, "expected 'and', got '&&'"),
    ('! enabled', 1, "expected 'not' or '!=', got '!'"),
    ('enabled and', 12, 'expected a comparison'),
    ('known "zone"', 7, 'expected the name of a fact, got "zone"'),
    ('zone not == "a"', 10, "expected 'in' or 'contains', got '=='"),
    ('zone == "a', 9, 'expected a text that ends with "'),
    ('zone == "\\n"', 9, 'with a backslash before quotes and backslashes in it only'),
    ('zone == \N{CYRILLIC SMALL LETTER A}', 9, 'expected a fact, a value or a connective, got'),
    ('instances in 1..x', 17, "expected 'and', 'or' or the end, got 'x'"),
    ('instances in ..x', 16, "expected a number or a version, got 'x'"),
]


@pytest.mark.parametrize(('text', 'at', 'said'), WRONG, ids=range(len(WRONG)))
def test_an_error_names_the_character_and_what_was_expected(text, at, said):
    with pytest.raises(exceptions.InvalidRule) as caught:
        parse(text, field='request.spec.hints.rules[0]')
    error = caught.value
    assert error.kwargs['at'] == at
    assert error.message.startswith(f'request.spec.hints.rules[0]: character {at}: ')
    assert said in error.message


WRONG_TREES = [
    ('[]', 'expected an object'),
    ('{"op": "xor"}', "Invalid value 'xor'"),
    ('{"op": "and", "of": 3}', 'expected a list'),
    ('{"op": "known", "fact": "zone", "x": 1}', 'unknown field `x`'),
    ('{"op": "and", "of": [{"op": "==", "fact": "zome", "value": "a"}]}', 'did you mean zone?'),
    ('{"op": ">", "fact": "free.VCPU", "value": "a"}', 'free.VCPU > "a"'),
    ('{"op": "in", "fact": "instances", "value": {"is": "range"}}', 'instances is a number'),
    ('nonsense', 'malformed'),
]


@pytest.mark.parametrize(('text', 'said'), WRONG_TREES, ids=range(len(WRONG_TREES)))
def test_an_error_in_a_tree_says_which_part(text, said):
    with pytest.raises(exceptions.InvalidRule) as caught:
        trees.from_json(text)
    assert said in caught.value.message
    assert caught.value.kwargs['at'] == 0


BEYOND = [
    ('enabled' + ' ' * tree.TEXT_MAX, 'expected at most 4096 characters'),
    (' and '.join(['enabled'] * 128), 'at most 128 tests and connectives'),
    ('(' * 40 + 'enabled' + ')' * 40, 'at most 12 levels of nesting'),
    ('not ' * 40 + 'enabled', 'at most 12 levels of nesting'),
    ('zone in [' + ','.join(['"a"'] * 65) + ']', 'at most 64 items in a list'),
    (f'zone == "{"a" * 256}"', 'at most 255 characters in one piece'),
    (f'free.{"A" * 256} > 1', 'at most 255 characters in one piece'),
    (f'instances > {"9" * 300}', 'at most 255 characters in one piece'),
    (f'instances > {"9" * 200}', 'a number of at most 2^53'),
    ('instances > 1e999', 'a number of at most 2^53'),
]


@pytest.mark.parametrize(('text', 'said'), BEYOND, ids=range(len(BEYOND)))
def test_what_is_beyond_a_bound_is_refused_before_anything_is_evaluated(text, said):
    with pytest.raises(exceptions.InvalidRule, match=re.escape(said)):
        parse(text)


def test_a_tree_beyond_a_bound_is_refused_as_well():
    enabled = tree.Equal(fact='enabled', value=True)
    deep = enabled
    for _ in range(tree.DEPTH_MAX):
        deep = tree.Not(of=deep)
    for expr, problem in (
        (deep, 'levels of nesting'),
        (tree.Or(of=(enabled,) * tree.NODES_MAX), 'tests and connectives'),
        (tree.In(fact='zone', value=('a',) * 65), 'items in a list'),
        (tree.Equal(fact='zone', value='a' * 256), 'texts of at most'),
        (tree.Greater(fact='instances', value=float('nan')), 'a number of at most'),
    ):
        with pytest.raises(exceptions.InvalidRule, match=problem):
            checked_tree(expr)
    for text in ('{"op":"not","of":' * 50_000, '[' * 1_000, '{"op":"not","of":' * 900):
        with pytest.raises(exceptions.InvalidRule):
            trees.from_json(text)


_SAID = (
    'and or not in contains known true false ( ) [ ] , .. < <= == != = v4.2 "a" \'b\' "s1.r1" 4 '
    '-1.5 zone location free.VCPU traits metadata."a b" hypervisor.version request.hints.x enabled '
    'x.y "\\ & é'
)
WORDS = st.sampled_from(_SAID.split(' '))


@trees.unhurried
@given(st.one_of(st.text(max_size=200), st.lists(WORDS, max_size=30).map(' '.join)))
def test_any_text_is_a_rule_or_refused(text):
    table = a_table(a_host(1, location='s1.r1'))
    spec = trees.RequestSpec(resources={'VCPU': 1})
    try:
        expression = parse(text)
    except exceptions.InvalidRule as e:
        assert 1 <= e.kwargs['at'] <= len(text) + 1
        return
    assert expression.mask(table, spec).shape == (1,)
    assert parse(expression.text).tree == expression.tree


@trees.unhurried
@given(st.one_of(st.text(max_size=200), st.lists(WORDS, max_size=30).map(' '.join)))
def test_any_json_is_a_rule_or_refused(text):
    try:
        trees.from_json(text)
    except exceptions.InvalidRule:
        return


@trees.unhurried
@given(trees.conditions, st.data())
def test_a_spoilt_rule_is_a_rule_or_refused(expr, data):
    text = tree.to_text(expr)
    at = data.draw(st.integers(0, len(text)))
    spoilt = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 3)) :]
    try:
        parse(spoilt)
    except exceptions.InvalidRule as e:
        assert 1 <= e.kwargs['at'] <= len(spoilt) + 1


PLAIN = st.text(st.characters(codec='ascii', exclude_characters='"\\'), max_size=12)


@given(st.lists(PLAIN, min_size=1, max_size=tree.LIST_MAX), st.sampled_from(['', ' ', '\n\t']))
def test_a_list_is_the_same_however_its_texts_are_quoted(texts, space):
    plain = f',{space}'.join(f'"{text}"' for text in texts)
    other = f'{space},'.join(
        "'" + text.replace("'", "\\'") + "'" if at % 2 else f'"{text}"'
        for at, text in enumerate(texts)
    )
    for quoted in (plain, other):
        expression = parse(f'not (zone in [{space}{quoted}{space}]) and instances < 5').tree
        within = tree.In(fact='zone', value=tuple(texts))
        assert expression == tree.And(
            of=(tree.Not(of=within), tree.Less(fact='instances', value=5))
        )


def test_a_list_at_a_wrong_place_or_with_too_much_in_it_is_refused():
    for text, at, problem in (
        ('zone == "a" ["b"]', 13, "expected 'and', 'or' or the end, got '['"),
        ('known ["a"]', 7, "expected the name of a fact, got '['"),
        ('["a"] contains zone', 1, "expected a fact on the left side of 'contains'"),
        ('zone in [' + ', '.join(['"a"'] * 65) + ']', 9, 'expected at most 64 items'),
        (f'zone in ["{"a" * 256}"]', 10, 'expected at most 255 characters in one piece'),
    ):
        with pytest.raises(exceptions.InvalidRule) as error:
            parse(text)
        assert error.value.kwargs['at'] == at
        assert problem in error.value.message


def test_which_facts_it_is_about():
    expression = parse('free.VCPU >= request.resources.VCPU or known location')
    assert [fact.name for fact in expression.facts] == ['free', 'request.resources', 'location']
    assert expression.volatile
    assert not parse('cap.VCPU >= 4 and location in "a"').volatile


def test_what_is_not_known_makes_neither_a_condition_nor_its_opposite_hold():
    table = a_table(a_host(1, location='s1.r1'), a_host(2))
    spec = trees.RequestSpec(resources={'VCPU': 1})
    for text, held in (
        ('location in "s1"', [True, False]),
        ('not location in "s2"', [True, False]),
        ('location not in "s2"', [True, False]),
        ('known location', [True, False]),
        ('not known location', [False, True]),
        ('metrics.load < 5 or metrics.load >= 5', [False, False]),
        ('not known location or location not in "s2"', [True, True]),
        ('traits contains "A"', [False, False]),
        ('"A" not in traits', [True, True]),
    ):
        assert parse(text).mask(table, spec).tolist() == held, text


def test_a_metric_out_of_its_bounds_or_too_old_is_not_known():
    reports = [(300.0, 0.0), (20.0, 100.0), (20.0, 0.0)]
    table = a_table(
        *(
            a_host(n, metrics={'temp': ReportedMetric(value=value, age_seconds=age)})
            for n, (value, age) in enumerate(reports, 1)
        )
    )
    spec = trees.RequestSpec(resources={'VCPU': 1})
    hot, cold, reported = map(
        parse, ('metrics.temp >= 200', '50 > metrics.temp', 'known metrics.temp')
    )

    def said():
        return [condition.mask(table, spec).tolist() for condition in (hot, cold, reported)]

    assert said() == [[True, False, False], [False, True, True], [True, True, True]]
    table.set_metrics([DeclaredMetric(name='temp', lower=0, upper=100, stale_seconds=60)])
    assert said() == [[False] * 3, [False, False, True], [False, False, True]]
    table.now += 51  # the reports are 10 seconds old at first
    assert said() == [[False] * 3] * 3
