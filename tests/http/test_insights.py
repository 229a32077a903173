# SPDX-License-Identifier: Apache-2.0
"""The read model: capacity against what really fits, explanations, what a host is said to be."""

import pytest

from gantt import exceptions
from gantt.core.messages.request import GroupRef, Policy, RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.table.host_table import HostTable
from gantt.insights.host_views import HostQuery
from gantt.insights.views import HostCondition
from tests.http.site import Site, fixed


@pytest.fixture
def site() -> Site:
    return Site()


def _fill(site: Site, spec: RequestSpec) -> int:
    """Place one after the other until no host is left; how many were placed."""
    for number in range(1, 500):
        request = SelectDestinations(
            request_id=fixed(number), spec=spec, consumers=[fixed(1000 + number)]
        )
        try:
            site.client.select_destinations(request)
        except exceptions.NoValidHost:
            return number - 1
    raise AssertionError('it never ends')


SHAPES = {
    'one class': RequestSpec(resources={'VCPU': 3}),
    'memory runs out': RequestSpec(resources={'VCPU': 1, 'MEMORY_MB': 7000}),
    'with a trait': RequestSpec(resources={'VCPU': 2}, required_traits=['CUSTOM_FAST']),
    'in a zone': RequestSpec(resources={'VCPU': 1}, availability_zone='az2'),
    'apart': RequestSpec(
        resources={'VCPU': 1},
        group=GroupRef(uuid=fixed(9), policy=Policy.ANTI_AFFINITY, max_per_host=2),
    ),
    'together': RequestSpec(
        resources={'VCPU': 2}, group=GroupRef(uuid=fixed(9), policy=Policy.AFFINITY)
    ),
    'too large': RequestSpec(resources={'VCPU': 100}),
}


@pytest.mark.parametrize('name', sorted(SHAPES))
def test_capacity_is_what_really_fits(site: Site, name: str) -> None:
    capacity = site.insights.capacity(SHAPES[name])
    placed = _fill(site, SHAPES[name])
    if name == 'together':
        # The scheduler's first pick decides which host it is; the count names the roomiest.
        assert placed <= capacity.count
    else:
        assert capacity.count == placed
    site.insights.reload_soon()
    assert site.insights.capacity(SHAPES[name]).count == 0
    assert sum(room.count for room in capacity.by_zone) == sum(
        room.count for room in capacity.by_host
    )


def test_capacity_says_what_runs_out_first(site: Site) -> None:
    room = site.insights.capacity(RequestSpec(resources={'VCPU': 1, 'MEMORY_MB': 16_000}))
    assert room.runs_out == {'MEMORY_MB': 4}
    assert room.funnel[-1].remaining == 4


def test_a_table_of_silent_hosts_is_not_known_rather_than_full(site: Site) -> None:
    site.silent = set(site.hosts)
    for _ in range(4):
        site.pass_seconds(60)
    with pytest.raises(exceptions.HostsUnknown):
        site.insights.capacity(RequestSpec(resources={'VCPU': 1}))


def test_a_dry_run_says_what_the_scheduler_then_does(site: Site) -> None:
    for number in range(1, 8):
        request = SelectDestinations(
            request_id=fixed(number),
            spec=RequestSpec(resources={'VCPU': 3, 'MEMORY_MB': 5000}),
            consumers=[fixed(100 * number + i) for i in range(2)],
        )
        forecast, _ = site.insights.dry_run(request)
        answer = site.client.select_destinations(request)
        site.insights.reload_soon()
        assert [[s.host for s in places] for places in forecast.selections] == [
            [s.host for s in places] for places in answer.selections
        ]


def test_a_dry_run_leaves_the_table_alone(site: Site) -> None:
    before = site.insights.table()
    free = before.free.copy()
    request = SelectDestinations(
        request_id=fixed(1),
        spec=RequestSpec(resources={'VCPU': 2}),
        consumers=[fixed(2)],
    )
    site.insights.dry_run(request)
    assert (site.insights.table().free == free).all()


# -- hosts ------------------------------------------------------------------------------
def test_a_host_that_shrank_is_said_to_be_over_committed(site: Site) -> None:
    host = site.place(1, VCPU=8).selections[0][0].host
    site.hosts[host].facts['inventories'] = {
        'VCPU': Inventory(total=4),
        'MEMORY_MB': Inventory(total=32_768),
        'DISK_GB': Inventory(total=500),
    }
    site.pass_seconds(1)
    site.insights.reload_soon()
    page = site.insights.host(host)
    assert page.host.condition == 'over_committed'
    assert page.host.free['VCPU'] == -4
    assert 'over-committed by 4 vCPU: nothing new lands here, nothing is killed' in (
        page.differences
    )


def test_a_count_that_drifted_from_the_claims_is_said(site: Site) -> None:
    host = site.place(1).selections[0][0].host
    site.insights.table()
    real = site.world.store.claims.list_claims

    def fewer(**asked: object) -> list:
        return [claim for claim in real(**asked) if claim.host != host]

    site.world.store.claims.list_claims = fewer
    page = site.insights.host(host)
    assert any(line.startswith('VCPU: 2 counted as claimed, but') for line in page.differences)


def test_a_marker_that_matches_no_more_still_says_where_the_page_ended(site: Site) -> None:
    first = site.insights.hosts(HostQuery(condition=None, zone='az1', limit=2))
    assert first.next_marker == 'cmp-2'
    site.insights.offer([site.world.store.hosts.disable_host('cmp-2', 'x', 'y')])
    rest = site.insights.hosts(HostQuery(condition=HostCondition.UP, zone='az1', marker='cmp-2'))
    assert [host.name for host in rest.hosts] == ['cmp-3', 'cmp-4']


def test_every_page_together_is_every_host_once(site: Site) -> None:
    for sort in ('name', '-name', 'zone', '-free:VCPU', 'condition', 'claims', 'report_age'):
        seen, marker = [], None
        for _ in range(10):
            page = site.insights.hosts(HostQuery(sort=sort, limit=2, marker=marker))
            seen += [host.name for host in page.hosts]
            marker = page.next_marker
            if marker is None:
                break
        assert sorted(seen) == [f'cmp-{i}' for i in range(1, 7)], sort


# -- decisions --------------------------------------------------------------------------
def test_a_host_that_came_later_was_not_looked_at(site: Site) -> None:
    site.place(1)
    site._host('cmp-7', 7).report()
    site.world.turn()
    site.insights.reload_soon()
    explanation = site.insights.explain(fixed(1), 'cmp-7')
    assert explanation.host_verdicts == [
        'cmp-7 was not looked at: it was not known when this was decided'
    ]


def test_the_chosen_and_the_passed_host_are_told_apart(site: Site) -> None:
    chosen = site.place(1).selections[0][0].host
    other = next(name for name in ('cmp-1', 'cmp-3') if name != chosen)
    assert site.insights.explain(fixed(1), chosen).host_verdicts == [
        f'member 0: {chosen} was chosen'
    ]
    assert 'another host was chosen' in site.insights.explain(fixed(1), other).host_verdicts[0]


def test_the_funnel_adds_up(site: Site) -> None:
    with pytest.raises(exceptions.NoValidHost):
        site.place(1, VCPU=400)
    [member] = site.insights.explain(fixed(1)).members
    assert sum(step.removed for step in member.funnel) + member.survivors == 6
    assert member.funnel[-1].remaining == member.survivors == 0


def test_an_explanation_fits_80_columns_whatever_the_names(site: Site) -> None:
    long = 'a-host-with-quite-a-long-name.in-a-room.of-a-site.example.org'
    site._host(long, 8).report()
    site.world.turn()
    with pytest.raises(exceptions.NoValidHost):
        site.place(1, VCPU=400, MEMORY_MB=1, DISK_GB=1)
    site.world.store.hosts.disable_host('cmp-1', 'x', 'y')
    site.world.turn(1)
    site.place(2, 3)
    for number in (1, 2):
        lines = site.insights.explain(fixed(number), None).lines
        assert [line for line in lines if len(line) > 80] == []


def test_an_empty_site_says_that_no_host_is_known() -> None:
    assert len(HostTable()) == 0
    site = Site()
    for name in site.hosts:
        site.world.store.hosts.remove_host(name)
    site.world.turn(1)
    site.insights.reload_soon()
    assert site.insights.status().hosts_total == 0
    room = site.insights.capacity(RequestSpec(resources={'VCPU': 1}))
    assert (room.count, room.verdict) == (0, 'no host is known')
