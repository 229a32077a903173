# SPDX-License-Identifier: Apache-2.0
"""Queries of Nova's JsonFilter compiled to rules hold where a plain reading of them does."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantt import exceptions
from gantt.core.messages.report import Hypervisor, ReportedMetric
from gantt.core.messages.request import RequestSpec
from gantt.core.rules import nova_facts as facts
from gantt.core.rules import nova_json, tree
from gantt.core.rules.parser import parse
from tests.core.builders import a_host, a_table, an_id
from tests.core.filters.reference_facts import Nots, answer
from tests.core.rules import trees

SPEC = RequestSpec(resources={'VCPU': 1})


def the_hosts():
    return a_table(
        a_host(1, vcpu=4, used={'VCPU': 2}, hypervisor=Hypervisor(type='QEMU', stats={'x': 'a'})),
        a_host(
            2,
            vcpu=8,
            node='n2',
            metrics={'stats.x': ReportedMetric(value=5.0)},
            cell=an_id(1),
            hypervisor=Hypervisor(cpu_info={'arch': 'a', 'features': [], 'cores': 5}),
        ),
        a_host(
            3,
            ram=1024,
            hypervisor=Hypervisor(host_ip='10.0.0.3', cpu_info='{"arch": 5}'),
            metrics={'stats.failed_builds': ReportedMetric(value=2.0)},
        ),
        a_host(
            4,
            hypervisor=Hypervisor(stats={'x': '5'}, cpu_info={'cores': {'a': [1]}}),
            metrics={'stats.y': ReportedMetric(value=0.5)},
            disabled='off',
        ),
    )


looks = st.sampled_from(
    [
        '$host',
        '$hypervisor_type',
        '$host_ip',
        '$vcpus_total',
        '$free_ram_mb',
        '$stats.x',
        '$stats.y',
        '$cpu_allocation_ratio',
        '$num_instances',
        '$failed_builds',
        '$num_io_ops',
        '$cpu_info.arch',
        '$cpu_info.features',
        '$cpu_info.cores',
        '$cpu_info.cores.a',
        '$cell_uuid',
        '$stats',
        '$service',
        '$service.disabled',
        '$nothing',
        '$',
        '$stats.x.y',
    ]
)
values = st.sampled_from(
    [
        'cmp-1',
        'QEMU',
        'a',
        '',
        None,
        5,
        4,
        8,
        1.0,
        0.5,
        0,
        1024,
        True,
        False,
        '5',
        '0.5',
        '10.0.0.3',
        {'a': [1]},
        {},
        1e300,
        {'disabled': False},
    ]
)
arguments = st.one_of(looks, looks, values, values)


def queries_of(parts):
    connected = st.tuples(st.sampled_from(['and', 'or', 'not']), st.lists(parts, max_size=3))
    related = st.tuples(
        st.sampled_from(['=', '<', '>', '<=', '>=', 'in']),
        st.lists(st.one_of(arguments, arguments, parts), max_size=4),
    )
    return st.one_of(connected, related).map(lambda both: [both[0], *both[1]])


queries = queries_of(st.recursive(arguments, queries_of, max_leaves=8))


@trees.unhurried
@given(queries, st.booleans())
def test_a_query_compiled_is_the_plain_one_host_by_host(query, as_nova):
    table, text = the_hosts(), json.dumps(query)
    expression = nova_json.compiled_query(text, as_nova)
    expected = []
    for row in range(len(table)):
        result = answer(table.host_state(row), query, as_nova)
        expected.append(any(result) if isinstance(result, Nots) else bool(result))
    assert expression.mask(table, SPEC).tolist() == expected
    assert [expression.holds(table, SPEC, row) for row in range(len(table))] == expected
    if not may_be_written(expression.tree):
        return
    assert parse(expression.text).mask(table, SPEC).tolist() == expected
    assert trees.from_json(trees.to_json(expression.tree)).mask(table, SPEC).tolist() == expected


def may_be_written(expr):
    """Return whether an operator could write it as a rule: a compiled one may be larger."""
    try:
        tree.check_size(expr, tree.WRITTEN_BOUNDS)
    except tree.TooLarge:
        return False
    return True


def test_a_compiled_query_may_be_larger_than_a_written_rule():
    query = ['=', ['=', *['$hypervisor_type'] * 3], *['$host'] * 3]
    expression = nova_json.compiled_query(json.dumps(query))
    assert not may_be_written(expression.tree)
    with pytest.raises(exceptions.InvalidRule, match='at most 128 tests'):
        parse(expression.text)


def test_a_fact_that_every_host_is_said_to_have_it_has():
    table = the_hosts()
    for name in facts.NOVA_FACT_NAMES:
        reported = parse(f'known nova.{name}').mask(table, SPEC)
        assert reported.all() or name not in nova_json.FACTS_OF_EVERY_HOST, name


@pytest.mark.parametrize(
    ('query', 'text'),
    [
        (
            '["and", [">=", "$free_ram_mb", 1024], ["not", ["=", "$host", "cmp-2"]]]',
            'nova.free_ram_mb >= 1024 and not (nova.host == "cmp-2")',
        ),
        ('["in", "$host", "a", "b"]', 'nova.host in ["a", "b"]'),
        ('["<", "$stats.x", 10]', 'known nova.stats.x and nova.stats.x < 10'),
        ('["=", 1, 1]', 'true'),
    ],
    ids=range(4),
)
def test_a_query_as_text(query, text):
    assert nova_json.compiled_query(query).text == text
    assert nova_json.compiled_query('[]') is None


def test_a_query_may_have_many_arguments():
    """Pass as many as the message has room for; each costs what it states."""
    query = ['or', *(['=', '$stats.x', number] for number in range(40))]
    assert nova_json.compiled_query(json.dumps(query)).mask(the_hosts(), SPEC).tolist() == [
        False,
        True,
        False,
        False,
    ]


def doubled(depth):
    """Return a query whose compiled form has twice the size for each level."""
    inner = ['=', '$stats.x', 1]
    for _ in range(depth):
        inner = ['=', inner, '$stats.x']
    return json.dumps(['and', inner])


WRONG = [
    ('nonsense', 'expected JSON'),
    ('["and", ["or", ["==", 1, 1]]]', 'at [1][1][0]: expected one of'),
    ('["and", 1, ["=", 1, [5]]]', 'at [2][2][0]: expected one of'),
    (
        '["and"' + ', ["=", "$host", "$uuid"]' * 9 + ']',
        'at [9]: expected at most 8 comparisons of facts',
    ),
    (doubled(8), 'tests and connectives in one rule, once compiled'),
    ('["<"' + ', "$stats.x"' * 64 + ']', 'expected at most 1024 tests and connectives'),
]


@pytest.mark.parametrize(('text', 'said'), WRONG, ids=range(len(WRONG)))
def test_what_is_no_query_or_costs_too_much_is_refused(text, said):
    with pytest.raises(exceptions.InvalidMessage) as caught:
        nova_json.compiled_query(text)
    assert said in caught.value.message
