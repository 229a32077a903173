# SPDX-License-Identifier: Apache-2.0
"""The scenario of a group: planned as a whole, created in any order, a host lost, healed."""

import collections
import queue
import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from devel.demo import say
from devel.demo.cluster import DATABASES, FLAVORS, HOSTS, RACKS, REPLICAS, SHOPS, SPARES, Cluster
from devel.demo.environment import TOO_BUSY_PREFIX, Stage, wait_until
from gantt import exceptions
from gantt.compute.farm import Farm, FarmPlan, Fault, HostSelector
from gantt.core.messages.request import GroupRef, RequestSpec, SelectDestinations
from gantt.groups.model.group_answer import GroupAnswer, GroupPlanView
from gantt.groups.model.group_plan import GroupPlan
from gantt.groups.model.place_group import ChangeGroup, PlaceGroup
from gantt.insights.explain.wording import counted_noun

T = TypeVar('T')

CALLER_THREADS = 8
#: That a plan is improved for.
PLAN_MS = 1500
#: Each host of the hall is the first of its shape.
NAME_PREFIX = 'hall'
#: Members on the host that is lost, where there is such a host.
LOST_GUESTS = 2
#: Time that hosts may take to report that guests run.
CONFIRM_SECONDS = 10.0
#: Tries of a step where hosts do not report in time, and seconds to wait for them.
TRIES, LATE_SECONDS = 3, 30.0


class GroupDemo:
    """The cluster on its way; one method for each part."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage, self._cluster = stage, Cluster()
        self._rng = random.Random(seed)
        self._farms: list[Farm] = []

    def play(self) -> bool:
        """Play the whole scenario; return whether every member is where it should be."""
        self._hosts_appear()
        plan = self._is_planned()
        self._print_racks(plan)
        self._create_members(plan)
        all_created = self._wait_until_all_run('created')
        return self._heal_and_check(self._kill_host(plan)) and all_created

    # -- hosts -------------------------------------------------------------------------
    def _hosts_appear(self) -> None:
        self._add_hosts(FarmPlan(count=HOSTS, prefix=NAME_PREFIX, shapes=self._cluster.shapes))
        say.paragraph(
            f'{HOSTS} hosts in {RACKS} racks have room for one cluster, and nothing more: '
            f'{DATABASES} databases of {REPLICAS}, each on a rack of its own, and {SHOPS} shops, '
            f'each a web server and its cache on one host; {len(FLAVORS)} flavors'
        )

    def _open_spares(self) -> None:
        name = f'spare{len(self._farms)}'
        self._add_hosts(FarmPlan(count=SPARES, prefix=name, shapes=[self._cluster.spare]))
        say.line(f'{SPARES} spare hosts are switched on')

    def _add_hosts(self, plan: FarmPlan) -> None:
        """Wait until the planner of groups has all hosts, with their inventories."""
        farm = self._stage.add_hosts(plan.prefix, plan)
        self._farms.append(farm)
        cache = self._stage.groups.planner.cache

        def is_known() -> bool:
            cache.reload_soon()
            reported = {host.name for host in cache.table(0.0).hosts if host.reported_at > 0}
            return reported >= farm.hosts.keys()

        if not wait_until(is_known):
            raise RuntimeError(TOO_BUSY_PREFIX + 'the hosts of the cluster have not reported')

    # -- step one: the plan ---------------------------------------------------------------
    def _is_planned(self) -> GroupPlan:
        try:
            return self._once_all_report(self._place)
        except exceptions.NoValidHost as e:
            say.paragraph(e.message, '  ')
            say.paragraph(str(e.kwargs.get('proofs') or ''), '  ')
        self._open_spares()
        return self._once_all_report(self._place)

    def _place(self) -> GroupPlan:
        """Place the group.  :raises NoValidHost: not all are placed, and nothing is claimed"""
        began = time.monotonic()
        answer = self._stage.planner.place_group(
            PlaceGroup(
                request_id=str(uuid.uuid4()),
                group=self._cluster.description,
                plan_ms=PLAN_MS,
                project_id='demo',
            )
        )
        seconds = time.monotonic() - began
        plan = answer.plan
        assert plan is not None, 'all of its members were to be placed'
        member_count = len(plan.members)
        say.table(
            ('', 'placed', 'of'),
            [
                ('one after the other', member_count - plan.sequential.missing, member_count),
                ('planned as a whole', member_count - plan.goals.missing, member_count),
            ],
        )
        say.paragraph(
            f'{_quality_text(plan)}; planned, checked and claimed in {seconds:.1f} s', '  '
        )
        return plan

    def _print_racks(self, plan: GroupPlan) -> None:
        hosts = {host.name: host for host in self._stage.groups.planner.cache.table().hosts}
        racks: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for member in plan.members:
            counts = racks[hosts[member.host].facts.location.split('.')[-2]]
            counts['databases' if member.member.startswith('db') else 'shops'] += 1
            counts[f'host {member.host}'] = 1
            counts['vcpu'] += self._spec(member.name).resources['VCPU']
        say.table(
            ('rack', 'hosts taken', 'databases', 'web and cache', 'vCPUs'),
            [
                (
                    rack,
                    sum(name.startswith('host ') for name in counts),
                    counts['databases'],
                    counts['shops'],
                    counts['vcpu'],
                )
                for rack, counts in sorted(racks.items())
            ],
        )

    # -- step two: the creates ---------------------------------------------------------------
    def _create_members(self, plan: GroupPlan) -> None:
        """Create all members, by several callers; the first of them wrongly before."""
        names = [member.name for member in plan.members]
        self._rng.shuffle(names)
        self._check_refusal_of_difference(names[0])
        began = time.monotonic()
        self._create(names)
        seconds = time.monotonic() - began
        say.line(
            f'{CALLER_THREADS} callers create all {len(names)} in random order, in {seconds:.1f} s'
        )

    def _check_refusal_of_difference(self, name: str) -> None:
        """Check that a create that is not as planned is refused, by the fields that differ."""
        spec = self._spec(name)
        flavor = next(f for f in FLAVORS.values() if f[1] != spec.resources['MEMORY_MB'])
        changed_spec = msgspec.structs.replace(
            spec, resources={**spec.resources, 'MEMORY_MB': flavor[1]}
        )
        try:
            self._stage.conductor.select_destinations(_create(changed_spec))
        except exceptions.Refused as e:
            say.line(f'{name} is created with another flavor:')
            say.paragraph(e.message, '  ')

    def _create(self, names: Sequence[str]) -> None:
        """Create members from several callers, and have their guests started."""
        work: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in names:
            work.put(name)
        troubles: list[str] = []

        def caller() -> None:
            while True:
                try:
                    name = work.get_nowait()
                except queue.Empty:
                    return
                try:
                    self._build(_create(self._spec(name)))
                except exceptions.GanttError as e:
                    troubles.append(f'{name}: {e.message}')

        callers = [threading.Thread(target=caller, daemon=True) for _ in range(CALLER_THREADS)]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join()
        say.block(troubles[:5])

    def _build(self, request: SelectDestinations) -> None:
        (selections,) = self._stage.conductor.select_destinations(request).selections
        chosen = selections[0]
        build = chosen.build(request.request_id)
        self._stage.builder.build(chosen.build_topic, build, wait=True)

    def _spec(self, name: str) -> RequestSpec:
        description = self._cluster.description
        described_members = next(
            described for described in description.members if name in described.unit_names
        )
        group = GroupRef(uuid=str(description.uuid), member=name)
        return msgspec.structs.replace(described_members.spec, group=group)

    # -- a host is lost -------------------------------------------------------------------------
    def _kill_host(self, plan: GroupPlan) -> str:
        """Kill a host; return its name."""
        of_host = collections.Counter(member.host for member in plan.members)
        victim = min(sorted(of_host), key=lambda host: abs(of_host[host] - LOST_GUESTS))
        for farm in self._farms:
            farm.command(Fault(do='die', hosts=HostSelector(names=[victim])))
        say.line(f'{victim} is killed')
        return victim

    def _heal_and_check(self, lost: str) -> bool:
        wait = self._stage.scheduler.settings.stale_after_seconds
        before = self._show_plan()
        lost_members = {member.name for member in before.members if member.host == lost}
        say.progress(f'until {lost} has been silent for {wait:.0f} s')
        wait_until(lambda: _states(self._show_plan())['lost'] == len(lost_members), wait + 10, 0.3)
        say.progress_done()
        say.line(f'{lost} has been silent for {wait:.0f} s: {_states_text(self._show_plan())}')
        self._open_spares()
        began = time.monotonic()
        answer = self._once_all_report(self._heal_plan, lost)
        seconds = time.monotonic() - began
        moved = [] if answer.plan is None else answer.plan.members
        moves_text = ', '.join(f'{member.name} to {member.host}' for member in moved)
        say.line(f'healed in {seconds:.1f} s: {moves_text}')
        self._create([member.name for member in moved])
        for farm in self._farms:
            farm.command(Fault(do='revive', hosts=HostSelector(names=[lost]), guests='gone'))
        after = {member.name: member.host for member in self._show_plan().members}
        stayed = [member for member in before.members if member.name not in lost_members]
        moved_too = [member.name for member in stayed if after.get(member.name) != member.host]
        say.line(f'{len(stayed) - len(moved_too)} of {len(stayed)} others stayed where they were')
        return self._wait_until_all_run('healed') and not moved_too

    def _heal_plan(self) -> GroupAnswer:
        """Have the plan healed.  :raises NoValidHost: not all that were lost are placed"""
        return self._stage.planner.change_group(
            ChangeGroup(
                request_id=str(uuid.uuid4()),
                group=self._cluster.description,
                heal=True,
                plan_ms=PLAN_MS,
            )
        )

    def _once_all_report(self, step: Callable[[], T], lost: str = '') -> T:
        """Take a step, and again where it is refused while hosts do not report in time.

        :param lost: the host that is dead
        :raises NoValidHost: it is refused although all report
        :raises RuntimeError: hosts did not report in time again and again
        """
        for _ in range(TRIES):
            try:
                return step()
            except exceptions.NoValidHost:
                late = self._hosts_with_old_reports(lost)
                if not late:
                    raise
                say.line(
                    f'{TOO_BUSY_PREFIX}{counted_noun(len(late), "host")} did not report in time; '
                    'waiting for them'
                )
                wait_until(lambda: not self._hosts_with_old_reports(lost), LATE_SECONDS, 0.5)
        raise RuntimeError(TOO_BUSY_PREFIX + 'hosts of the cluster do not report in time')

    def _hosts_with_old_reports(self, lost: str) -> list[str]:
        """Return hosts beside the dead one whose last report is too old to place on them."""
        cache = self._stage.groups.planner.cache
        cache.reload_soon()
        table = cache.table(0.0)
        oldest = table.now - self._stage.scheduler.settings.stale_after_seconds
        farm_hosts = {name for farm in self._farms for name in farm.hosts} - {lost}
        return [
            host.name
            for host in table.hosts
            if host.name in farm_hosts and host.reported_at < oldest
        ]

    def _wait_until_all_run(self, what: str) -> bool:
        wait_until(lambda: _states(self._show_plan()).keys() == {'running'}, CONFIRM_SECONDS)
        view = self._show_plan(check=True)
        say.line(f'{what}: {_states_text(view)}; policies violated: {len(view.violated or ())}')
        return not view.violated and _states(view).keys() == {'running'}

    def _show_plan(self, *, check: bool = False) -> GroupPlanView:
        uuid_ = str(self._cluster.description.uuid)
        return self._stage.planner.show_group_plan(uuid_, check=check)


def _create(spec: RequestSpec) -> SelectDestinations:
    return SelectDestinations(
        request_id=str(uuid.uuid4()), spec=spec, consumers=[str(uuid.uuid4())], budget_ms=20_000
    )


def _states(view: GroupPlanView) -> collections.Counter[str]:
    return collections.Counter(member.state.value for member in view.members)


def _states_text(view: GroupPlanView) -> str:
    return ', '.join(f'{count} {state}' for state, count in _states(view).most_common())


def _quality_text(plan: GroupPlan) -> str:
    """Return what is known of how good a plan is."""
    if plan.status == 'optimal':
        return f'optimal, by {plan.method}'
    proven = plan.proven >= len(plan.goals.before_score)
    if proven:
        return f'no plan places more members or violates less, by {plan.method}'
    return f'{plan.status}, by {plan.method}; {plan.proofs or "nothing is proven"}'
