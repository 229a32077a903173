# SPDX-License-Identifier: Apache-2.0
"""Groups decided as a whole against their members placed one by one, under the same policies.

200 small clouds of six families, through RPC: ``place_group`` on the topic of the planner, and for
the same hosts a request for each member, in the order of the description.  Who is where is read
back from the database, and what it comes to is counted here: members placed, policies given up in
order, weight of violated soft policies, cost.  The value is the share of clouds in which the whole
is better; it may nowhere be worse.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from bench import Result, callers, conditions, count, group_rig, joint_clouds, joint_models
from bench.joint_clouds import FAMILIES, GUEST, JointCloud
from gantt import client, exceptions
from gantt.core.claims.claim import Claim
from gantt.core.messages.policy_set import PolicySet
from gantt.core.messages.request import GroupRef, RequestSpec, SelectDestinations
from gantt.groups.model import group_description
from gantt.stores import SqlStores, stores_for_url

IS_TIMED = False
BETTER, EQUAL, WORSE = 'better', 'equal', 'worse'
#: Families in which members one by one have the best places there are.
ALIKE = ('apart',)
#: Number of a cloud -> member -> host.
Places = Mapping[int, Mapping[str, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument('--clouds', type=count, default=200)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--seconds', type=float, default=2.0, help='for which a plan is improved')
    parser.add_argument('--family', choices=list(FAMILIES), help='only clouds of it')


class Side:
    """A way to place a group, and where that has put its members.

    :ivar where: number of a cloud -> member -> host
    :ivar refused: errors answered in place of a plan or a place, a line each
    """

    def __init__(self, store: SqlStores, transport: Any) -> None:
        self._store = store
        self._client = client.SchedulerClient(transport, attempt_seconds=30.0)
        self._requests: list[str] = []
        self._consumers: dict[str, str] = {}  # of requests -> the member that each is
        self.where: dict[int, dict[str, str]] = {}
        self.refused: list[str] = []

    def place(self, cloud: JointCloud) -> None:
        """Claim the guests that are there first, place the group, and read back its hosts."""
        group = str(uuid.uuid4())
        rule = _rule(cloud)
        for index in cloud.standing:
            spec = cloud.spec(GUEST)
            spec['force_hosts'] = [cloud.hosts[index].name]
            self._request(group, rule, spec)
        self._place(cloud, group, rule)
        claims = self._store.claims.list_claims(group=group, limit=1000)
        host_of = {self._name(claim): claim.host for claim in claims if claim.is_live}
        self.where[cloud.number] = {name: host_of[name] for name in cloud.sizes if name in host_of}

    def _name(self, claim: Claim) -> str | None:
        """Return the member whose claim it is."""
        return self._consumers.get(claim.consumer, claim.member_name)

    def _place(self, cloud: JointCloud, group: str, rule: PolicySet) -> None:
        raise NotImplementedError

    def _request(self, group: str, rule: PolicySet, spec: dict[str, Any], name: str = '') -> None:
        """Place one by itself.

        :param name: of the member; '': a guest that is none
        """
        whole = msgspec.convert(spec, RequestSpec)
        # A guest in no subgroup is a consumer of the group as any other.
        member = name if name in rule.names else None
        ref = GroupRef(uuid=group, policies=rule, member=member)
        request = SelectDestinations(
            request_id=str(uuid.uuid4()),
            spec=msgspec.structs.replace(whole, group=ref),
            consumers=[str(uuid.uuid4())],
            budget_ms=60_000,
            lease_seconds=callers.LEASE_SECONDS,
        )
        try:
            self._client.select_destinations(request)
        except exceptions.NoValidHost:
            return
        self._requests.append(request.request_id)
        self._consumers[request.consumers[0]] = name

    def clear(self) -> None:
        """Give all places back."""
        for request in self._requests:
            self._client.cancel_claims(request)


class Whole(Side):
    """Placement by one call of ``place_group``.

    :ivar statuses: of plans -> how many
    """

    def __init__(self, store: SqlStores, transport: Any, seconds: float) -> None:
        super().__init__(store, transport)
        self._planner = group_rig.PlannerCaller(transport)
        self._seconds, self._groups = seconds, list[str]()
        self.statuses: dict[str, int] = {}

    def _place(self, cloud: JointCloud, group: str, rule: PolicySet) -> None:
        description = group_description.read(cloud.description(group))
        try:
            answer = self._planner.place(description, self._seconds)
        except exceptions.GanttError as e:
            self.refused.append(f'cloud {cloud.number}: {e.message}')
            return
        self._groups.append(group)
        status = answer.plan.status if answer.plan else 'none'
        self.statuses[status] = self.statuses.get(status, 0) + 1

    def clear(self) -> None:
        for group in self._groups:
            self._planner.release(group)
        super().clear()


class OneByOne(Side):
    """Placement by a request for each member, in the order of the description."""

    def _place(self, cloud: JointCloud, group: str, rule: PolicySet) -> None:
        for name, size in cloud.sizes.items():
            self._request(group, rule, cloud.spec(size), name)


def _rule(cloud: JointCloud) -> PolicySet:
    body = {'policies': cloud.policies, 'subgroups': cloud.subgroups}
    return msgspec.convert(body, PolicySet)


def run(args: argparse.Namespace) -> Result:
    """Place all clouds as a whole, then, the hosts empty again, member by member."""
    drawn = joint_clouds.clouds(args.clouds, args.seed)
    clouds = [cloud for cloud in drawn if args.family in (None, cloud.family)]
    with group_rig.planners() as (testbed, transport):
        callers.report_facts(testbed, transport, _facts(clouds))
        store = stores_for_url(testbed.database)
        whole = Whole(store, transport, args.seconds)
        for cloud in clouds:
            whole.place(cloud)
        problems = callers.violations(testbed.database)
        whole.clear()
        group_rig.read_anew(testbed)
        by_one = OneByOne(store, transport)
        for cloud in clouds:
            by_one.place(cloud)
        store.database.close()
        problems += callers.violations(testbed.database) + whole.refused
        stated = callers.servers(testbed)
    families, cases, wrong = compared(clouds, whole.where, by_one.where)
    problems += wrong
    better, worse = (sum(of[how] for of in families.values()) for how in (BETTER, WORSE))
    unexpected = [case for case in cases if case['is'] == WORSE or _is_unequal(case)]
    value = better / max(len(clouds), 1)
    return Result(
        bench='joint',
        value=round(value, 4),
        unit='share of clouds in which a group placed as a whole is better',
        yardstick={'name': 'a request for each member, being better', 'value': worse},
        ratio=round(value, 4),
        conditions={
            **conditions.here(),
            **stated,
            'clouds': len(clouds),
            'families': families,
            'statuses': whole.statuses,
            'unexpected': unexpected,
            'problems': problems[:20],
        },
        audit=len(problems) + len(unexpected),
    )


def _is_unequal(case: Mapping[str, Any]) -> bool:
    """Return whether the sides differ where deciding a group as a whole cannot matter."""
    return case['family'] in ALIKE and case['is'] != EQUAL


def compared(
    clouds: Iterable[JointCloud], whole: Places, by_one: Places
) -> tuple[dict[str, dict[str, int]], list[dict[str, Any]], list[str]]:
    """Return counts by family, the two outcomes of each cloud, and the errors.

    :param whole: where groups are that were placed as a whole; ``by_one``: one by one
    """
    families: dict[str, dict[str, int]] = {}
    cases, problems = [], []
    for cloud in clouds:
        sides = whole[cloud.number], by_one[cloud.number]
        as_whole, other = (joint_models.outcome(cloud, where) for where in sides)
        problems += [
            f'cloud {cloud.number} of {cloud.family}, {name}: {line}'
            for name, where in zip(('whole', 'one by one'), sides, strict=True)
            for line in joint_models.broken(cloud, where)
        ]
        how = BETTER if as_whole < other else WORSE if other < as_whole else EQUAL
        families.setdefault(cloud.family, {BETTER: 0, EQUAL: 0, WORSE: 0})[how] += 1
        cases.append(
            {
                'cloud': cloud.number,
                'family': cloud.family,
                'is': how,
                'whole': msgspec.to_builtins(as_whole),
                'one_by_one': msgspec.to_builtins(other),
            }
        )
    return families, cases, problems


def _facts(clouds: Iterable[JointCloud]) -> dict[str, dict[str, Any]]:
    return {
        host.name: group_rig.facts(cloud.room(index), host.rack, float(host.cost), [cloud.trait])
        for cloud in clouds
        for index, host in enumerate(cloud.hosts)
    }
