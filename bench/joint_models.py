# SPDX-License-Identifier: Apache-2.0
"""Independent models of the bench of joint placing: the outcome of a placement, by counting.

Nothing here is of the engine.  Violations among guests that were there before do not count.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from bench.joint_clouds import JointCloud, JointHost

Where = Mapping[str, JointHost]


class Outcome(msgspec.Struct, frozen=True, order=True):
    """Outcome of a placement: the less the better, the first field first.

    :ivar missing: members without a place
    :ivar given_up: violations of policies that are dropped, the last to be dropped first
    :ivar weight: of violated soft policies, in thousandths
    :ivar cost: of the hosts of all members
    """

    missing: int
    given_up: tuple[int, ...]
    weight: int
    cost: int


def outcome(cloud: JointCloud, hosts: Mapping[str, str]) -> Outcome:
    """Return the outcome of a placement: member -> host, those without a place left out."""
    where = _where(cloud, hosts)
    steps: Counter[int] = Counter()
    weight = 0.0
    for policy in cloud.policies:
        amount = sum(violation(cloud, policy, subject, where) for subject in _subjects(policy))
        if 'drop' in policy:
            steps[policy['drop']] += round(amount)
        weight += policy.get('soft', 0.0) * amount
    return Outcome(
        missing=len(cloud.sizes) - len(where),
        given_up=tuple(steps[order] for order in sorted(steps, reverse=True)),
        weight=round(weight * 1000),
        cost=sum(host.cost for host in where.values()),
    )


def broken(cloud: JointCloud, hosts: Mapping[str, str]) -> list[str]:
    """Return the errors: hosts with more than they have room for, and broken hard policies."""
    where = _where(cloud, hosts)
    problems = []
    for host in cloud.hosts:
        sizes = [cloud.sizes[name] for name, at in where.items() if at.name == host.name]
        used = [sum(amounts) for amounts in zip(*sizes, strict=True)]
        if any(amount > free for amount, free in zip(used, host.free, strict=False)):
            problems.append(f'host {host.name} is over-committed')
    for policy in cloud.policies:
        if 'soft' in policy or 'drop' in policy:
            continue
        for subject in _subjects(policy):
            if violation(cloud, policy, subject, where):
                problems.append(f'{policy["policy"]} of {subject or "all"} is broken')
    return problems


def violation(
    cloud: JointCloud, policy: Mapping[str, Any], subject: str | None, where: Where
) -> float:
    """Return the amount by which a placement violates a policy, of one of its subjects."""
    level = policy.get('level', 'host')
    mine = [where[name].domain(level) for name in _members(cloud, subject) if name in where]
    # Guests that stand are of no subgroup.
    guests = cloud.standing if subject is None else []
    before = Counter(cloud.hosts[index].domain(level) for index in guests)
    match policy['policy']:
        case 'affinity':
            return float(_not_together(Counter(mine), before))
        case 'anti-affinity':
            allowed = policy.get('max_per_domain', 1)
            return float(
                sum(max(n - max(allowed - before[at], 0), 0) for at, n in Counter(mine).items())
            )
        case 'spread':
            return float(_uneven(cloud, policy, Counter(mine), before))
        case 'near':
            return sum(_price(cloud, policy, where, name) for name in _members(cloud, subject))
    raise ValueError(f'nothing counts {policy["policy"]} here')


def _where(cloud: JointCloud, hosts: Mapping[str, str]) -> dict[str, JointHost]:
    by_name = {host.name: host for host in cloud.hosts}
    return {name: by_name[host] for name, host in hosts.items()}


def _subjects(policy: Mapping[str, Any]) -> list[str | None]:
    of = policy.get('of')
    return of if isinstance(of, list) else [of]


def _members(cloud: JointCloud, subject: str | None) -> list[str]:
    if subject is None:
        return list(cloud.sizes)
    return cloud.subgroups.get(subject, [subject])


def _not_together(mine: Counter[str], before: Counter[str]) -> int:
    if before:
        return sum(n for at, n in mine.items() if not before[at])
    return mine.total() - max(mine.values(), default=0)


def _uneven(
    cloud: JointCloud, policy: Mapping[str, Any], mine: Counter[str], before: Counter[str]
) -> int:
    """Return the members in domains beyond what the emptiest one and the skew allow.

    A domain that guests have filled beyond that takes no member, and lets none go beyond elsewhere.
    """
    level = policy.get('level', 'host')
    domains = {
        host.domain(level)
        for host in cloud.hosts
        if any(
            all(need <= free for need, free in zip(size, host.free, strict=True))
            for size in cloud.sizes.values()
        )
    }

    total = mine + before
    allowed = min(total[at] for at in domains) + policy['max_skew']
    return sum(max(total[at] - max(before[at], allowed), 0) for at in domains) if mine else 0


def _price(cloud: JointCloud, policy: Mapping[str, Any], where: Where, name: str) -> float:
    """Return the price of a member by its distance from its target."""
    if name not in where:
        return 0.0
    level = policy.get('level', 'host')
    target = policy['target']
    if 'of' in target:
        there = [where[member] for member in _members(cloud, target['of']) if member in where]
    else:
        there = [host for host in cloud.hosts if host.domain(level) == target['domain']]
    for step in policy.get('prices') or [{'level': level, 'price': 0.0}]:
        if where[name].domain(step['level']) in {host.domain(step['level']) for host in there}:
            return float(step['price'])
    return float(policy.get('beyond', 1.0))
