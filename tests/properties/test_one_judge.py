# SPDX-License-Identifier: Apache-2.0
"""One judge for all doors: requests one by one, members of one request, and plans.

A group of equal members with hard policies is asked for in each way on the same small cloud; where
they are to be near to another one, that comes after those of one request, and before single ones.
What has no place by one has none by the others, as far as the rules let those who see one member
after the other know; and whatever was placed meets the policies by plain counting.

A failing seed: ``pytest tests/properties/test_one_judge.py -k 'alike[SEED]'``.
"""

import itertools
import random
import time
from collections import Counter

import msgspec
import pytest

from gantt import plugin_loader
from gantt.core.records.decision import Outcome
from gantt.groups.model.group_description import GroupDescription
from gantt.groups.model.plan_group import plan_group
from gantt.groups.solver.cp_sat import CpSat
from tests.core.builders import a_host, a_request, a_table, decide, hosts_of
from tests.core.groups.test_one_member import GROUP, a_group

PIPELINE = plugin_loader.load_pipeline()
SHORT, LONG = 20, 1000
LEVELS = ('host', 'rack', 'zone')


class Case:
    """A cloud, policies and how many members.

    :ivar has_db: whether there is one more, which the others are to be near to
    """

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.rooms = [rng.randint(1, 3) for _ in range(rng.randint(2, 5))]
        self.racks = [rng.choice('abc') for _ in self.rooms]
        self.zones = ['xy'[rack > 'b'] for rack in self.racks]
        self.closed = [rng.random() < 0.15 for _ in self.rooms]
        self.count, self.has_db = rng.randint(1, 6), False
        #: At each level one: those are the rules under which one by one finds all there is.
        self.policies = [self.policy(rng, level) for level in rng.sample(LEVELS, rng.randint(1, 2))]

    def policy(self, rng: random.Random, level: str) -> dict:
        form = rng.choice(
            ['affinity', 'anti-affinity', 'max_skew', 'max_per_domain', 'near', 'near']
        )
        about = {'level': level, 'of': 'web'}
        if form in ('affinity', 'anti-affinity'):
            return {'policy': form, **about}
        if form != 'near':
            return {'policy': 'spread', **about, form: rng.randint(1, 2)}
        if rng.random() < 0.3:
            return {'policy': form, **about, 'target': {'host': f'cmp-{len(self.rooms)}'}}
        self.has_db = True
        return {'policy': form, **about, 'target': {'of': 'db'}}

    def table(self):
        return a_table(
            *(
                a_host(
                    number,
                    vcpu=room,
                    zone=zone,
                    location=f's.r.{rack}',
                    disabled='closed' if closed else None,
                )
                for number, (room, rack, zone, closed) in enumerate(
                    zip(self.rooms, self.racks, self.zones, self.closed, strict=True), 1
                )
            )
        )

    # -- the doors ---------------------------------------------------------------------

    def one_by_one(self) -> list[int] | None:
        return self.placed(*['db'] * self.has_db, *['web'] * self.count)

    def at_once(self) -> list[int] | None:
        return self.placed('webs', *['db'] * self.has_db)

    def placed(self, *requests: str) -> list[int] | None:
        """By one request after the other: the rows of all, that of ``db`` the last."""
        table, of = self.table(), {'web': [], 'db': []}
        for number, asked in enumerate(requests):
            member, count = ('web', self.count) if asked == 'webs' else (asked, 1)
            group = a_group(*self.policies, members=['web', 'db'], member=member)
            request = a_request(count, number * 10, group=group, resources={'VCPU': 1})
            answer = decide(table, request, PIPELINE)
            if answer.outcome is not Outcome.PLACED:
                return None
            of[member] += rows(answer)
        return of['web'] + of['db']

    def planned(self) -> list[int] | None:
        members = [
            {'name': name, 'count': count, 'spec': {'resources': {'VCPU': 1}}}
            for name, count in (('web', self.count), ('db', int(self.has_db)))
            if count
        ]
        body = {'uuid': GROUP, 'policies': self.policies, 'members': members}
        plan = plan_group(
            self.table(),
            msgspec.convert(body, GroupDescription),
            PIPELINE,
            clock=time.monotonic,
            seconds=30.0,
            seed=1,
            solver=CpSat(),
        )
        assert plan.status in ('optimal', 'feasible', 'infeasible')
        members = sorted(plan.members, key=lambda member: member.name.startswith('db'))
        return None if plan.missing else [member.provider_id - 1 for member in members]

    # -- by definition -----------------------------------------------------------------

    def domain(self, row: int, level: str) -> object:
        return {'host': row, 'rack': self.racks[row], 'zone': self.zones[row]}[level]

    def is_met(self, placed: list[int]) -> bool:
        """Whether all members there meet all policies, and have room."""
        there = Counter(placed)
        if any(n > self.rooms[row] or self.closed[row] for row, n in there.items()):
            return False
        return all(self.meets(policy, placed) for policy in self.policies)

    def meets(self, policy: dict, placed: list[int]) -> bool:
        webs = placed[: self.count]
        counts = Counter(self.domain(row, policy['level']) for row in webs)
        if policy['policy'] == 'near':
            last = placed[-1] if 'of' in policy['target'] else len(self.rooms) - 1
            return set(counts) == {self.domain(last, policy['level'])}
        if policy['policy'] == 'affinity':
            return len(counts) == 1
        if 'max_skew' not in policy:
            return max(counts.values()) <= policy.get('max_per_domain', 1)
        opened = [row for row, closed in enumerate(self.closed) if not closed]
        least = min(counts[self.domain(row, policy['level'])] for row in opened)
        return max(counts.values()) - least <= policy['max_skew']

    def is_possible(self) -> bool:
        hosts = range(len(self.rooms))
        webs = itertools.combinations_with_replacement(hosts, self.count)
        every = itertools.product(webs, *[hosts] * self.has_db)
        return any(self.is_met([*of, *db]) for of, *db in every)


def rows(decision) -> list[int]:
    return [int(host.removeprefix('cmp-')) - 1 for host in hosts_of(decision)]


def check(seed: int) -> None:
    case = Case(seed)
    possible = case.is_possible()
    planned, at_once, one_by_one = case.planned(), case.at_once(), case.one_by_one()
    assert (planned is not None) == possible
    if case.has_db and not possible:
        at_once = None  # as several of what they are to be near to may come, they are placed
    for placed in (planned, at_once, one_by_one):
        assert placed is None or case.is_met(placed)
    # One policy that says how many may be where, or how all are together, leaves no wrong choice
    # to who looks ahead; one by one the first of those that belong together cannot.
    if len(case.policies) == 1:
        assert (at_once is not None) == possible
        seen = case.count == 1 or not case.has_db  # how many are to come near is not known
        if case.policies[0]['policy'] != 'affinity' and seen:
            assert (one_by_one is not None) == possible


@pytest.mark.parametrize('seed', range(SHORT))
def test_all_doors_judge_alike(seed):
    check(seed)


@pytest.mark.slow
def test_all_doors_judge_alike_at_length():
    for seed in range(SHORT, LONG):
        check(seed)
