# SPDX-License-Identifier: Apache-2.0
"""Real processes, and kill -9: what was acknowledged stays, once, within capacity."""

import pytest

from bench import survive
from tests import warm

pytestmark = [pytest.mark.rabbit, pytest.mark.postgresql, pytest.mark.timeout(240)]


@pytest.mark.parametrize('beside', [pytest.param(0, marks=pytest.mark.slow), 1])
def test_the_scheduler_is_killed_three_times_and_no_claim_is_lost(
    rabbit_url, postgresql_url, beside
):
    outcome = survive.once(
        hosts=30, requests=150, kills=3, lease=8, report=4, beside=beside, kind=warm.Rig
    )
    assert outcome.kills == 3
    assert outcome.problems == []
    assert outcome.acknowledged == 150
    # A build whose claim ran out while nobody could confirm it starts no guest.
    assert set(outcome.built) <= {'running', 'gone', 'unconfirmed'}
    assert outcome.built['running'] >= 0.7 * outcome.placed
