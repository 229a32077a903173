# SPDX-License-Identifier: Apache-2.0
"""Free amounts left on the tightest devices, against a list of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt.core.table.nested import mean_share_left
from tests.thorough import examples

DEVICES = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 1000), st.integers(0, 1000)), max_size=24
)


def plain(devices, amount, count, length):
    """Compute the reference: each host by itself."""
    shares = []
    for host in range(length):
        free_shares = sorted((free - amount) / cap for at, cap, free in devices if at == host)
        shares.append(
            sum(free_shares[:count]) / count if len(free_shares) >= count else float('inf')
        )
    return shares


@settings(max_examples=examples(300), deadline=None)
@given(DEVICES, st.integers(1, 400), st.integers(1, 5))
def test_it_is_what_a_list_says(devices, amount, count):
    fitting = [(at, cap, free) for at, cap, free in devices if amount <= free <= cap]
    hosts = np.array([at for at, _, _ in fitting], np.int64)
    free_shares = np.array([(free - amount) / cap for _, cap, free in fitting], np.float64)
    tightest = mean_share_left(hosts, free_shares, count, 5)
    assert tightest.tolist() == pytest.approx(plain(fitting, amount, count, 5))
    assert all(0.0 <= value <= 1.0 for value in tightest.tolist() if value != float('inf'))
    # Whatever the order of the devices is, bit for bit.
    back = mean_share_left(hosts[::-1], free_shares[::-1], count, 5)
    assert tightest.tolist() == back.tolist()


def test_a_partly_used_device_is_tighter_than_a_whole_one():
    hosts, free_shares = np.array([0, 0, 1, 2]), np.array([0.75, 0.25, 0.75, 0.0])
    assert mean_share_left(hosts, free_shares, 1, 4).tolist() == [0.25, 0.75, 0.0, np.inf]
    assert mean_share_left(hosts, free_shares, 2, 4).tolist() == [0.5, np.inf, np.inf, np.inf]
