# SPDX-License-Identifier: Apache-2.0
"""The plan of a seed: the size of its world, and the trouble in it.

Times are virtual seconds.  Everything is small, so that a run is short and
hosts are contended for: trouble that needs a full host finds one.
"""

import random

import msgspec

#: Trouble begins with the run and ends here; then everything is healed.
TROUBLE_SECONDS = 60.0
REPORT_SECONDS = 10
LEASE_SECONDS = 15.0
LEASE_MOST = 30.0
#: Of places of groups; the longest is over well within the time of convergence.
PLAN_LEASE_SECONDS, PLAN_LEASE_MOST = 20.0, 45.0
SWEEP_SECONDS = 3.0
FEED_SECONDS = 1.0
RELOAD_SECONDS = 20.0
CALL_SECONDS = 10.0
#: After the last conductor has ended: the longest lease, a sweep that comes as
#: late as it may, two reports, one whole comparison; and what a last build may wait.
CONVERGENCE_SECONDS = (
    LEASE_MOST + 1.5 * SWEEP_SECONDS + 2.2 * REPORT_SECONDS + RELOAD_SECONDS + 15.0
)

#: A delta is cast: a host whose deltas rest on what the database has forgotten hears of
#: it when its next full report is answered, the tenth at the latest.
DEAF_SECONDS = 11.0 * REPORT_SECONDS


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Share of the messages to which something happens."""

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    late_most: float = 8.0  # seconds


class Blow(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happens at a time.

    ``what``: kill_scheduler | kill_compute | lose_journal | lose_power | lost_answer |
    database_away | blind_feed | cut_host | skew | restore | twin | shrink, and where groups are
    planned kill_planner | skew_planner | blind_planner | lose_host
    """

    at: float
    what: str
    whom: int = 0  # which scheduler or host; taken modulo their number
    seconds: float = 0.0  # how long it lasts, or until the dead come back
    when: str = ''  # of a death: now | before | after the next step that matters


class SimPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    :ivar queue_limit: of requests inside a scheduler, and of groups inside a planner; small ones
        are busy often
    :ivar groups: that are planned as a whole; 0: there is no planner
    :ivar planners: processes that plan them
    """

    seed: int
    schedulers: int
    hosts: int
    stories: int
    rates: Rates
    blows: list[Blow]
    queue_limit: int = 100
    report_limit: int = 100
    groups: int = 0
    planners: int = 0

    def has(self, what: str) -> bool:
        """Return whether this kind of trouble happens in it."""
        return any(blow.what == what for blow in self.blows)


#: How often a world has some of this, and how many times at most.
KINDS = {
    'kill_scheduler': (0.5, 4),
    'kill_compute': (0.5, 4),
    'lose_journal': (0.15, 2),
    'lose_power': (0.15, 2),
    'lost_answer': (0.5, 5),
    'database_away': (0.3, 2),
    'blind_feed': (0.3, 2),
    'cut_host': (0.3, 3),
    'skew': (0.4, 4),
    'restore': (0.08, 1),
    'twin': (0.12, 1),
    'shrink': (0.1, 1),
}
#: The same where groups are planned, beside those.
GROUP_KINDS = {
    'kill_planner': (0.6, 4),
    'skew_planner': (0.3, 2),
    'blind_planner': (0.3, 2),
    'lose_host': (0.4, 1),
}
#: Share of the worlds in which groups are planned.
GROUPS_SHARE = 0.25
#: A host that is lost goes by then, comes back when trouble ends, and is known to be down from then
#: on.
LOSE_SECONDS, HEAL_SECONDS = 14.0, 46.0


def deal(seed: int) -> SimPlan:
    """Return the plan of a seed."""
    rng = random.Random(f'plan {seed}')
    blows = [blow for kind, terms in KINDS.items() for blow in _blows(rng, kind, *terms)]
    # Drawn by themselves, so that all else is as it would be without groups.
    group_rng = random.Random(f'groups {seed}')
    groups = group_rng.randint(1, 4) if group_rng.random() < GROUPS_SHARE else 0
    if groups:
        blows += [
            blow for kind, terms in GROUP_KINDS.items() for blow in _blows(group_rng, kind, *terms)
        ]
        blows = [_early(group_rng, blow) if blow.what == 'lose_host' else blow for blow in blows]
    return SimPlan(
        seed=seed,
        schedulers=rng.choice((1, 2, 2, 3, 3)),
        hosts=rng.randint(3, 12),
        stories=rng.randint(6, 14),
        rates=_rates(rng),
        blows=sorted(blows, key=lambda blow: blow.at),
        queue_limit=rng.choice((2, 100, 100)),
        report_limit=rng.choice((2, 100, 100)),
        groups=groups,
        planners=group_rng.choice((1, 2, 2)) if groups else 0,
    )


def _rates(rng: random.Random) -> Rates:
    def share(most: float) -> float:
        return round(rng.uniform(0, most), 3) if rng.random() < 0.6 else 0.0

    return Rates(lost=share(0.2), doubled=share(0.3), late=share(0.3))


def _blows(rng: random.Random, kind: str, often: float, most: int) -> list[Blow]:
    if rng.random() >= often:
        return []
    return [
        Blow(
            at=round(rng.uniform(1, TROUBLE_SECONDS - 5), 3),
            what=kind,
            whom=rng.randrange(1000),
            seconds=round(rng.uniform(0.5, 15), 3),
            when=rng.choice(('now', 'before', 'after')),
        )
        for _ in range(rng.randint(1, most))
    ]


def _early(rng: random.Random, blow: Blow) -> Blow:
    """Return a loss that is known before all is healed."""
    return msgspec.structs.replace(blow, at=round(rng.uniform(8, LOSE_SECONDS), 3))
