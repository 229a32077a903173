# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the benches of groups over RPC: planner, hosts with a cost, places read back."""

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bench import callers
from bench.group_clouds import CLASSES, COST, COST_MAX, Cloud, location
from bench.rig import Rig, rig
from gantt import exceptions
from gantt.core.messages.report import ReportedMetric
from gantt.core.messages.resource_classes import Inventory
from gantt.core.table.metrics import DeclaredMetric
from gantt.groups.client import PlannerClient
from gantt.groups.model.group_answer import GroupAnswer
from gantt.groups.model.group_description import GroupDescription
from gantt.groups.model.place_group import PlaceGroup
from gantt.stores import SqlStores, stores_for_url

#: A host is the better the less its metric is; of groups that are placed one by one the soft
#: policies come first, as they do where all are placed together.
CHEAPEST: dict[str, dict[str, object]] = {
    'filters': {'enabled_weighers': 'MetricsWeigher,GroupPolicyWeigher'},
    'weighers': {
        'metrics_weight_setting': f'{COST}=1.0',
        'metrics_weight_multiplier': -1.0,
        'group_policy_weight_multiplier': 1000.0,
    },
}
#: Time of a call beside that in which a plan is improved.
CALL_SECONDS = 60.0
PLANNER, SCHEDULER = 'planner', 'scheduler'


@contextlib.contextmanager
def planners(options: Mapping[str, dict[str, object]] = CHEAPEST) -> Iterator[tuple[Rig, Any]]:
    """Yield a rig with one scheduler and one planner, and a transport of callers."""
    with rig(callers.options(**options)) as testbed, callers.connected(testbed) as transport:
        store = stores_for_url(testbed.database)
        store.declarations.save_metric(DeclaredMetric(name=COST, lower=0.0, upper=COST_MAX))
        store.database.close()
        testbed.start(SCHEDULER, 'gantt-scheduler')
        testbed.start(PLANNER, 'gantt-planner')
        testbed.wait_for(SCHEDULER, 'is ready')
        testbed.wait_for(PLANNER, 'is ready')
        yield testbed, transport
        callers.end(testbed)


def read_anew(made: Rig) -> None:
    """Replace the scheduler by a process whose table is as the database is now."""
    made.stop(SCHEDULER)
    (made.folder / f'{SCHEDULER}.log').unlink()
    made.start(SCHEDULER, 'gantt-scheduler')
    made.wait_for(SCHEDULER, 'is ready')


def facts(
    room: Sequence[int], location: str, cost: float, traits: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the facts that a host reports.

    :param room: free amounts, by class
    """
    sizes = dict(zip(CLASSES, room, strict=True))
    return {
        # There is no inventory of nothing: of one unit, one is used.
        'inventories': {name: Inventory(total=max(amount, 1)) for name, amount in sizes.items()},
        'foreign': {name: 1 for name, amount in sizes.items() if not amount},
        'location': location,
        'traits': list(traits),
        'metrics': {COST: ReportedMetric(value=cost)},
    }


class PlannerCaller:
    """Calls on the topic of the planner, each once."""

    def __init__(self, transport: Any) -> None:
        self._client = PlannerClient(transport, attempt_seconds=CALL_SECONDS)

    def place(self, description: GroupDescription, seconds: float) -> GroupAnswer:
        """Place a group.

        :param seconds: for which its plan may be improved
        :raises NoValidHost: it cannot be placed, as far as is known
        """
        return self._client.place_group(
            PlaceGroup(
                request_id=str(uuid.uuid4()),
                group=description,
                budget_ms=int(CALL_SECONDS * 1000),
                plan_ms=max(1, int(seconds * 1000)),
                lease_seconds=callers.LEASE_SECONDS,
            )
        )

    def release(self, group: str) -> None:
        """Give the places back that no create has."""
        self._client.release_group_plan(group, timeout=CALL_SECONDS)


def placed(store: SqlStores, groups: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the hosts of members, by group: name -> host, of all live claims in the database."""
    claims_by_group = store.plans.load_reservations(groups)
    return {
        group: {claim.member_name: claim.host for claim in claims if claim.member_name}
        for group, claims in claims_by_group.items()
    }


def hosts_of(cloud: Cloud) -> dict[str, dict[str, Any]]:
    """Return the facts that the hosts of a cloud report, by name."""
    return {
        f'cmp-{host:05}': facts(free, location(cloud, host), float(cloud.cost[host]))
        for host, free in enumerate(cloud.free.tolist())
    }


class Planned(msgspec.Struct, frozen=True):
    """Outcome of a group that was to be placed.

    :ivar answer: None: it was refused
    :ivar refusal: why
    :ivar seconds: from the call to its answer, all places claimed
    :ivar where: member -> host, read back from the database
    """

    answer: GroupAnswer | None
    refusal: exceptions.NoValidHost | None
    seconds: float
    where: dict[str, str]


class GroupRun:
    """Groups that are placed one after the other, each on the hosts as they reported."""

    def __init__(self, made: Rig, transport: Any) -> None:
        self._made, self._transport = made, transport
        self._planner = PlannerCaller(transport)
        self._store = stores_for_url(made.database)
        self._groups: list[str] = []

    def close(self) -> None:
        """Leave the database."""
        self._store.database.close()

    def report(self, cloud: Cloud) -> None:
        """Let the hosts be those of a cloud: as many as before, or the first ones."""
        callers.report_facts(self._made, self._transport, hosts_of(cloud))

    def place(self, description: GroupDescription, seconds: float) -> Planned:
        """Place a group.

        :param seconds: in which the answer is wanted
        """
        members = sum(member.most for member in description.members)
        began = time.perf_counter()
        answer, refusal = None, None
        try:
            answer = self._planner.place(description, seconds - spare(members))
        except exceptions.NoValidHost as e:
            refusal = e
        took = time.perf_counter() - began
        where: dict[str, str] = {}
        if answer is not None:
            self._groups.append(answer.group)
            where = placed(self._store, [answer.group])[answer.group]
        return Planned(answer, refusal, took, where)

    def clear(self) -> None:
        """Give all places back."""
        while self._groups:
            self._planner.release(self._groups.pop())


def spare(members: int) -> float:
    """Return the seconds that a group takes beside its planning: on the way, and to be claimed."""
    return 0.15 + 0.0006 * members
