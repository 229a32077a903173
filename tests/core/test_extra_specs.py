# SPDX-License-Identifier: Apache-2.0
"""The operators of extra specs: what fits, and that nothing raises."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantt.core import extra_specs

WORDS = st.sampled_from([*sorted(extra_specs.OPERATORS), 'a', 'b', '1', '1_000', 'inf', 'nan', ''])
REQUIREMENTS = st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=6).map(' '.join))


@pytest.mark.parametrize(
    ('value', 'requirement', 'fits'),
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
def test_what_fits(value, requirement, fits):
    assert extra_specs.match(value, requirement) is fits


@pytest.mark.parametrize(
    ('value', 'ours', 'novas'),
    [('a', False, True), ('b', False, False), ('c', False, True), ('a b c', True, False)],
)
def test_an_alternative_is_everything_up_to_the_next_or(value, ours, novas):
    assert extra_specs.match(value, '<or> a b c') is ours
    assert extra_specs.match(value, '<or> a b c', as_nova=True) is novas


def test_lists_have_members():
    wanted = extra_specs.parse('<all-in> avx aes')
    items = frozenset({'avx2', 'aes'})
    assert wanted.fits("['avx2', 'aes']")
    assert not wanted.fits("['avx2', 'aes']", items)
    assert extra_specs.parse('<in> aes').fits("['avx2', 'aes']", items)


@given(st.text(max_size=40), REQUIREMENTS, st.booleans())
def test_nothing_raises_and_the_answer_is_yes_or_no(value, requirement, as_nova):
    assert extra_specs.match(value, requirement, as_nova=as_nova) in (True, False)


@given(
    st.lists(st.one_of(st.integers(-(2**62), 2**62), st.floats()), min_size=1, max_size=5),
    st.lists(WORDS, max_size=3).map(' '.join),
)
def test_numbers_at_once_are_as_one_by_one(values, text):
    wanted = extra_specs.parse(text)
    array = np.array(values, np.float64)
    found = wanted.fits_numbers(array)
    if found is not None:
        assert found.tolist() == [wanted.fits(str(value)) for value in array.tolist()]
