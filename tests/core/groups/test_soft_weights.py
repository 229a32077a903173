# SPDX-License-Identifier: Apache-2.0
"""The weight of a soft policy is the cost of its violation, to a single request as well."""

import pytest

from gantt import plugin_loader
from gantt.core.weighers.base import PRICE_NORMALIZATION
from gantt.core.weighers.server_group import GroupPolicyWeigher
from tests.core.builders import a_host, a_request, a_table, decide
from tests.core.groups.test_one_member import a_group

RACKS = ('k1', 'k1', 'k2', 'k2', 'k2')


def racks_of(group, many=6):
    """Return the racks of members placed one at a time, on hosts that get full."""
    table = a_table(*(a_host(n, location=f's.r.{rack}') for n, rack in enumerate(RACKS, 1)))
    racks = []
    for number in range(many):
        decision = decide(table, a_request(1, number, group=group))
        [member] = decision.members
        racks.append(RACKS[int(member.selection.host.removeprefix('cmp-')) - 1])
    return racks


def weighed(soft, kind='affinity'):
    return racks_of(a_group({'policy': kind, 'level': 'rack', 'soft': soft}))


def test_a_large_weight_is_not_outvoted():
    assert len(set(weighed(1000))) == 1


def test_a_small_weight_gives_way_to_what_all_other_weighers_say():
    assert weighed(0.001) == racks_of(None) != weighed(1000)


def test_two_policies_are_worth_what_they_say():
    apart = {'policy': 'anti-affinity', 'level': 'rack', 'soft': 500, 'max_per_domain': 3}
    together = {'policy': 'affinity', 'level': 'rack'}
    first = racks_of(a_group(apart, {**together, 'soft': 1000}))
    assert len(set(first)) == 1
    assert sorted(map(first.count, set(first))) == [6]
    other = racks_of(a_group(apart, {**together, 'soft': 100}))
    assert sorted(map(other.count, set(other))) == [3, 3]


@pytest.mark.parametrize('normalization', ['', 'nova', 'fraction', 'rank', 'absolute'])
def test_no_normalization_takes_a_price_away(normalization):
    pipeline = plugin_loader.load_pipeline(normalization=normalization)
    [policy_weigher] = [w for w in pipeline.weighers if isinstance(w, GroupPolicyWeigher)]
    assert policy_weigher.normalized_by(normalization) == PRICE_NORMALIZATION
