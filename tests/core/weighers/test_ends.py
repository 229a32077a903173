# SPDX-License-Identifier: Apache-2.0
"""Ends of Nova's scale when one raw value changes: counted, and evaluated anew."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantt.core.placement.ranking import NovaScale
from gantt.core.weighers.base import Weigher

VALUES = st.integers(-3, 3)


def a_scale(minval, maxval):
    kind = type('Kind', (Weigher,), {'minval': minval, 'maxval': maxval})
    return NovaScale(kind(None))


@given(
    st.lists(VALUES, min_size=2, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), VALUES), max_size=30),
    st.sampled_from([None, -2.0, 0.0]),
    st.sampled_from([None, 1.0, 2.0]),
)
def test_ends_stay_where_a_fresh_look_finds_them_again(values, changes, minval, maxval):
    raw = np.array(values)
    scale = a_scale(minval, maxval)
    shares = scale.shares(raw)
    for place, now in changes:
        i = place % len(raw)
        was = raw.item(i)
        if shares is None or was == now:
            continue
        raw[i] = now
        fresh = a_scale(minval, maxval)
        expected = fresh.shares(raw)
        stays = scale.keeps_other_shares(raw, was, now)
        assert stays == ((fresh.low, fresh.high) == (scale.low, scale.high))
        if stays:
            shares[i] = scale.share_of(float(now), i)
            assert shares.tolist() == expected.tolist()
        else:
            shares = scale.shares(raw)


@pytest.mark.parametrize('odd', [float('nan'), float('inf'), float('-inf')])
@pytest.mark.parametrize('minval', [None, 0.0])
def test_what_is_no_finite_number_is_not_taken_over(odd, minval):
    scale, raw = a_scale(minval, None), np.array([1.0, 2.0, 3.0])
    scale.shares(raw)
    raw[1] = odd
    assert not scale.keeps_other_shares(raw, 2.0, odd)
    with pytest.raises(ValueError, match='finite'):
        scale.shares(raw)
