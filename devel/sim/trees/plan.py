# SPDX-License-Identifier: Apache-2.0
"""The plan of a seed for a tree: its zones, and the trouble in it."""

import random

import msgspec

from devel.sim.plan import TROUBLE_SECONDS, Blow, Rates
from gantt.core.zones.strategies import DEFAULT


class PlannedZone(msgspec.Struct, frozen=True):
    """A zone of a tree.

    :ivar above: name of the zone directly above; '': it is the top
    :ivar hosts: of its own
    :ivar processes: each a scheduler with the interface for the zone above
    """

    name: str
    above: str
    hosts: int
    processes: int


class TreeFaultPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    :ivar zones: the top first, each after its parent
    :ivar stories: of callers of the top; ``direct``: of callers of a child zone
    """

    seed: int
    zones: list[PlannedZone]
    strategies: tuple[str, ...]
    stories: int
    direct: int
    rates: Rates
    blows: list[Blow]

    def has(self, what: str) -> bool:
        """Return whether this kind of trouble happens in it."""
        return any(blow.what == what for blow in self.blows)


#: How often a tree has some of this, and how many times at most.
KINDS = {
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
SHAPES = (
    (('top', ''), ('east', 'top'), ('west', 'top')),
    (('top', ''), ('east', 'top'), ('mid', 'top'), ('deep', 'mid')),
    (('top', ''), ('mid', 'top'), ('deep', 'mid'), ('low', 'mid')),
)
HOSTS_MOST = 2


def deal(seed: int) -> TreeFaultPlan:
    """Return the plan of a seed."""
    rng = random.Random(f'plan of a tree {seed}')
    blows = [blow for kind in KINDS for blow in _blows(rng, kind)]
    shape = rng.choice(SHAPES)
    above = {parent for _, parent in shape}
    return TreeFaultPlan(
        seed=seed,
        zones=[
            PlannedZone(
                name,
                parent,
                # Who has zones below may have hosts as well.
                rng.choice((0, 0, 1)) if name in above else rng.randint(1, HOSTS_MOST),
                rng.choice((1, 1, 2)),
            )
            for name, parent in shape
        ],
        strategies=rng.choice(((), DEFAULT)),
        stories=rng.randint(5, 10),
        direct=rng.randint(0, 2),
        rates=_rates(rng),
        blows=sorted(blows, key=lambda blow: blow.at),
    )


def _rates(rng: random.Random) -> Rates:
    def share(most: float) -> float:
        return round(rng.uniform(0, most), 3) if rng.random() < 0.6 else 0.0

    return Rates(lost=share(0.15), doubled=share(0.3), late=share(0.3))


def _blows(rng: random.Random, kind: str) -> list[Blow]:
    often, count_max = KINDS[kind]
    if rng.random() >= often:
        return []
    return [
        Blow(
            at=round(rng.uniform(1, TROUBLE_SECONDS - 5), 3),
            what=kind,
            whom=rng.randrange(1000),
            seconds=round(rng.uniform(0.5, 12), 3),
            when=rng.choice(('now', 'before', 'after')),
        )
        for _ in range(rng.randint(1, count_max))
    ]
