# SPDX-License-Identifier: Apache-2.0
"""The scenario over four zones: a deep placement, the last resort, a zone killed and back.

::

    top            no hosts
    ├─ east        60 hosts
    │  └─ east-gpu 20 hosts, alone with a trait
    └─ cloud       20 hosts, the last resort
"""

import collections
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from devel.demo import say
from devel.demo.environment import wait_until
from devel.demo.zone_processes import FourZones, ZoneProcess, reporting_host_count_of
from gantt.cli.endpoint import Exit, Failure
from gantt.compute.shapes import Shape
from gantt.core.claims.claim import LIVE_STATES, Claim
from gantt.stores import AllStores

GPU_TRAIT = 'CUSTOM_GPU'
SHAPES = {
    'east': [
        Shape(name='general', weight=3, vcpus=32, memory_mb=65_536),
        Shape(name='large', weight=1, vcpus=64, memory_mb=131_072),
    ],
    'east-gpu': [Shape(name='gpu', vcpus=32, memory_mb=65_536, traits=[GPU_TRAIT])],
    'cloud': [Shape(name='rented', vcpus=64, memory_mb=131_072)],
}
#: Guests that fill a host of the smallest shape but for 4 GiB, and those that still fit then.
LARGE_GUEST = {'VCPU': 8, 'MEMORY_MB': 61_440}
SMALL_GUEST = {'VCPU': 1, 'MEMORY_MB': 1024}
GPU_GUEST = {'VCPU': 2, 'MEMORY_MB': 2048}
#: Members of one request that fills, and requests at most; small ones during the kill, before
#: and after it.
MEMBERS, FILLING_MAX = 8, 200
BEFORE, AFTER = 6, 12
#: Time for what comes by itself: reports, the next query of a zone, claims known above.
WAIT_SECONDS = 60.0
#: Claims that are read at once.
PAGE_SIZE = 1000


# -- 1 -------------------------------------------------------------------------------
def register_zones(tree: FourZones) -> None:
    """Register the zones by URL, with the real commands; then all hosts have reported."""
    for above, below in tree.edges:
        zone_uuid = above.api.get('/v1/zones')['uuid']
        identity = ['--identity', zone_uuid, '--project', above.name, '--trusted']
        below.run_checked('parent', 'add', above.name, *identity)
        last_resort = ['--last-resort'] if below is tree.cloud else []
        above.run_checked('zone', 'add', below.name, below.url, '--trusted', *last_resort)
    tree.top.run_checked('zone', 'list')
    for zone in tree.zones:
        _hosts_report(zone)
    hosts = ', '.join(f'{zone.name} {zone.hosts}' for zone in tree.zones)
    say.line(f'hosts: {hosts}')
    tree.top.run_checked('zone', 'tree')


def _hosts_report(zone: ZoneProcess) -> None:
    if not wait_until(lambda: reporting_host_count_of(zone) == zone.hosts, WAIT_SECONDS):
        raise RuntimeError(
            f'{reporting_host_count_of(zone)} of {zone.hosts} hosts of {zone.name} have reported'
        )


# -- 2 -------------------------------------------------------------------------------
class DeepRequest:
    """A request for the trait that only the lowest zone has, by the command and over HTTP."""

    def __init__(self) -> None:
        self.id, self.consumer = str(uuid.uuid4()), str(uuid.uuid4())
        resources = [
            word for name, n in GPU_GUEST.items() for word in ('--resource', f'{name}={n}')
        ]
        self.words = ['select', *resources, '--trait', GPU_TRAIT]
        self.words += ['--request-id', self.id, '--consumer', self.consumer]

    def chosen(self, top: ZoneProcess) -> dict[str, Any]:
        """Return where it was placed, as it is stored."""
        answer: dict[str, Any] = top.api.get(f'/v1/requests/{self.id}')['answer']
        return dict(answer['selections'][0][0])


def place_two_levels_down(tree: FourZones) -> DeepRequest:
    """Place one request, explain it, and unseal its sealed host level by level."""
    request = DeepRequest()
    tree.top.run_checked(*request.words)
    say.line()
    _explain(tree.top, request.id)
    say.line()
    say.paragraph('The host is sealed. The conductor of each zone unseals it:')
    sealed_host = request.chosen(tree.top)['sealed_host']
    below = tree.east.api.post('/v1/sealed-hosts', {'sealed_host': sealed_host})
    unsealed = tree.east_gpu.api.post('/v1/sealed-hosts', {'sealed_host': below['sealed_host']})
    rows = [
        (tree.top.name, f'{sealed_host[:18]}...', f'zone {tree.east.name}'),
        (tree.east.name, f'{sealed_host[:18]}...', f'zone {below["child"]}'),
        (below['child'], f'{below["sealed_host"][:18]}...', f'host {unsealed["host"]}'),
    ]
    say.table(('zone', 'sealed host', 'is'), rows)
    say.line()
    say.line('Why that host, the zone that has it explains:')
    request_id = tree.east_gpu.api.get(f'/v1/claims/{unsealed["claim_id"]}')['request_id']
    _explain(tree.east_gpu, request_id)
    return request


def _explain(zone: ZoneProcess, request_id: str) -> None:
    """Show why it came out as it did; a decision is stored soon after its answer."""

    def is_stored() -> bool:
        try:
            return bool(zone.api.get(f'/v1/decisions/{request_id}'))
        except Failure:
            return False

    wait_until(is_stored, WAIT_SECONDS)
    zone.run_checked('explain', request_id)


# -- 3 -------------------------------------------------------------------------------
def fill_east(tree: FourZones) -> bool:
    """Send requests at the top until nothing of this size fits in east; the next is the cloud's."""
    placed: collections.Counter[str] = collections.Counter()
    requests = 0
    while requests < FILLING_MAX and any(room := _remaining_capacity(tree)):
        # Several at once where one zone has room for all: those left over go one by one.
        placed.update(_place(tree.top, LARGE_GUEST, MEMBERS if max(room) >= MEMBERS else 1))
        requests += 1
        say.progress(f'{placed.total()} guests of 60 GiB placed, room for {sum(room)} in east')
    say.progress_done()
    say.paragraph(
        f'{requests} requests for {placed.total()} guests of 60 GiB, sent to the top: '
        f'{placed[tree.east.name]} went to east and below, {placed[tree.cloud.name]} to cloud'
    )
    capacity = sum(_remaining_capacity(tree))
    say.line(f'room for more of them in east and east-gpu: {capacity}; the next one:')
    words = [word for name, n in LARGE_GUEST.items() for word in ('--resource', f'{name}={n}')]
    number = str(uuid.uuid4())
    tree.top.run_checked('select', *words, '--request-id', number)
    answer = tree.top.api.get(f'/v1/requests/{number}')['answer']
    say.table(
        ('zone', 'live claims'), [(z.name, len(_own_claims(z))) for z in tree.zones if z.hosts]
    )
    return bool(answer['selections'][0][0]['child'] == tree.cloud.name)


def _remaining_capacity(tree: FourZones) -> list[int]:
    """Return how many more large guests fit in east and below, by zone, as these report."""
    body = {'spec': {'resources': LARGE_GUEST}}
    return [zone.api.post('/v1/capacity', body)['count'] for zone in (tree.east, tree.east_gpu)]


def _place(top: ZoneProcess, resources: dict[str, int], members: int = 1) -> list[str]:
    """Place guests; the child zone of each.  :raises Failure:"""
    body = {
        'request_id': str(uuid.uuid4()),
        'spec': {'resources': resources},
        'consumers': [str(uuid.uuid4()) for _ in range(members)],
    }
    answer = top.api.post('/v1/requests', body)['answer']
    return [str(places[0]['child']) for places in answer['selections']]


# -- 4 -------------------------------------------------------------------------------
def kill_zone(tree: FourZones, earlier: DeepRequest) -> bool:
    """Check that other zones go on without one, and that all is well when it is back."""
    outcomes: collections.Counter[str] = collections.Counter()
    enough = threading.Event()

    def ask() -> None:
        for number in range(BEFORE + AFTER):
            try:
                outcomes.update(_place(tree.top, SMALL_GUEST))
            except Failure as e:
                outcomes[e.message] += 1
            if number + 1 == BEFORE:
                enough.set()

    caller = threading.Thread(target=ask, daemon=True)
    caller.start()
    enough.wait(WAIT_SECONDS)
    say.line(f'kill -9 {tree.east_gpu.kill()}, which was {tree.east_gpu.name}, amid requests')
    caller.join(WAIT_SECONDS)
    by_zone = ', '.join(f'{name} {n}' for name, n in sorted(outcomes.items()))
    say.paragraph(f'{outcomes.total()} small requests at the top, before and after it: {by_zone}')
    going_on = set(outcomes) <= {tree.east.name, tree.cloud.name}
    say.line('What only that zone could place is not known, which is not "no valid host":')
    waiting = DeepRequest()
    not_known = tree.top.command(*waiting.words) == Exit.TROUBLE
    _explain(tree.top, waiting.id)
    before = earlier.chosen(tree.top)
    is_same = _is_answer_repeated(tree, earlier, before)
    say.line(f'the first request, repeated while it is away: {_sameness_text(is_same, before)}')
    tree.east_gpu.start()
    tree.east_gpu.wait()
    _hosts_report(tree.east_gpu)
    say.paragraph(
        f'{tree.east_gpu.name} is started again. Its hosts were in its process: they come back '
        'empty, as after a power cut, and the claims of their guests end. The same request, '
        'as soon as east asks it again:'
    )
    if not wait_until(lambda: tree.top.run(*waiting.words).returncode == Exit.PLACED, WAIT_SECONDS):
        raise RuntimeError('the request that was not known was not placed afterwards')
    tree.top.run_checked(*waiting.words)
    is_same = _is_answer_repeated(tree, earlier, before) and is_same
    say.line(f'the first request, repeated: {_sameness_text(is_same, before)}')
    return going_on and not_known and is_same


def _is_answer_repeated(tree: FourZones, request: DeepRequest, before: dict[str, Any]) -> bool:
    """Return whether a request that is sent again has the same answer."""
    done = tree.top.run(*request.words)
    return done.returncode == Exit.PLACED and request.chosen(tree.top) == before


def _sameness_text(is_same: bool, before: dict[str, Any]) -> str:
    return f'{"the same answer" if is_same else "ANOTHER ANSWER"}, claim {before["claim_id"][:8]}'


# -- 5 -------------------------------------------------------------------------------
def audit(tree: FourZones) -> bool:
    """Audit when quiet: every promise in each database, and what zones hold of each other."""
    wait_until(lambda: not any(_contradictions(tree)), WAIT_SECONDS, 0.5)
    total: collections.Counter[str] = collections.Counter()
    lines_shown = []
    for zone in tree.zones:
        with zone.stores() as stores:
            violations = stores.claims.audit()
        total.update({name: len(lines) for name, lines in violations.items()})
        lines_shown += [
            f'{zone.name}: {line}' for lines in violations.values() for line in lines[:5]
        ]
    for kind, line in _contradictions(tree):
        total[kind] += 1
        lines_shown.append(line)
    say.line(
        f'over-commit {total["over_commit"]}, lost {total["lost"]}, leaked {total["leaked"]}, '
        f'doubled {total["doubled"]}, providers {total["providers"]}'
    )
    say.block(lines_shown)
    guests = {zone.name: len(_own_claims(zone)) for zone in tree.zones if zone.hosts}
    by_zone = ', '.join(f'{n} in {name}' for name, n in guests.items())
    say.paragraph(f'{sum(guests.values())} guests run, each under its confirmed claim: {by_zone}')
    return not total.total()


def _contradictions(tree: FourZones) -> Iterator[tuple[str, str]]:
    """Yield contradictions, and what is not confirmed yet: a kind of the audit, and a line."""
    where: dict[str, set[str]] = collections.defaultdict(set)
    for zone in tree.zones:
        for claim in _own_claims(zone):
            where[claim.consumer].add(zone.name)
            if claim.state.value == 'reserved':
                yield 'leaked', f'{zone.name}: claim {claim.id} is reserved, and nothing runs'
    for consumer, names in where.items():
        if len(names) > 1:
            yield 'doubled', f'{consumer} has claims in {", ".join(sorted(names))}'
    for above, below in tree.edges:
        with above.stores() as parent, below.stores() as child:
            known_ids, live_ids = (
                _claims_known_above(parent, child),
                _claims_of_parent(child, above.name),
            )
        for claim_id in known_ids - live_ids:
            yield 'lost', f'{above.name}: claim {claim_id} has ended in {below.name}'
        for claim_id in live_ids - known_ids:
            yield 'leaked', f'{below.name}: claim {claim_id} is not known in {above.name}'


def _claims_known_above(parent: AllStores, child: AllStores) -> set[str]:
    """Return live claims in a child zone, as the parent zone has them."""
    claims = parent.child_claims.find(child=child.zones.zone_identity().uuid)
    return {claim.claim_id for claim in claims if claim.state in LIVE_STATES}


def _claims_of_parent(child: AllStores, parent: str) -> set[str]:
    """Return live claims of a parent zone, as the child zone has them: its own and further down."""
    own_ids = {claim.id for claim in _live_claims(child) if claim.parent_key == parent}
    further = {
        below.claim_id
        for below in child.child_claims.find()
        if below.parent == parent and below.state in LIVE_STATES
    }
    return own_ids | further


def _own_claims(zone: ZoneProcess) -> Sequence[Claim]:
    """Return live claims on the hosts of a zone."""
    with zone.stores() as stores:
        return _live_claims(stores)


def _live_claims(stores: AllStores) -> list[Claim]:
    claims: list[Claim] = []
    for state in LIVE_STATES:
        marker = None
        while page := stores.claims.list_claims(state=state.value, limit=PAGE_SIZE, marker=marker):
            claims += page
            marker = page[-1].id
    return claims
