# SPDX-License-Identifier: Apache-2.0
"""Hosts whose guests are of one flavor, and how claims come to know theirs."""

import msgspec
import numpy as np
import pytest

from gantt import plugin_loader
from gantt.core.filters.type_affinity import TypeAffinityFilter
from gantt.core.messages.request import Flavor, name_of
from gantt.core.resources.host import Placed
from tests.core.builders import (
    a_change,
    a_guest,
    a_host,
    a_request,
    a_table,
    decide,
    hosts_of,
    passing,
)

RULE = TypeAffinityFilter()
LENIENT = TypeAffinityFilter({'type_affinity_ignores_unknown': True})


def of(flavor, number=1, host=1):
    """Return a guest of a flavor."""
    return msgspec.structs.replace(a_guest(number, host), flavor=flavor)


def some_hosts():
    """Return hosts with small, large, both, unknown and no guests."""
    kinds = (['small', 'small'], ['large'], ['small', 'large'], ['small', None], [])
    return a_table(
        *(
            a_change(a_host(n), *(of(f, 10 * n + i, n) for i, f in enumerate(flavors)))
            for n, flavors in enumerate(kinds, 1)
        )
    )


def asking(name, **fields):
    return a_request(flavor=Flavor(name=name), **fields)


@pytest.mark.parametrize(
    ('rule', 'flavor', 'hosts'),
    [
        (RULE, 'small', ['cmp-1', 'cmp-5']),
        (RULE, 'large', ['cmp-2', 'cmp-5']),
        (RULE, 'other', ['cmp-5']),
        (RULE, '', ['cmp-5']),
        (LENIENT, 'small', ['cmp-1', 'cmp-4', 'cmp-5']),
        (LENIENT, 'large', ['cmp-2', 'cmp-5']),
        (LENIENT, '', ['cmp-1', 'cmp-2', 'cmp-3', 'cmp-4', 'cmp-5']),
    ],
)
def test_guests_of_one_flavor_are_among_themselves(rule, flavor, hosts):
    table, spec = some_hosts(), asking(flavor).spec
    assert passing(table, rule, spec) == hosts
    assert [table.names[r] for r in range(5) if rule.passes(table, spec, r)] == hosts


def test_members_of_a_request_stay_with_their_own():
    pipeline = plugin_loader.load_pipeline(
        ('ComputeFilter', 'ResourcesFilter', 'TypeAffinityFilter')
    )
    table = a_table(a_host(1, vcpu=4), a_host(2, vcpu=4))
    first = decide(table, asking('small', count=2, number=1), pipeline)
    assert hosts_of(first) == ['cmp-1', 'cmp-2']
    assert {p.flavor for p in table.placed} == {'small'}
    assert hosts_of(decide(table, asking('large', number=2), pipeline)) == [None]
    assert hosts_of(decide(table, asking('small', count=2, number=3), pipeline)) != [None, None]


def test_it_follows_who_comes_and_goes():
    table, spec = a_table(a_host(1), a_host(2)), asking('small').spec
    assert RULE.mask(table, spec) is None
    table.add_pick(1, {}, of('large'))
    assert passing(table, RULE, spec) == ['cmp-2']
    table.apply(a_change(a_host(2, version=2), of('small', 2, 2), of('large', 3, 2)))
    assert passing(table, RULE, spec) == []
    table.remove_pick(1, {}, of('large').claim_id)
    table.apply(a_change(a_host(2, version=3), of('small', 2, 2)))
    assert RULE.mask(table, spec) is None
    assert passing(table.snapshot(), RULE, asking('large').spec) == ['cmp-1']


def test_what_was_in_the_way_is_named():
    table, spec = some_hosts(), asking('other').spec
    rows = np.flatnonzero(~RULE.mask(table, spec))
    assert RULE.detail(table, spec, rows) == {
        'parts': {'has guests of flavor small': 2, 'has guests of flavor large': 2}
    }
    assert RULE.remedy(table, spec, rows) == 'fits on cmp-2 without its guest of flavor large'
    assert RULE.detail(table, asking('small').spec, np.array([3])) == {
        'parts': {'has guests of no known flavor': 1}
    }


def test_what_is_kept_of_a_name():
    kept = {name: name_of(Flavor(name=name)) for name in ('', 'm1', 'x' * 300, 'a\0b', 'a\ud800')}
    assert list(kept.values()) == [None, 'm1', 'x' * 255, 'a\ufffdb', 'a?']
    table = a_table(a_change(a_host(1), Placed('c', 'g', 1, flavor=kept['a\0b'])))
    assert RULE.mask(table, asking('a\0b').spec) is None
