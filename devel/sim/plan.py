# SPDX-License-Identifier: Apache-2.0
"""The plan of a seed: the zones of its world, and the trouble in it.

Times are virtual seconds.  Everything is small, so that a run is short and
hosts are contended for: trouble that needs a full host finds one.
"""

import random

import msgspec

from gantt.zones.model.strategies import DEFAULT

#: Trouble begins with the run and ends here; then everything is healed.
TROUBLE_SECONDS = 60.0
REPORT_SECONDS = 10
LEASE_SECONDS = 15.0
LEASE_SECONDS_MAX = 30.0
#: Of places of groups; the longest is over well within the time of convergence.
PLAN_LEASE_SECONDS, PLAN_LEASE_MOST = 20.0, 45.0
SWEEP_SECONDS = 3.0
FEED_SECONDS = 1.0
RELOAD_SECONDS = 20.0
CALL_SECONDS = 10.0
#: After the last conductor has ended: the longest lease, a sweep that comes as
#: late as it may, two reports, one whole comparison; and what a last build may wait.
CONVERGENCE_SECONDS = (
    LEASE_SECONDS_MAX + 1.5 * SWEEP_SECONDS + 2.2 * REPORT_SECONDS + RELOAD_SECONDS + 15.0
)

#: A delta is cast: a host whose deltas rest on what the database has forgotten hears of
#: it when its next full report is answered, the tenth at the latest.
HOST_LOSS_SECONDS = 11.0 * REPORT_SECONDS


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Share of the messages to which something happens."""

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    late_most: float = 8.0  # seconds


class SimFault(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happens at a time; ``what`` is a key of the kinds below."""

    at: float
    what: str
    whom: int = 0  # which zone, process or host; taken modulo their number
    seconds: float = 0.0  # how long it lasts, or until the dead come back
    when: str = ''  # of a death: now | before | after the next step that matters


class PlannedZone(msgspec.Struct, frozen=True, kw_only=True):
    """A zone.

    :ivar name: '' where it is the only one
    :ivar above: name of the zone directly above; '': it is the top
    :ivar hosts: of its own
    :ivar processes: schedulers, each with the interface for the parent zone in a tree
    """

    name: str = ''
    above: str = ''
    hosts: int
    processes: int


class SimPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    :ivar zones: the top first, each after its parent; a flat world is one
    :ivar strategies: by which zones choose child zones
    :ivar stories: of callers of the top; ``direct``: of callers of a child zone
    :ivar queue_limit: of requests inside a scheduler, and of groups inside a planner; small ones
        are busy often
    :ivar groups: that are planned as a whole; 0: there is no planner
    :ivar planners: processes that plan them
    """

    seed: int
    zones: list[PlannedZone]
    strategies: tuple[str, ...] = ()
    stories: int
    direct: int = 0
    rates: Rates
    faults: list[SimFault]
    queue_limit: int = 100
    report_limit: int = 100
    groups: int = 0
    planners: int = 0

    @property
    def is_tree(self) -> bool:
        return len(self.zones) > 1

    def has(self, what: str) -> bool:
        """Return whether this kind of trouble happens in it."""
        return any(fault.what == what for fault in self.faults)


#: How often a world has some of this, and how many times at most.
FAULT_KINDS = {
    'kill_process': (0.5, 4),
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
GROUP_FAULT_KINDS = {
    'kill_planner': (0.6, 4),
    'skew_planner': (0.3, 2),
    'blind_planner': (0.3, 2),
    'lose_host': (0.4, 1),
}
#: Those of a tree of zones.
TREE_FAULT_KINDS = {
    'kill_process': (0.6, 6),
    'kill_in_statement': (0.5, 6),
    'freeze_process': (0.4, 3),
    'lost_answer': (0.5, 5),
    'database_away': (0.3, 2),
    'cut_link': (0.5, 4),
    'kill_compute': (0.3, 2),
    'skew_process': (0.3, 2),
    'restore': (0.15, 1),
}
#: Name of the trees, and of each zone the one above.
TREE_SHAPES = (
    (('top', ''), ('east', 'top'), ('west', 'top')),
    (('top', ''), ('east', 'top'), ('mid', 'top'), ('deep', 'mid')),
    (('top', ''), ('mid', 'top'), ('deep', 'mid'), ('low', 'mid')),
)
#: Of a zone of a tree that has no child zones.
HOSTS_MOST = 2
#: Share of the worlds in which groups are planned.
GROUPS_SHARE = 0.25
#: A host that is lost goes by then, comes back when trouble ends, and is known to be down from then
#: on.
LOSE_SECONDS, HEAL_SECONDS = 14.0, 46.0


def random_plan(seed: int) -> SimPlan:
    """Return the plan of a seed for one zone."""
    rng = random.Random(f'plan {seed}')
    faults = [fault for kind, terms in FAULT_KINDS.items() for fault in _faults(rng, kind, *terms)]
    # Drawn by themselves, so that all else is as it would be without groups.
    group_rng = random.Random(f'groups {seed}')
    groups = group_rng.randint(1, 4) if group_rng.random() < GROUPS_SHARE else 0
    if groups:
        faults += [
            fault
            for kind, terms in GROUP_FAULT_KINDS.items()
            for fault in _faults(group_rng, kind, *terms)
        ]
        faults = [
            _early(group_rng, fault) if fault.what == 'lose_host' else fault for fault in faults
        ]
    return SimPlan(
        seed=seed,
        zones=[PlannedZone(processes=rng.choice((1, 2, 2, 3, 3)), hosts=rng.randint(3, 12))],
        stories=rng.randint(6, 14),
        rates=_rates(rng),
        faults=sorted(faults, key=lambda fault: fault.at),
        queue_limit=rng.choice((2, 100, 100)),
        report_limit=rng.choice((2, 100, 100)),
        groups=groups,
        planners=group_rng.choice((1, 2, 2)) if groups else 0,
    )


def random_tree_plan(seed: int) -> SimPlan:
    """Return the plan of a seed for a tree of zones."""
    rng = random.Random(f'plan of a tree {seed}')
    faults = [
        fault
        for kind, terms in TREE_FAULT_KINDS.items()
        for fault in _faults(rng, kind, *terms, seconds_most=12)
    ]
    shape = rng.choice(TREE_SHAPES)
    above = {parent for _, parent in shape}
    return SimPlan(
        seed=seed,
        zones=[
            PlannedZone(
                name=name,
                above=parent,
                # A zone with child zones may have hosts as well.
                hosts=rng.choice((0, 0, 1)) if name in above else rng.randint(1, HOSTS_MOST),
                processes=rng.choice((1, 1, 2)),
            )
            for name, parent in shape
        ],
        strategies=rng.choice(((), DEFAULT)),
        stories=rng.randint(5, 10),
        direct=rng.randint(0, 2),
        rates=_rates(rng, lost_most=0.15),
        faults=sorted(faults, key=lambda fault: fault.at),
    )


def _rates(rng: random.Random, lost_most: float = 0.2) -> Rates:
    def share(most: float) -> float:
        return round(rng.uniform(0, most), 3) if rng.random() < 0.6 else 0.0

    return Rates(lost=share(lost_most), doubled=share(0.3), late=share(0.3))


def _faults(
    rng: random.Random, kind: str, often: float, most: int, seconds_most: float = 15
) -> list[SimFault]:
    if rng.random() >= often:
        return []
    return [
        SimFault(
            at=round(rng.uniform(1, TROUBLE_SECONDS - 5), 3),
            what=kind,
            whom=rng.randrange(1000),
            seconds=round(rng.uniform(0.5, seconds_most), 3),
            when=rng.choice(('now', 'before', 'after')),
        )
        for _ in range(rng.randint(1, most))
    ]


def _early(rng: random.Random, fault: SimFault) -> SimFault:
    """Return a loss that is known before all is healed."""
    return msgspec.structs.replace(fault, at=round(rng.uniform(8, LOSE_SECONDS), 3))
