# SPDX-License-Identifier: Apache-2.0
"""The operators of extra specs, compiled: matching values, and no error for any."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantt.core.messages import extra_specs
from gantt.core.messages.report import Hypervisor, ReportedMetric
from gantt.core.messages.request import RequestSpec
from gantt.core.resources.host import Aggregate
from gantt.core.rules import nova_json
from gantt.core.rules.parser import parse
from tests.core.builders import a_host, a_table, an_id
from tests.core.filters.plain_specs import match
from tests.core.rules import trees

SPEC = RequestSpec(resources={'VCPU': 1})
WORDS = st.sampled_from([*sorted(extra_specs.OPERATORS), 'a', 'b', '1', '1_000', 'inf', 'nan', ''])
REQUIREMENTS = st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=6).map(' '.join))
VALUES = st.one_of(
    st.text(max_size=12),
    WORDS,
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.lists(st.sampled_from(['a', 'b', 'ab', 1]), max_size=3),
)


def fits(value, requirement, as_nova=False):
    """Return whether the compiled requirement passes a host whose driver reports that value."""
    table = a_table(a_host(1, hypervisor=Hypervisor(cpu_info=json.dumps({'x': value}))))
    family = 'capabilities_printed' if as_nova else 'capabilities'
    condition = nova_json.requirement(requirement, f'{family}.cpu_info:x', as_nova)
    return condition.mask(table, SPEC).tolist()[0]


@pytest.mark.parametrize(
    ('value', 'requirement', 'said'),
    [
        ('12', '= 10', True),
        ('9', '= 10', False),
        ('12', '>= 12.0', True),
        ('1_000', '== 1e3', True),
        ('inf', '>= 5', True),
        ('nan', '!= 5', False),
        ('12', '<= 11', False),
        ('12', '!= 11', True),
        ('gold', '>= 5', False),
        ('gold', '!= 5', False),
        ('5', '== abc', False),
        ('5', '>=', False),
        ('5', '>= 3 99', True),
        ('>=4', '>=4', True),
        ('4', '>=4', False),
        ('4', '> 3', False),
        ('10', 's< 9', True),
        ('abc', 's== abc', True),
        ('abc', 's!= abc', False),
        ('b', 's>= b', True),
        ('avx2', '<in> avx', True),
        ('sse', '<in> avx', False),
        ("['avx', 'aes']", '<all-in> aes avx', True),
        ('aes', '<all-in> aes avx', False),
        ('b', '<or> a <or> b', True),
        ('c', '<or> a <or> b', False),
        ('a', '<or>', False),
        ('a b', 'a b', True),
        ('a  b', 'a b', False),
        ('', '', True),
    ],
)
def test_what_fits(value, requirement, said):
    assert fits(value, requirement) is said
    assert match(value, requirement) is said


@pytest.mark.parametrize(
    ('value', 'ours', 'novas'),
    [('a', False, True), ('b', False, False), ('c', False, True), ('a b c', True, False)],
)
def test_an_alternative_is_everything_up_to_the_next_or(value, ours, novas):
    assert fits(value, '<or> a b c') is ours
    assert fits(value, '<or> a b c', as_nova=True) is novas


def test_lists_have_members():
    assert fits("['avx2', 'aes']", '<all-in> avx aes')
    assert not fits(['avx2', 'aes'], '<all-in> avx aes')
    assert fits(['avx2', 'aes'], '<all-in> avx aes', as_nova=True)
    assert fits(['avx2', 'aes'], '<in> aes')


@trees.unhurried
@given(VALUES, REQUIREMENTS, st.booleans())
def test_a_compiled_requirement_is_the_plain_one(value, requirement, as_nova):
    items = None
    if isinstance(value, list) and not as_nova:
        items = frozenset(map(str, value))
    assert fits(value, requirement, as_nova) is match(str(value), requirement, as_nova, items)


@trees.unhurried
@given(st.lists(st.lists(st.text('ab1, ', max_size=5), max_size=2), max_size=3), REQUIREMENTS)
def test_of_aggregates_one_value_that_fits_is_enough(metadata, requirement):
    hosts = [a_host(n) for n in range(1, len(metadata) + 1)]
    aggregates = [
        Aggregate(
            id=n, uuid=an_id(n, 9), name=f'a{n}', hosts=[hosts[at].name], metadata={'k': text}
        )
        for n, (at, text) in enumerate(
            ((at, text) for at, texts in enumerate(metadata) for text in texts), 1
        )
    ]
    table = a_table(*hosts, aggregates=aggregates)
    condition = nova_json.requirement(requirement, 'metadata_listed.k', False)
    assert condition.mask(table, SPEC).tolist() == [
        any(match(part.strip(), requirement) for text in texts for part in text.split(','))
        for texts in metadata
    ]


@trees.unhurried
@given(
    st.lists(st.one_of(st.integers(-(2**52), 2**52), st.floats()), min_size=1, max_size=5),
    st.lists(WORDS, max_size=3).map(' '.join),
)
def test_numbers_at_once_are_as_one_by_one(values, requirement):
    table = a_table(
        *(
            a_host(n, metrics={'stats.x': ReportedMetric(value=value)})
            for n, value in enumerate(values, 1)
        )
    )
    condition = nova_json.requirement(requirement, 'capabilities.x', False)
    texts = [str(int(v) if float(v).is_integer() else v) for v in map(float, values)]
    # A value that is not finite counts as not measured.
    expected = [
        math.isfinite(v) and match(t, requirement) for v, t in zip(values, texts, strict=True)
    ]
    assert condition.mask(table, SPEC).tolist() == expected


@given(REQUIREMENTS)
def test_a_requirement_can_be_said_as_a_rule(requirement):
    condition = nova_json.requirement(requirement, 'capabilities.cpu_info:arch', False, True)
    assert parse(condition.text).text == condition.text
