# SPDX-License-Identifier: Apache-2.0
"""Versions that images require are compared as Nova's library compares them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oslo_utils.versionutils import VersionPredicate, convert_version_to_str

from gantt.core.filters import image_properties
from gantt.core.messages.report import Hypervisor
from gantt.core.messages.request import Image, RequestSpec

HOSTS = (0, 2_005_000, 6_002_000, 8_000_000, 8_000_001)
NUMBERS = st.tuples(
    st.sampled_from([0, 0, 1, 12]).map('0'.__mul__),
    st.sampled_from(['0', '0', '1', '2', '6', '8', '10' * 7]),
).map(''.join)
RELEASES = st.tuples(
    st.lists(NUMBERS, min_size=1, max_size=4),
    st.sampled_from([0, 0, 1, 5, 12]).map(['0'].__mul__),
    st.lists(NUMBERS, max_size=1),
).map(lambda drawn: '.'.join([part for parts in drawn for part in parts]))
PARTS = st.tuples(
    st.sampled_from(['', '', 'v', '0!', '1!', '0000000000!', '00000000001!']),
    RELEASES,
    st.sampled_from(['', '', 'rc1', 'a', '-beta.2', '_c', '.preview3']),
    st.sampled_from(['', '', '.post1', '-1', 'rev', '_r2']),
    st.sampled_from(['', '', '.dev1', 'dev']),
    st.sampled_from(['', '', '+local', '+a.1-b']),
).map(''.join)
CONDITIONS = st.lists(
    st.tuples(
        st.sampled_from(['', ' ']),
        st.sampled_from(['<', '<=', '==', '!=', '>=', '>']),
        st.sampled_from(['', ' ']),
        PARTS,
    ).map(''.join),
    min_size=1,
    max_size=3,
).map(','.join)
PREDICATES = CONDITIONS.filter(lambda text: len(text) <= image_properties.REQUIRED_VERSION_MAX)


def passes(number, text):
    spec = RequestSpec(
        resources={'VCPU': 1}, image=Image(properties={'img_hv_requested_version': text})
    )
    tested = image_properties.ImagePropertiesFilter()
    return not tested.problem(
        Hypervisor(type='QEMU', version=number), tested.image_requirements(spec)
    )


@given(PREDICATES)
def test_a_version_is_compared_as_nova_compares_it(text):
    predicate = VersionPredicate(text)
    for number in HOSTS:
        expected = not number or predicate.satisfied_by(convert_version_to_str(number))
        assert passes(number, text) is expected, (number, text)


@pytest.mark.parametrize(
    'text',
    [
        '>=6.2.0.0.0.0.0.0.0',
        '>=0000000006.2',
        '>=6.2,<0000000009!1',
        ','.join(['>=6.2'] * 40),
        f'>={"0" * 200}6.2',
    ],
)
def test_parts_digits_and_conditions_are_as_many_as_nova_reads(text):
    predicate = VersionPredicate(text)
    for number in HOSTS:
        expected = not number or predicate.satisfied_by(convert_version_to_str(number))
        assert passes(number, text) is expected, number


def test_what_is_longer_than_what_is_read_passes_nowhere():
    longest = '>=' + '6.2'.rjust(image_properties.REQUIRED_VERSION_MAX - 2, '0')
    assert passes(6_002_000, longest)
    assert not passes(6_002_000, longest.replace('>=', '>=0'))


@pytest.mark.parametrize('text', ['6.2', '>=', '>=6.x', '>=6.2 beta', '>=6.2,', '=>6', '>=6.2+'])
def test_what_nova_cannot_read_passes_nowhere(text):
    with pytest.raises(ValueError):
        VersionPredicate(text)
    assert not passes(6_002_000, text)
