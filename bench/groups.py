# SPDX-License-Identifier: Apache-2.0
"""Groups planned as a whole, through RPC: seconds, and the gap to bounds of the bench's own.

``place_group`` comes from the topic of a planner with its own process; hosts have reported what
they cost, and the places of a plan are read back from the database and evaluated here.

``--planted``: clouds with just enough room for a placement that was drawn, beside what sequential
placing reaches there.  ``--contradictions``: groups of which a few members cannot be placed
together: how soon those are named.  ``--beside``: the rate of single requests while groups of 50
are planned without end, and without.  ``--create``: the rate of creates of planned members, beside
single requests.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
from typing import Any

from bench import (
    Result,
    callers,
    conditions,
    count,
    group_clouds,
    group_contradictions,
    group_load,
    group_models,
)
from bench.group_rig import GroupRun, hosts_of, planners

#: Members, hosts, whether they are alike, seconds, the gap that is wanted.
TABLE = [
    *(
        (members, hosts, True, 2.0, 0.01)
        for hosts in (100, 1000, 10_000)
        for members in (10, 50, 200)
    ),
    (1000, 10_000, True, 10.0, 0.01),
    (200, 10_000, False, 5.0, 0.03),
]
#: Items, hosts, slack, seconds, the share of seeds in which all are to be placed.
PLANTED = [
    *((60, 40, slack, 5.0, 1.0) for slack in (0.0, 0.1, 0.3)),
    *((200, 150, slack, 10.0, share) for slack, share in ((0.3, 1.0), (0.15, 0.8), (0.0, 0.0))),
]
#: Members and hosts of groups with a contradiction, and seconds in which it is to be named.
CONTRADICTIONS = [(10, 100), (50, 100), (50, 1000), (200, 1000), (200, 10_000)]
NAMED_SECONDS = 1.0
#: Booleans of the yardstick at most, and its seconds.
NAIVE_MAX, NAIVE_SECONDS = 100_000, 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument('--planted', action='store_true', help='clouds with just enough room')
    kinds.add_argument('--contradictions', action='store_true', help='groups with one in them')
    kinds.add_argument('--beside', action='store_true', help='single requests beside plans')
    kinds.add_argument('--create', action='store_true', help='planned members are created')
    parser.add_argument('--seeds', type=count, default=0, help='clouds of a case (1, planted 20)')
    parser.add_argument('--members', type=count, default=0, help='only cases with so many')
    parser.add_argument('--hosts', type=count, default=0, help='only cases with so many')
    parser.add_argument('--bound-seconds', type=float, default=60.0, help='for a bound of its own')
    group_load.add_arguments(parser)


def run(args: argparse.Namespace) -> Result:
    """Run all cases, one after the other."""
    if args.beside:
        return group_load.beside(args)
    if args.create:
        return group_load.created(args)
    if args.contradictions:
        return contradicted(args)
    return planted(args) if args.planted else tabled(args)


def _wanted(args: argparse.Namespace, members: int, hosts: int) -> bool:
    return args.members in (0, members) and args.hosts in (0, hosts)


def _cases(args: argparse.Namespace, of: list[Any]) -> dict[int, list[Any]]:
    """Return the cases that the options select, by their number of hosts."""
    cases: dict[int, list[Any]] = {}
    for case in of:
        if _wanted(args, case[0], case[1]):
            cases.setdefault(case[1], []).append(case)
    return cases


def tabled(args: argparse.Namespace) -> Result:
    """Measure members by hosts: the gap to the better of two bounds."""
    cases: list[dict[str, Any]] = []
    problems: list[str] = []
    stated: dict[str, object] = {}
    for hosts, of in _cases(args, TABLE).items():
        for seed in range(1, (args.seeds or 1) + 1):
            with planners() as (bed, transport):
                # With one seed and so many hosts they are the same, whichever group comes there.
                callers.report_facts(bed, transport, hosts_of(group_clouds.alike(10, hosts, seed)))
                planning = GroupRun(bed, transport)
                for case in of:
                    cases.append(_tabled(planning, case, seed, args.bound_seconds, problems))
                    print(cases[-1], flush=True)
                problems += callers.violations(bed.database)
                stated = callers.servers(bed)
                planning.close()
    value = max((case['gap'] for case in cases), default=0.0)
    stick = max((case['yardstick'] or 0.0 for case in cases), default=0.0)
    return Result(
        bench='groups',
        value=value,
        unit='gap',
        yardstick={'name': 'member by host CP-SAT', 'value': stick},
        ratio=round(value / stick, 3) if stick else 0.0,
        conditions={**conditions.here(), **stated, 'cases': cases, 'problems': problems[:20]},
        audit=len(problems),
    )


def _tabled(
    planning: GroupRun, case: Any, seed: int, bound_seconds: float, problems: list[str]
) -> dict[str, Any]:
    members, hosts, alike, seconds, gap = case
    cloud = (group_clouds.alike if alike else group_clouds.unlike)(members, hosts, seed)
    done = planning.place(group_clouds.description_of(cloud), seconds)
    planning.clear()
    wrong = group_models.broken(cloud, done.where)
    problems += [f'{members} members on {hosts} hosts: {line}' for line in wrong]
    placed = len(done.where) == cloud.members
    value = group_models.cost(cloud, done.where)
    bound = group_models.separable(cloud)
    if value > bound and placed:
        bound = max(bound, group_models.by_size(cloud, bound_seconds))
    relative_gap = (value - bound) / value if placed and value else 1.0
    naive = None
    if cloud.members * hosts <= NAIVE_MAX:
        naive = group_models.naive(cloud, NAIVE_SECONDS)
    plan = done.answer.plan if done.answer is not None else None
    return {
        'members': cloud.members,
        'hosts': hosts,
        'alike': alike,
        'seed': seed,
        'seconds': round(done.seconds, 3),
        'gap': round(relative_gap, 5),
        'status': plan.status if plan else str(done.refusal),
        'method': plan and plan.method,
        'planned_seconds': plan and round(plan.seconds, 3),
        'own_gap': plan and plan.gap and round(plan.gap, 5),
        'met': bool(done.seconds <= seconds and relative_gap <= gap and not wrong),
        'yardstick': naive and round(max(naive - bound, 0.0) / naive, 5),
    }


def planted(args: argparse.Namespace) -> Result:
    """Plan clouds in which all have a place: in how many of them all get one."""
    cases: list[dict[str, Any]] = []
    problems: list[str] = []
    stated: dict[str, object] = {}
    for of in _cases(args, PLANTED).values():
        with planners() as (bed, transport):
            planning = GroupRun(bed, transport)
            for case in of:
                cases.append(_planted(planning, case, args.seeds or 20, problems))
                print(cases[-1], flush=True)
            problems += callers.violations(bed.database)
            stated = callers.servers(bed)
            planning.close()
    value = min((case['placed_all'] for case in cases), default=0.0)
    stick = min((case['sequential_all'] for case in cases), default=0.0)
    return Result(
        bench='groups --planted',
        value=value,
        unit='share of clouds in which all are placed',
        yardstick={'name': 'the best of four sequential orders', 'value': stick},
        ratio=round(value / stick, 3) if stick else 0.0,
        conditions={
            **conditions.here(),
            **stated,
            'placed_all': {
                f'{c["items"]}/{c["hosts"]}/{c["slack"]}': c['placed_all'] for c in cases
            },
            'cases': cases,
            'problems': problems[:20],
        },
        audit=len(problems) + sum(case['sequential_better'] for case in cases),
    )


def _planted(planning: GroupRun, case: Any, seeds: int, problems: list[str]) -> dict[str, Any]:
    items, hosts, slack, seconds, share = case
    all_placed, best_of, better, times, least = 0, [], 0, [], items
    for seed in range(1, seeds + 1):
        cloud = group_clouds.planted(items, hosts, slack, seed)
        planning.report(cloud)
        done = planning.place(group_clouds.description_of(cloud), seconds)
        times.append(done.seconds)
        if done.answer is None:
            # Nothing is placed unless all are; where they need not be, those that can be are.
            planning.clear()
            done = planning.place(group_clouds.description_of(cloud, must=False), seconds)
        planning.clear()
        wrong = group_models.broken(cloud, done.where)
        problems += [f'{items} items on {hosts} hosts, seed {seed}: {line}' for line in wrong]
        full = sum(
            all(f'm{item}-{part}' in done.where for part in 'abcd'[: len(sizes)])
            for item, sizes in enumerate(cloud.items)
        )
        best = max(group_models.sequential(cloud, how) for how in group_models.ORDERS)
        all_placed += full == items and times[-1] <= seconds
        better += best > full
        best_of.append(best)
        least = min(least, full)
    return {
        'items': items,
        'hosts': hosts,
        'slack': slack,
        'placed_all': all_placed / seeds,
        'worst': least,
        'sequential_all': sum(best == items for best in best_of) / seeds,
        'sequential_worst': min(best_of),
        'sequential_better': better,
        'seconds_max': round(max(times), 3),
        'met': all_placed / seeds >= share and not better,
    }


def contradicted(args: argparse.Namespace) -> Result:
    """Plan groups that cannot be placed: the share whose reason is named, exactly and in time."""
    cases: list[dict[str, Any]] = []
    problems: list[str] = []
    stated: dict[str, object] = {}
    for hosts, of in _cases(args, CONTRADICTIONS).items():
        for seed in range(1, (args.seeds or 1) + 1):
            with planners() as (bed, transport):
                callers.report_facts(bed, transport, hosts_of(group_clouds.alike(10, hosts, seed)))
                planning = GroupRun(bed, transport)
                for members, _ in of:
                    for contradiction in group_contradictions.of_cloud(members, hosts, seed):
                        cases.append(_contradicted(planning, contradiction, members, hosts, seed))
                        print(cases[-1], flush=True)
                problems += callers.violations(bed.database)
                stated = callers.servers(bed)
                planning.close()
    value = sum(case['met'] for case in cases) / max(len(cases), 1)
    return Result(
        bench='groups --contradictions',
        value=round(value, 4),
        unit='share of contradictions that are named in time',
        yardstick={'name': 'all of them', 'value': 1.0},
        ratio=round(value, 4),
        conditions={**conditions.here(), **stated, 'cases': cases, 'problems': problems[:20]},
        audit=len(problems),
    )


def _contradicted(
    planning: GroupRun,
    contradiction: group_contradictions.Contradiction,
    members: int,
    hosts: int,
    seed: int,
) -> dict[str, Any]:
    done = planning.place(contradiction.description, NAMED_SECONDS)
    planning.clear()
    is_named = done.refusal is not None and contradiction.is_named(done.refusal.kwargs)
    return {
        'members': members,
        'hosts': hosts,
        'seed': seed,
        'what': contradiction.name,
        'seconds': round(done.seconds, 3),
        'is_named': is_named,
        'met': is_named and done.seconds <= NAMED_SECONDS,
    }
