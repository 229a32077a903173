# SPDX-License-Identifier: Apache-2.0
"""What is played with a group: planned as a whole, created in any order, a host lost, healed."""

import collections
import queue
import random
import threading
import time
import uuid
from collections.abc import Sequence

import msgspec

from devel.demo import say
from devel.demo.cluster import DATABASES, FLAVORS, HOSTS, RACKS, REPLICAS, SHOPS, SPARES, Cluster
from devel.demo.environment import Stage, wait_until
from gantt import exceptions
from gantt.compute.farm.farm import Farm, FarmPlan
from gantt.compute.farm.faults import Fault, Selector
from gantt.core.groups.group_answer import GroupAnswer
from gantt.core.groups.group_plan import GroupPlan
from gantt.core.groups.plan_view import GroupPlanView
from gantt.core.messages.place_group import ChangeGroup, PlaceGroup
from gantt.core.messages.request import GroupRef, RequestSpec, SelectDestinations
from gantt.insights.explain.wording import count

CALLERS = 8
#: That a plan is improved for.
PLAN_MS = 1500
#: Each host of the hall is the first of its shape.
NAMES = 'hall'
#: Members on the host that is lost, where there is such a host.
LOST = 2
#: What hosts may take to say that guests run.
CONFIRM_SECONDS = 10.0
#: Times that healing is tried where hosts do not report in time, and seconds to wait for them.
HEALING_TRIES, LATE_SECONDS = 3, 30.0


class GroupAct:
    """The cluster on its way; one method for each part."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage, self._cluster = stage, Cluster()
        self._rng = random.Random(seed)
        self._farms: list[Farm] = []

    def play(self) -> bool:
        """All of it; whether every member stands where it should."""
        self._hosts_appear()
        plan = self._planned()
        self._say_racks(plan)
        self._creates(plan)
        all_created = self._all_run('created')
        return self._heals(self._kills_one(plan)) and all_created

    # -- hosts -------------------------------------------------------------------------
    def _hosts_appear(self) -> None:
        self._add_hosts(FarmPlan(count=HOSTS, prefix=NAMES, shapes=self._cluster.shapes))
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
        """Until who plans groups knows all of them, with what they have."""
        farm = self._stage.add_hosts(plan.prefix, plan)
        self._farms.append(farm)
        cache = self._stage.groups.planner.cache

        def is_known() -> bool:
            cache.reload_soon()
            known = {host.name for host in cache.table(0.0).hosts if host.reported_at > 0}
            return known >= farm.hosts.keys()

        if not wait_until(is_known):
            raise RuntimeError('the hosts of the cluster have not reported')

    # -- step one: the plan ---------------------------------------------------------------
    def _planned(self) -> GroupPlan:
        try:
            return self._place()
        except exceptions.NoValidHost as e:
            say.paragraph(e.message, '  ')
            say.paragraph(str(e.kwargs.get('proofs') or ''), '  ')
        self._open_spares()
        return self._place()

    def _place(self) -> GroupPlan:
        """
        :raises NoValidHost: not all are placed, and nothing is claimed
        """
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
        whole = len(plan.members)
        say.table(
            ('', 'placed', 'of'),
            [
                ('one after the other', whole - plan.sequential.missing, whole),
                ('planned as a whole', whole - plan.goals.missing, whole),
            ],
        )
        say.paragraph(f'{_how_good(plan)}; planned, checked and claimed in {seconds:.1f} s', '  ')
        return plan

    def _say_racks(self, plan: GroupPlan) -> None:
        hosts = {host.name: host for host in self._stage.groups.planner.cache.table().hosts}
        racks: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for one in plan.members:
            counts = racks[hosts[one.host].facts.location.split('.')[-2]]
            counts['databases' if one.member.startswith('db') else 'shops'] += 1
            counts[f'host {one.host}'] = 1
            counts['vcpu'] += self._spec(one.name).resources['VCPU']
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
    def _creates(self, plan: GroupPlan) -> None:
        """All members are created, by several callers; the first of them wrongly before."""
        names = [one.name for one in plan.members]
        self._rng.shuffle(names)
        self._differs(names[0])
        began = time.monotonic()
        self._create(names)
        seconds = time.monotonic() - began
        say.line(f'{CALLERS} callers create all {len(names)} in random order, in {seconds:.1f} s')

    def _differs(self, name: str) -> None:
        """A create that is not what was planned is refused, by the fields that differ."""
        spec = self._spec(name)
        other = next(f for f in FLAVORS.values() if f[1] != spec.resources['MEMORY_MB'])
        wrong = msgspec.structs.replace(spec, resources={**spec.resources, 'MEMORY_MB': other[1]})
        try:
            self._stage.conductor.select_destinations(_create(wrong))
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

        callers = [threading.Thread(target=caller, daemon=True) for _ in range(CALLERS)]
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
        of = next(one for one in description.members if name in one.unit_names)
        group = GroupRef(uuid=str(description.uuid), member=name)
        return msgspec.structs.replace(of.spec, group=group)

    # -- a host is lost -------------------------------------------------------------------------
    def _kills_one(self, plan: GroupPlan) -> str:
        """Name of the host that is dead from now on."""
        of_host = collections.Counter(one.host for one in plan.members)
        lost = min(sorted(of_host), key=lambda host: abs(of_host[host] - LOST))
        for farm in self._farms:
            farm.command(Fault(do='die', hosts=Selector(names=[lost])))
        say.line(f'{lost} is killed')
        return lost

    def _heals(self, lost: str) -> bool:
        wait = self._stage.scheduler.settings.stale_after_seconds
        before = self._shown()
        gone = {one.name for one in before.members if one.host == lost}
        say.progress(f'until {lost} has been silent for {wait:.0f} s')
        wait_until(lambda: _states(self._shown())['lost'] == len(gone), wait + 10, 0.3)
        say.progress_done()
        say.line(f'{lost} has been silent for {wait:.0f} s: {_in_words(self._shown())}')
        self._open_spares()
        began = time.monotonic()
        answer = self._healed(lost)
        if answer is None:
            say.line('not healed: hosts do not report in time; see it on a machine with less to do')
            return False
        seconds = time.monotonic() - began
        moved = [] if answer.plan is None else answer.plan.members
        shown = ', '.join(f'{one.name} to {one.host}' for one in moved)
        say.line(f'healed in {seconds:.1f} s: {shown}')
        self._create([one.name for one in moved])
        for farm in self._farms:
            farm.command(Fault(do='revive', hosts=Selector(names=[lost]), guests='gone'))
        after = {one.name: one.host for one in self._shown().members}
        stayed = [one for one in before.members if one.name not in gone]
        moved_too = [one.name for one in stayed if after.get(one.name) != one.host]
        say.line(f'{len(stayed) - len(moved_too)} of {len(stayed)} others stayed where they were')
        return self._all_run('healed') and not moved_too

    def _healed(self, lost: str) -> GroupAnswer | None:
        """Have the plan healed; None: hosts that it needs do not report in time."""
        for _ in range(HEALING_TRIES):
            try:
                return self._stage.planner.change_group(
                    ChangeGroup(
                        request_id=str(uuid.uuid4()),
                        group=self._cluster.description,
                        heal=True,
                        plan_ms=PLAN_MS,
                    )
                )
            except exceptions.NoValidHost:
                late = self._late(lost)
                if not late:
                    raise
                say.line(
                    f'the machine is too busy: {count(len(late), "host")} did not report in time; '
                    'waiting for them'
                )
                wait_until(lambda: not self._late(lost), LATE_SECONDS, 0.5)
        return None

    def _late(self, lost: str) -> list[str]:
        """Hosts beside the one that is dead whose last report is too old to place on them."""
        cache = self._stage.groups.planner.cache
        cache.reload_soon()
        table = cache.table(0.0)
        oldest = table.now - self._stage.scheduler.settings.stale_after_seconds
        ours = {name for farm in self._farms for name in farm.hosts} - {lost}
        return [one.name for one in table.hosts if one.name in ours and one.reported_at < oldest]

    def _all_run(self, what: str) -> bool:
        wait_until(lambda: _states(self._shown()).keys() == {'running'}, CONFIRM_SECONDS)
        view = self._shown(check=True)
        say.line(f'{what}: {_in_words(view)}; policies violated: {len(view.violated or ())}')
        return not view.violated and _states(view).keys() == {'running'}

    def _shown(self, *, check: bool = False) -> GroupPlanView:
        uuid_ = str(self._cluster.description.uuid)
        return self._stage.planner.show_group_plan(uuid_, check=check)


def _create(spec: RequestSpec) -> SelectDestinations:
    return SelectDestinations(
        request_id=str(uuid.uuid4()), spec=spec, consumers=[str(uuid.uuid4())], budget_ms=20_000
    )


def _states(view: GroupPlanView) -> collections.Counter[str]:
    return collections.Counter(one.state.value for one in view.members)


def _in_words(view: GroupPlanView) -> str:
    return ', '.join(f'{count} {state}' for state, count in _states(view).most_common())


def _how_good(plan: GroupPlan) -> str:
    """What is known of how good a plan is."""
    if plan.status == 'optimal':
        return f'optimal, by {plan.by}'
    proven = plan.proven >= len(plan.goals.before_score)
    if proven:
        return f'no plan places more members or violates less, by {plan.by}'
    return f'{plan.status}, by {plan.by}; {plan.proofs or "nothing is proven"}'
