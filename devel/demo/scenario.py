# SPDX-License-Identifier: Apache-2.0
"""The scenario: hosts appear, Nova sends calls, a conductor sends a thousand requests."""

import collections
import datetime
import itertools
import queue
import random
import threading
import time
import uuid
from collections.abc import Sequence
from typing import Any

import oslo_messaging as om

from devel import captures
from devel.demo import say
from devel.demo.environment import TOO_BUSY_PREFIX, Stage, wait_until
from devel.examples.addresses import AddressService
from devel.examples.volumes import VolumeService
from gantt import exceptions
from gantt.compute.farm import Fault, HostSelector
from gantt.core.messages.build import Delete
from gantt.core.messages.request import GroupRef, Lifecycle, Policy, RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.decision import Answer
from gantt.groups.insights import HOOKS
from gantt.insights.read_model import Insights
from gantt.insights.views import Explanation, MemberExplanation
from gantt.rpc.amqp.transport import nova_url

FLAVORS = {
    'small': {'VCPU': 1, 'MEMORY_MB': 2048, 'DISK_GB': 20},
    'medium': {'VCPU': 4, 'MEMORY_MB': 8192, 'DISK_GB': 40},
    'large': {'VCPU': 16, 'MEMORY_MB': 65_536, 'DISK_GB': 160},
}
CALLER_THREADS = 16
#: Pools by name: class -> total.
POOLS = {
    'ceph-1': {'DISK_GB': 2000},
    'ceph-2': {'DISK_GB': 1000},
    'net-1': {'IPV4_ADDRESS': 120},
}
#: After a lease: the sweeper sweeps, and hosts report.
SWEEP_SECONDS = 6.0
#: Placements of which one is explained.
DECISIONS_EXPLAINED_MAX = 50
#: Until a decision that is to be explained is stored; a second where the machine is not too busy.
DECISION_STORED_SECONDS = 60.0


def register_hosts(stage: Stage, count: int) -> None:
    """Register the farm and this machine, and wait for their reports."""
    started = time.monotonic()
    expected = count + 1

    def ready() -> bool:
        reporting = stage.reporting_host_count()
        say.progress(f'{reporting} of {expected} hosts have reported')
        return reporting >= expected

    if not wait_until(ready):
        reporting = stage.reporting_host_count()
        raise RuntimeError(f'{TOO_BUSY_PREFIX}only {reporting} of {expected} hosts have reported')
    say.progress_done()
    seconds = time.monotonic() - started
    say.line(f'{count} fake hosts and this machine have registered and reported in {seconds:.1f} s')
    table = stage.scheduler.cache.working
    host = table.host_state(stage.host)
    parts = [f'{host.name} (this machine)']
    for name, inventory in sorted(host.inventories.items()):
        parts.append(f'{name} {inventory.total}')
    say.paragraph(', '.join(parts), '  ')


def send_nova_calls(stage: Stage) -> None:
    """Send captured messages of an unmodified Nova, on Nova's own topic."""
    conductor = NovaConductor(om.get_rpc_transport(stage.conf, url=nova_url(stage.conf)))
    rows = []
    for name, title in CAPTURES:
        try:
            answer = conductor.call(name)
            hosts = ', '.join(selections[0]['service_host'] for selections in answer)
            rows.append((title, hosts))
        except NoValidHost as e:
            rows.append((title, 'NoValidHost'))
            verdict = str(e)
    say.table(('what Nova asked', 'answer'), rows)
    say.paragraph(verdict, '  ')


class Tally:
    """Outcomes of the requests."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.answers: list[Answer] = []
        self.refusals: list[exceptions.NoValidHost] = []
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.running: dict[str, str] = {}  # consumer -> host, as the hosts said
        self.seconds: list[float] = []

    @property
    def requests_sent(self) -> int:
        return len(self.answers) + len(self.refusals) + self.outcomes['trouble']

    @property
    def refused_decisions(self) -> list[str]:
        """Ids of the decisions that refused; a refusal that was not decided here has none."""
        ids = (str(refused.kwargs.get('decision_id') or '') for refused in self.refusals)
        return [id_ for id_ in ids if id_]


def _requests(count: int, seed: int) -> list[SelectDestinations]:
    """Return a mix: sizes, zones, several members, groups, and some that no host can serve."""
    rng = random.Random(seed)
    groups = [
        GroupRef(uuid=str(uuid.UUID(int=rng.getrandbits(128))), policy=policy)
        for policy in (Policy.ANTI_AFFINITY, Policy.AFFINITY, Policy.SOFT_ANTI_AFFINITY) * 4
    ]
    requests = []
    for i in range(count):
        flavor = rng.choices(list(FLAVORS), (6, 3, 1))[0]
        spec = RequestSpec(
            resources=dict(FLAVORS[flavor]) if i % 100 else {'VCPU': 500},
            availability_zone=rng.choice(['nova', 'az-1', 'az-2', None, None]),
            required_traits=['CUSTOM_SSD'] if rng.random() < 0.02 else [],
            group=rng.choice(groups) if rng.random() < 0.1 else None,
            project_id='demo',
        )
        members = rng.choices((1, 2, 5), (8, 1, 1))[0]
        requests.append(
            SelectDestinations(
                request_id=str(uuid.UUID(int=rng.getrandbits(128), version=4)),
                spec=spec,
                consumers=[
                    str(uuid.UUID(int=rng.getrandbits(128), version=4)) for _ in range(members)
                ],
                budget_ms=20_000,
            )
        )
    return requests


def send_requests(stage: Stage, count: int, seed: int) -> Tally:
    """``count`` requests from several callers; hosts die and come back meanwhile."""
    tally = Tally()
    work: queue.SimpleQueue[SelectDestinations | None] = queue.SimpleQueue()
    for request in _requests(count, seed):
        work.put(request)
    for _ in range(CALLER_THREADS):
        work.put(None)
    callers = [
        threading.Thread(target=_caller, args=(stage, work, tally), daemon=True)
        for _ in range(CALLER_THREADS)
    ]
    started = time.monotonic()
    for thread in callers:
        thread.start()
    disturbances = _disturb_hosts(stage, count)
    while any(thread.is_alive() for thread in callers):
        say.progress(f'{tally.requests_sent} of {count} requests answered')
        if disturbances and tally.requests_sent >= disturbances[0][0]:
            say.progress_done()
            say.line(f'  after {tally.requests_sent:4d} requests: {disturbances.pop(0)[1]()}')
        time.sleep(0.05)
    say.progress_done()
    seconds = time.monotonic() - started
    _print_tally(stage, tally, seconds)
    return tally


def _disturb_hosts(stage: Stage, count: int) -> list[tuple[int, Any]]:
    def order(**fields: Any) -> dict[str, Any]:
        return stage.farm.command(Fault(**fields))

    def die() -> str:
        done = order(do='die', hosts=HostSelector(count=10))
        return f'{done["count"]} hosts are killed, builds under way included'

    def disagree() -> str:
        done = order(do='disagree', hosts=HostSelector(count=3))
        return f'{done["count"]} hosts begin to refuse every build at their second check'

    def revive() -> str:
        done = order(do='revive', guests='gone')
        order(do='agree')
        return f'{done["count"]} hosts come back empty, with a new epoch; all agree again'

    return [(count * 3 // 10, die), (count * 6 // 10, disagree), (count * 8 // 10, revive)]


def _caller(stage: Stage, work: Any, tally: Tally) -> None:
    while (request := work.get()) is not None:
        began = time.monotonic()
        try:
            answer = stage.conductor.select_destinations(request)
        except exceptions.NoValidHost as e:
            with tally.lock:
                tally.refusals.append(e)
            continue
        except exceptions.GanttError as e:
            with tally.lock:
                tally.outcomes['trouble'] += 1
                tally.outcomes[e.code] += 1
            continue
        with tally.lock:
            tally.answers.append(answer)
            tally.seconds.append(time.monotonic() - began)
        for selections in answer.selections:
            _build(stage, request, selections[0], tally)


def _build(stage: Stage, request: SelectDestinations, chosen: Any, tally: Tally) -> None:
    """Have the guest started; now and then delete it again."""
    build = chosen.build(request.request_id)
    topic = chosen.build_topic
    try:
        build_outcome = stage.builder.build(topic, build, wait=True)['outcome']
    except exceptions.Unavailable:
        build_outcome = 'no answer'
    with tally.lock:
        tally.outcomes[build_outcome] += 1
        if build_outcome == 'running':
            tally.running[chosen.consumer] = chosen.host
        unlucky = build_outcome == 'running' and tally.outcomes['running'] % 10 == 0
    if unlucky:
        delete = Delete(consumer=chosen.consumer, host=chosen.host, claim_id=chosen.claim_id)
        try:
            stage.builder.delete(topic, delete, wait=True)
        except exceptions.Unavailable:
            return
        with tally.lock:
            tally.running.pop(chosen.consumer, None)
            tally.outcomes['deleted again'] += 1


def _print_tally(stage: Stage, tally: Tally, seconds: float) -> None:
    placed = sum(len(answer.selections) for answer in tally.answers)
    say.line(
        f'{len(tally.answers)} requests placed ({placed} guests), '
        f'{len(tally.refusals)} refused, in {seconds:.1f} s'
    )
    say.line(
        f'{tally.requests_sent / seconds:.0f} requests/s and {placed / seconds:.0f} guests/s from '
        f'{CALLER_THREADS} callers, who wait for every guest to run'
    )
    waits = sorted(tally.seconds)
    if waits:
        half, slow = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
        say.line(f'half of the answers came within {half * 1000:.0f} ms, 99 % within {slow:.1f} s')
    builds = ', '.join(f'{name} {n}' for name, n in tally.outcomes.most_common())
    say.paragraph(f'builds: {builds}', '  ')


def request_pools(stage: Stage) -> None:
    """Request pools of a volume service and an address service, neither of which knows of Nova."""
    for name, inventories in POOLS.items():
        pool_inventories = {cls: Inventory(total=total) for cls, total in inventories.items()}
        stage.stores.providers.create_provider(name, inventories=pool_inventories)
    everywhere = stage.scheduler.cache
    wait_until(lambda: len(everywhere.working.others) == len(POOLS), 10)
    volumes = VolumeService(stage.conductor)
    made_volumes = [volumes.create(400, project='demo') for _ in range(6)]
    rows = collections.Counter(volume.pool for volume in made_volumes)
    say.table(('pool', 'volumes of 400 GB'), sorted(rows.items()))
    try:
        volumes.create(4000)
    except exceptions.NoValidHost as e:
        say.paragraph(e.message, '  ')
    volumes.delete(made_volumes[0].uuid)
    say.line(f'one is deleted: its room on {made_volumes[0].pool} is free again')
    addresses = AddressService(stage.conductor)
    offers = [addresses.take(50, project='demo') for _ in range(2)]
    addresses.keep(offers[0].owner)
    say.paragraph(
        f'100 addresses of {offers[0].network} are offered to two; one keeps its 50, the other '
        'says nothing more: they come back with their lease'
    )
    try:
        addresses.take(30)
    except exceptions.NoValidHost as e:
        say.paragraph(e.message, '  ')


def show_placements(tally: Tally, stage: Stage) -> None:
    """Show what was placed where, by zone and by kind of host."""
    placed_by_zone: dict[str, collections.Counter[str]] = collections.defaultdict(
        collections.Counter
    )
    kinds = {host.name: host.shape for host in stage.fake_hosts()}
    for selections in itertools.chain.from_iterable(a.selections for a in tally.answers):
        chosen = selections[0]
        placed_by_zone[chosen.zone or '-'][kinds.get(chosen.host, 'this machine')] += 1
    names = sorted({kind for counts in placed_by_zone.values() for kind in counts})
    rows = [
        [zone, *(placed_by_zone[zone][k] for k in names), placed_by_zone[zone].total()]
        for zone in sorted(placed_by_zone)
    ]
    say.table(['zone', *names, 'guests'], rows)


def explain_decisions(stage: Stage, tally: Tally) -> None:
    """Explain one placement and one refusal, to the end."""
    insights = Insights(
        stage.stores, stage.scheduler.placing.pipeline, HOOKS, stage.scheduler.settings
    )
    single = [a.decision_id for a in tally.answers if len(a.selections) == 1]
    placed = _load_explanations(
        stage, insights, single[:: max(1, len(single) // DECISIONS_EXPLAINED_MAX)]
    )
    refused = _load_explanations(stage, insights, tally.refused_decisions[-1:])
    say.line('A placement:' if placed else f'{TOO_BUSY_PREFIX}no placement is stored yet')
    if placed:
        # The one, of some, where most filters removed hosts and hosts differed.
        best = max(placed, key=lambda explanation: rejected_by(explanation.members[0]))
        say.block(best.lines)
    say.line()
    say.line('A refusal:' if refused else f'{TOO_BUSY_PREFIX}no refusal is stored yet')
    for explanation in refused:
        say.block(explanation.lines)


def _load_explanations(stage: Stage, insights: Insights, ids: Sequence[str]) -> list[Explanation]:
    """Return the explanations of those decisions that are stored, once any is."""
    wait_until(lambda: any(map(stage.stores.records.load_decision, ids)), DECISION_STORED_SECONDS)
    return [insights.explain(id_) for id_ in ids if stage.stores.records.load_decision(id_)]


def rejected_by(member: MemberExplanation) -> tuple[int, int]:
    """Return how many filters removed hosts, and how many different totals the finalists have."""
    removing = sum(step.removed > 0 for step in member.funnel)
    return removing, len({round(row.total, 2) for row in member.scores})


def audit(stage: Stage, leased: float) -> bool:
    """Audit when quiet: every promise by query, and the hosts against the database.

    :param leased: monotonic time since which no lease that runs out was given
    """
    quiet = leased + stage.conf.claims.lease_seconds + SWEEP_SECONDS - time.monotonic()
    # A host that came back registers first, and its guests that are gone end with its report.
    wait = max(quiet, 3 * stage.scheduler.settings.report_seconds + 1)
    say.line(f'waiting {wait:.0f} s: leases run out, the sweeper sweeps, hosts report')
    time.sleep(wait)
    violations = stage.stores.claims.audit()
    confirmed, on_pools = {}, 0
    marker = None
    while page := stage.stores.claims.list_claims(state='confirmed', limit=500, marker=marker):
        of_hosts = [claim for claim in page if claim.lifecycle is Lifecycle.HOST]
        confirmed.update({claim.consumer: claim.host for claim in of_hosts})
        on_pools += len(page) - len(of_hosts)
        marker = page[-1].id
    guests = {
        guest.consumer: host.name
        for host in stage.fake_hosts()
        for guest in host.driver.guests() or ()
    }
    fake = {consumer: host for consumer, host in confirmed.items() if host != stage.host}
    violations['lost'] += [
        f'{c} runs on {h} without a claim' for c, h in guests.items() if fake.get(c) != h
    ]
    violations['leaked'] += [
        f'{c} is claimed on {h} and runs nowhere' for c, h in fake.items() if guests.get(c) != h
    ]
    counts = {name: len(lines) for name, lines in violations.items()}
    say.line(
        f'over-commit {counts["over_commit"]}, lost {counts["lost"]}, '
        f'leaked {counts["leaked"]}, doubled {counts["doubled"]}, providers {counts["providers"]}'
    )
    for lines in violations.values():
        say.block(lines[:5])
    say.line(f'{len(confirmed)} guests run, each under its confirmed claim')
    say.line(f'{on_pools} claims on pools stay until who asked releases them')
    return not any(counts.values())


CAPTURES = (
    ('boot', 'one instance'),
    ('boot-multi3', 'three instances in one call'),
    ('boot-anti-affinity-third', 'third member of an anti-affinity group'),
    ('boot-host-2.74', 'a host that does not exist here'),
)


class NoValidHost(Exception):
    """The exception that Nova would rebuild from the answer."""


def _captured_call(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return context and arguments of a captured call."""
    captured = captures.load(name)
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    return captured.context | {'timestamp': now.isoformat()}, captured.args


class NovaConductor:
    """Calls ``select_destinations`` the way nova-conductor does.

    :param transport: of Nova's exchange
    """

    def __init__(self, transport: Any) -> None:
        target = om.Target(exchange='nova', topic='scheduler', version='4.5')
        self._client = om.get_rpc_client(transport, target, timeout=60, call_monitor_timeout=30)

    def call(self, name: str) -> list[list[dict[str, Any]]]:
        """Return per instance the chosen host and its alternates.

        :raises NoValidHost: with the verdict
        """
        context, args = _captured_call(name)
        try:
            answer = self._client.call(context, 'select_destinations', **args)
        except om.RemoteError as e:
            if e.exc_type == 'NoValidHost':
                raise NoValidHost(e.value) from None
            raise
        return [[s['nova_object.data'] for s in selections] for selections in answer]
