# SPDX-License-Identifier: Apache-2.0
"""Groups and single requests, four schedulers, two planners: killed and frozen all the time.

Every group is there whole or not at all at any moment, each of its members has one claim, whoever
repeats is told the same, and in the end there is what callers were told and nothing else.
"""

import pytest

from tests.nemesis.group_storm import Storm

pytestmark = [pytest.mark.rabbit, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(
    params=[
        pytest.param('postgresql', marks=pytest.mark.postgresql),
        pytest.param('mysql', marks=pytest.mark.mysql),
    ],
)
def storm(request, a_site, rabbit_url):
    site = a_site(request.param)
    new_storm = Storm(site, rabbit_url, groups=50, seed=7)
    yield new_storm
    new_storm.close()
    site.close()


def test_fifty_groups_while_processes_die_and_stand_still(storm):
    before = storm.site.deadlocks()
    storm.run(threads=8, minimum=150.0)
    storm.settle()
    assert storm.site.deadlocks() == before
    print(dict(storm.done))
    for kind in ('kills', 'freezes', 'changes', 'releases', 'repeats', 'left to expire'):
        assert storm.done[kind] >= 5, f'{kind}: {storm.done}'
