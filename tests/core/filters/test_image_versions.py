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
RELEASES = st.lists(st.sampled_from([0, 0, 1, 2, 6, 8]), min_size=1, max_size=4).map(
    lambda parts: '.'.join(map(str, parts))
)
PARTS = st.tuples(
    st.sampled_from(['', '', 'v', '0!', '1!']),
    RELEASES,
    st.sampled_from(['', '', 'rc1', 'a', '-beta.2', '_c', '.preview3']),
    st.sampled_from(['', '', '.post1', '-1', 'rev', '_r2']),
    st.sampled_from(['', '', '.dev1', 'dev']),
    st.sampled_from(['', '', '+local', '+a.1-b']),
).map(''.join)
PREDICATES = st.lists(
    st.tuples(
        st.sampled_from(['', ' ']),
        st.sampled_from(['<', '<=', '==', '!=', '>=', '>']),
        st.sampled_from(['', ' ']),
        PARTS,
    ).map(''.join),
    min_size=1,
    max_size=3,
).map(','.join)


def passes(number, text):
    spec = RequestSpec(
        resources={'VCPU': 1}, image=Image(properties={'img_hv_requested_version': text})
    )
    tested = image_properties.ImagePropertiesFilter()
    return not tested.problem(Hypervisor(type='QEMU', version=number), tested.wanted(spec))


@given(PREDICATES)
def test_a_version_is_compared_as_nova_compares_it(text):
    predicate = VersionPredicate(text)
    for number in HOSTS:
        expected = not number or predicate.satisfied_by(convert_version_to_str(number))
        assert passes(number, text) is expected, (number, text)


@pytest.mark.parametrize('text', ['6.2', '>=', '>=6.x', '>=6.2 beta', '>=6.2,', '=>6', '>=6.2+'])
def test_what_nova_cannot_read_passes_nowhere(text):
    with pytest.raises(ValueError):
        VersionPredicate(text)
    assert not passes(6_002_000, text)
