# SPDX-License-Identifier: Apache-2.0
"""Sums for a page against plain counting: the map of hosts, the last while, what refused."""

import random
from typing import Any

import pytest

from devel.doubles import ManualClock
from gantt import exceptions
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.history import ClaimCounts, History
from gantt.core.resources.host import HostRow
from gantt.groups.insights import HOOKS
from gantt.insights import activity, host_views
from gantt.insights.activity import WINDOW_PARTS, ActivityReader, quantile
from gantt.insights.host_views import HostReader
from gantt.insights.read_model import Insights
from gantt.insights.views import HostCondition
from tests.http.site import Site, fixed
from tests.world import Host, World

CLASSES = ('VCPU', 'MEMORY_MB', 'CUSTOM_GOLD')


def _insights(world: World) -> Insights:
    scheduler = world.scheduler
    return Insights(world.store, scheduler.placing.pipeline, HOOKS, scheduler.settings, world.clock)


def _cloud(seed: int) -> World:
    """Hosts in every condition, in no order of names."""
    rng = random.Random(seed)
    world = World()
    world.store.vocabulary.declare_class('CUSTOM_GOLD')
    numbers = rng.sample(range(1000), 30)
    hosts = []
    for number in numbers:
        inventories = {'VCPU': Inventory(total=rng.randrange(1, 65), allocation_ratio=2.0)}
        if rng.random() < 0.3:
            inventories['CUSTOM_GOLD'] = Inventory(total=rng.randrange(1, 5))
        host = Host(
            world,
            f'cmp-{number}',
            zone=rng.choice(['az1', 'az2', None]),
            inventories=inventories,
            foreign={'VCPU': rng.randrange(200)} if rng.random() < 0.3 else {},
        )
        hosts.append(host)
    reporting = [host for host in hosts if rng.random() < 0.8]
    for host in reporting:
        host.report()
    world.turn()
    world.turn(250)
    for host in reporting:
        if rng.random() < 0.6:
            host.report()
    for host in rng.sample(hosts, 3):
        world.store.hosts.disable_host(host.name, 'fan', 'me')
    world.turn()
    return world


def _condition(row: HostRow, now: float, stale_after: float) -> HostCondition:
    if row.disabled is not None or row.service_disabled is not None:
        return HostCondition.DISABLED
    if row.over_committed:
        return HostCondition.OVER_COMMITTED
    if not row.reported_at:
        return HostCondition.NEW
    is_stale = now - row.reported_at > stale_after
    return HostCondition.STALE if is_stale else HostCondition.UP


@pytest.mark.parametrize('seed', range(5))
@pytest.mark.parametrize('name', CLASSES)
def test_the_map_says_of_each_host_what_its_summary_says(seed: int, name: str) -> None:
    insights = _insights(_cloud(seed))
    host_map = insights.host_map(name)
    table = insights.table()
    reader = HostReader(table, insights.settings.stale_after_seconds)
    plain = [reader.summary(table.row_of(host)) for host in sorted(table.names)]
    assert host_map.hosts == [host.name for host in plain]
    assert [host_map.conditions[c] for c in host_map.condition] == [h.condition for h in plain]
    stale_after = insights.settings.stale_after_seconds
    rows = [table.hosts[table.row_of(host)] for host in sorted(table.names)]
    assert [h.condition for h in plain] == [_condition(r, table.now, stale_after) for r in rows]
    assert [host_map.zones[z] for z in host_map.zone] == [h.zone for h in plain]
    assert host_map.free == [h.free.get(name, 0) for h in plain]
    assert host_map.cap == [h.cap.get(name, 0) for h in plain]
    assert host_map.claims == [h.claims for h in plain]
    ages = [-1 if h.report_age_seconds is None else int(h.report_age_seconds) for h in plain]
    assert host_map.report_age_seconds == ages
    assert set(host_map.classes) == {c for h in plain for c, cap in h.cap.items() if cap}


def test_every_condition_was_among_them() -> None:
    seen = {c for seed in range(5) for c in _insights(_cloud(seed)).host_map('VCPU').condition}
    assert seen == set(range(len(host_views.CONDITIONS)))


def test_the_map_of_no_host_is_empty() -> None:
    host_map = _insights(World()).host_map('VCPU')
    assert (host_map.hosts, host_map.free, host_map.classes) == ([], [], [])


@pytest.mark.parametrize('name', ['vcpu', 'CUSTOM_', 'x' * 255])
def test_a_map_of_what_is_no_class_is_refused(name: str) -> None:
    with pytest.raises(exceptions.InvalidMessage, match='resource_class'):
        _insights(World()).host_map(name)


# -- the last while ---------------------------------------------------------------------
def test_a_quantile_is_one_of_the_values_and_covers_its_share() -> None:
    rng = random.Random(7)
    assert quantile([], 0.5) is None
    for size in (1, 2, 3, 19, 20, 21, 100):
        values = sorted(rng.random() for _ in range(size))
        for share in (0.5, 0.95, 1.0):
            value = quantile(values, share)
            assert value is not None
            at_most = [v for v in values if round(v, 6) <= value]
            assert len(at_most) >= share * size
            assert all(round(v, 6) >= value for v in values[len(at_most) - 1 :])


def test_a_confirmation_counts_where_its_claim_was_made() -> None:
    site = Site()
    answer = site.place(1)
    claim = answer.selections[0][0]
    site.pass_seconds(12)
    site.hosts[claim.host].confirm(claim.claim_id)
    site.run(claim.host, claim.consumer, claim.claim_id, **claim.resources)
    site.pass_seconds(300)
    happened = site.insights.activity(3600)
    assert sum(happened.outcomes['placed']) == 1
    [part] = [i for i, count in enumerate(happened.outcomes['placed']) if count]
    assert [i for i, count in enumerate(happened.confirmed) if count] == [part]
    assert part == WINDOW_PARTS - 1 - 312 // 60
    assert happened.confirm_median_seconds[part] == pytest.approx(12, abs=1)
    assert happened.confirm_p95_seconds[part] == happened.confirm_median_seconds[part]
    assert happened.claims['confirmed'] == 1


class _Counting:
    """A store that counts what it is asked, and may be away."""

    def __init__(self) -> None:
        self.asked = 0
        self.away = False

    def history(self, **asked: Any) -> History:
        self.asked += 1
        if self.away:
            raise exceptions.DatabaseUnavailable(problem='refused')
        return History(now=1000.0, since=0.0, outcomes={}, waits=[])

    def count_claims(self) -> ClaimCounts:
        return ClaimCounts(states={}, adopted=0)


def test_however_many_look_one_query_is_made_and_its_age_is_said() -> None:
    store, clock = _Counting(), ManualClock()
    reader = ActivityReader(store, store, store, clock)  # type: ignore[arg-type]
    for _ in range(5):
        reader.activity(600)
    assert store.asked == 1
    clock.advance(3)
    assert reader.activity(600).end_age_seconds == pytest.approx(3)
    reader.activity(900)
    assert store.asked == 2
    clock.advance(activity.CACHE_SECONDS)
    assert reader.activity(600).end_age_seconds == 0
    assert store.asked == 3


def test_a_database_that_is_away_is_not_asked_by_each_of_them() -> None:
    store, clock = _Counting(), ManualClock()
    reader = ActivityReader(store, store, store, clock)  # type: ignore[arg-type]
    store.away = True
    for _ in range(3):
        with pytest.raises(exceptions.DatabaseUnavailable):
            reader.activity(600)
    assert store.asked == 1
    store.away = False
    clock.advance(activity.CACHE_SECONDS + 1)
    assert reader.activity(600).outcomes == {}


def test_what_refused_adds_up_and_is_what_the_explanations_say() -> None:
    site = Site()
    for number, needs in enumerate(({'VCPU': 400}, {'MEMORY_MB': 90_000}, {'VCPU': 15}), 50):
        with pytest.raises(exceptions.NoValidHost):
            site.place(number, count=8, **needs)
    site.place(1)
    refused = site.insights.refused(3600)
    assert (refused.decisions, refused.truncated) == (3, False)
    removed: dict[str, int] = {}
    hosts = 0
    for number in (50, 51, 52):
        explained = site.insights.explain(fixed(number))
        hosts += explained.hosts
        for step in explained.members[-1].funnel:
            removed[step.filter] = removed.get(step.filter, 0) + step.removed
    assert {s.filter: s.removed for s in refused.funnel} == {n: r for n, r in removed.items() if r}
    assert refused.hosts == hosts == sum(step.removed for step in refused.funnel)
    remaining = hosts
    for step in refused.funnel:
        remaining -= step.removed
        assert step.remaining == remaining
        assert 0 < step.decisions <= 3
        assert step.reason


def test_refusals_are_of_the_window_and_no_more_than_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(activity, 'REFUSALS_MAX', 2)
    site = Site()
    for number in (50, 51, 52):
        with pytest.raises(exceptions.NoValidHost):
            site.place(number, VCPU=400)
    refused = site.insights.refused(600)
    assert (refused.decisions, refused.truncated) == (2, True)
    for _ in range(11):
        site.pass_seconds(60)
    assert site.insights.refused(600).decisions == 0
