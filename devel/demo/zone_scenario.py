# SPDX-License-Identifier: Apache-2.0
"""What is played over four zones: a deep placement, the last resort, a zone killed and back.

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
from devel.demo.zone_processes import FourZones, ZoneProcess, hosts_up
from gantt.cli.endpoint import Exit, Failure
from gantt.compute.farm.shapes import Shape
from gantt.core.claims.claim import LIVE, Claim
from gantt.db.stores.store import SqlStore

TRAIT = 'CUSTOM_GPU'
SHAPES = {
    'east': [
        Shape(name='general', weight=3, vcpus=32, memory_mb=65_536),
        Shape(name='large', weight=1, vcpus=64, memory_mb=131_072),
    ],
    'east-gpu': [Shape(name='gpu', vcpus=32, memory_mb=65_536, traits=[TRAIT])],
    'cloud': [Shape(name='rented', vcpus=64, memory_mb=131_072)],
}
#: Guests that fill a host of the smallest shape but for 4 GiB, and those that still fit then.
LARGE = {'VCPU': 8, 'MEMORY_MB': 61_440}
SMALL = {'VCPU': 1, 'MEMORY_MB': 1024}
OF_TRAIT = {'VCPU': 2, 'MEMORY_MB': 2048}
#: Members of one request that fills, and requests at most; small ones during the kill, before
#: and after it.
MEMBERS, FILLING_MAX = 8, 200
BEFORE, AFTER = 6, 12
#: For what comes by itself: hosts report, a zone is asked again, claims are known above.
WAIT_SECONDS = 60.0
#: Claims that are read at once.
PAGE = 1000


# -- 1 -------------------------------------------------------------------------------
def zones_are_registered(tree: FourZones) -> None:
    """By URL, with the real commands; then all hosts have reported."""
    for above, below in tree.edges:
        own = above.api.get('/v1/zones')['uuid']
        known = ['--identity', own, '--project', above.name, '--trusted']
        below.must('parent', 'add', above.name, *known)
        last_resort = ['--last-resort'] if below is tree.cloud else []
        above.must('zone', 'add', below.name, below.url, '--trusted', *last_resort)
    tree.top.must('zone', 'list')
    for zone in tree.zones:
        _hosts_report(zone)
    hosts = ', '.join(f'{zone.name} {zone.hosts}' for zone in tree.zones)
    say.line(f'hosts: {hosts}')
    tree.top.must('zone', 'tree')


def _hosts_report(zone: ZoneProcess) -> None:
    if not wait_until(lambda: hosts_up(zone) == zone.hosts, WAIT_SECONDS):
        raise RuntimeError(f'{hosts_up(zone)} of {zone.hosts} hosts of {zone.name} have reported')


# -- 2 -------------------------------------------------------------------------------
class DeepRequest:
    """A request for the trait that only the lowest zone has, by the command and over HTTP."""

    def __init__(self) -> None:
        self.id, self.consumer = str(uuid.uuid4()), str(uuid.uuid4())
        resources = [word for name, n in OF_TRAIT.items() for word in ('--resource', f'{name}={n}')]
        self.words = ['select', *resources, '--trait', TRAIT]
        self.words += ['--request-id', self.id, '--consumer', self.consumer]

    def chosen(self, top: ZoneProcess) -> dict[str, Any]:
        """Where it was placed, as it is stored."""
        found: dict[str, Any] = top.api.get(f'/v1/requests/{self.id}')['answer']
        return dict(found['selections'][0][0])


def placed_two_levels_down(tree: FourZones) -> DeepRequest:
    """One request, explained, and its sealed place redeemed level by level."""
    request = DeepRequest()
    tree.top.must(*request.words)
    say.line()
    _explain(tree.top, request.id)
    say.line()
    say.paragraph('The place is sealed. The conductor of each zone redeems it for what is there:')
    place = request.chosen(tree.top)['place']
    below = tree.east.api.post('/v1/places', {'place': place})
    found = tree.east_gpu.api.post('/v1/places', {'place': below['place']})
    rows = [
        (tree.top.name, f'{place[:18]}...', f'zone {tree.east.name}'),
        (tree.east.name, f'{place[:18]}...', f'zone {below["child"]}'),
        (below['child'], f'{below["place"][:18]}...', f'host {found["host"]}'),
    ]
    say.table(('zone', 'place', 'is'), rows)
    say.line()
    say.line('Why that host, the zone that has it explains:')
    own = tree.east_gpu.api.get(f'/v1/claims/{found["claim_id"]}')['request_id']
    _explain(tree.east_gpu, own)
    return request


def _explain(zone: ZoneProcess, request_id: str) -> None:
    """Show why it came out as it did; a decision is stored soon after its answer."""

    def is_stored() -> bool:
        try:
            return bool(zone.api.get(f'/v1/decisions/{request_id}'))
        except Failure:
            return False

    wait_until(is_stored, WAIT_SECONDS)
    zone.must('explain', request_id)


# -- 3 -------------------------------------------------------------------------------
def east_is_filled(tree: FourZones) -> bool:
    """Requests at the top until nothing of this size fits below east; the next is the cloud's."""
    went: collections.Counter[str] = collections.Counter()
    requests = 0
    while requests < FILLING_MAX and any(left := _left(tree)):
        # Several at once where one zone has room for all: those left over go one by one.
        went.update(_place(tree.top, LARGE, MEMBERS if max(left) >= MEMBERS else 1))
        requests += 1
        say.progress(f'{went.total()} guests of 60 GiB placed, room for {sum(left)} in east')
    say.progress_done()
    say.paragraph(
        f'{requests} requests for {went.total()} guests of 60 GiB, sent to the top: '
        f'{went[tree.east.name]} went to east and below, {went[tree.cloud.name]} to cloud'
    )
    say.line(f'room for more of them in east and east-gpu: {sum(_left(tree))}; the next one:')
    words = [word for name, n in LARGE.items() for word in ('--resource', f'{name}={n}')]
    number = str(uuid.uuid4())
    tree.top.must('select', *words, '--request-id', number)
    answer = tree.top.api.get(f'/v1/requests/{number}')['answer']
    say.table(('zone', 'live claims'), [(z.name, len(_own(z))) for z in tree.zones if z.hosts])
    return bool(answer['selections'][0][0]['child'] == tree.cloud.name)


def _left(tree: FourZones) -> list[int]:
    """How many more large guests fit in east and below, by zone, as these say."""
    body = {'spec': {'resources': LARGE}}
    return [zone.api.post('/v1/capacity', body)['count'] for zone in (tree.east, tree.east_gpu)]


def _place(top: ZoneProcess, resources: dict[str, int], members: int = 1) -> list[str]:
    """Place guests; the zone below of each.  :raises Failure:"""
    body = {
        'request_id': str(uuid.uuid4()),
        'spec': {'resources': resources},
        'consumers': [str(uuid.uuid4()) for _ in range(members)],
    }
    answer = top.api.post('/v1/requests', body)['answer']
    return [str(places[0]['child']) for places in answer['selections']]


# -- 4 -------------------------------------------------------------------------------
def a_zone_is_killed(tree: FourZones, earlier: DeepRequest) -> bool:
    """The others go on, what only it could place is not known, and all is well when it is back."""
    went: collections.Counter[str] = collections.Counter()
    enough = threading.Event()

    def ask() -> None:
        for number in range(BEFORE + AFTER):
            try:
                went.update(_place(tree.top, SMALL))
            except Failure as e:
                went[e.message] += 1
            if number + 1 == BEFORE:
                enough.set()

    caller = threading.Thread(target=ask, daemon=True)
    caller.start()
    enough.wait(WAIT_SECONDS)
    say.line(f'kill -9 {tree.east_gpu.kill()}, which was {tree.east_gpu.name}, amid requests')
    caller.join(WAIT_SECONDS)
    by_zone = ', '.join(f'{name} {n}' for name, n in sorted(went.items()))
    say.paragraph(f'{went.total()} small requests at the top, before and after it: {by_zone}')
    going_on = set(went) <= {tree.east.name, tree.cloud.name}
    say.line('What only that zone could place is not known, which is not "no valid host":')
    waiting = DeepRequest()
    not_known = tree.top.command(*waiting.words) == Exit.TROUBLE
    _explain(tree.top, waiting.id)
    before = earlier.chosen(tree.top)
    is_same = _repeated(tree, earlier, before)
    say.line(f'the first request, repeated while it is away: {_same(is_same, before)}')
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
    tree.top.must(*waiting.words)
    is_same = _repeated(tree, earlier, before) and is_same
    say.line(f'the first request, repeated: {_same(is_same, before)}')
    return going_on and not_known and is_same


def _repeated(tree: FourZones, request: DeepRequest, before: dict[str, Any]) -> bool:
    """Whether a request that is sent again has the same answer."""
    done = tree.top.run(*request.words)
    return done.returncode == Exit.PLACED and request.chosen(tree.top) == before


def _same(is_same: bool, before: dict[str, Any]) -> str:
    return f'{"the same answer" if is_same else "ANOTHER ANSWER"}, claim {before["claim_id"][:8]}'


# -- 5 -------------------------------------------------------------------------------
def audit(tree: FourZones) -> bool:
    """Quiet, then every promise in each database, and what zones hold of each other."""
    wait_until(lambda: not any(_open(tree)), WAIT_SECONDS, 0.5)
    total: collections.Counter[str] = collections.Counter()
    shown = []
    for zone in tree.zones:
        with zone.store() as store:
            violations = store.audit()
        total.update({name: len(lines) for name, lines in violations.items()})
        shown += [f'{zone.name}: {line}' for lines in violations.values() for line in lines[:5]]
    for kind, line in _open(tree):
        total[kind] += 1
        shown.append(line)
    say.line(
        f'over-commit {total["over_commit"]}, lost {total["lost"]}, leaked {total["leaked"]}, '
        f'doubled {total["doubled"]}, providers {total["providers"]}'
    )
    say.block(shown)
    guests = {zone.name: len(_own(zone)) for zone in tree.zones if zone.hosts}
    by_zone = ', '.join(f'{n} in {name}' for name, n in guests.items())
    say.paragraph(f'{sum(guests.values())} guests run, each under its confirmed claim: {by_zone}')
    return not total.total()


def _open(tree: FourZones) -> Iterator[tuple[str, str]]:
    """What contradicts each other, or is not confirmed yet: a kind of the audit, and a line."""
    where: dict[str, set[str]] = collections.defaultdict(set)
    for zone in tree.zones:
        for claim in _own(zone):
            where[claim.consumer].add(zone.name)
            if claim.state.value == 'reserved':
                yield 'leaked', f'{zone.name}: claim {claim.id} is reserved, and nothing runs'
    for consumer, names in where.items():
        if len(names) > 1:
            yield 'doubled', f'{consumer} has claims in {", ".join(sorted(names))}'
    for above, below in tree.edges:
        with above.store() as parent, below.store() as child:
            here, there = _known_above(parent, child), _live_below(child, above.name)
        for claim_id in here - there:
            yield 'lost', f'{above.name}: claim {claim_id} has ended in {below.name}'
        for claim_id in there - here:
            yield 'leaked', f'{below.name}: claim {claim_id} is not known in {above.name}'


def _known_above(parent: SqlStore, child: SqlStore) -> set[str]:
    """Live claims in a zone below, as the zone above has them."""
    found = parent.claims_below(child=child.zone_identity().uuid)
    return {one.claim_id for one in found if one.state in LIVE}


def _live_below(child: SqlStore, parent: str) -> set[str]:
    """Live claims of a zone above, as the zone below has them: its own, and further down."""
    own = {claim.id for claim in _live(child) if claim.parent_key == parent}
    further = {
        one.claim_id for one in child.claims_below() if one.parent == parent and one.state in LIVE
    }
    return own | further


def _own(zone: ZoneProcess) -> Sequence[Claim]:
    """Live claims on the hosts of a zone."""
    with zone.store() as store:
        return _live(store)


def _live(store: SqlStore) -> list[Claim]:
    found: list[Claim] = []
    for state in LIVE:
        marker = None
        while page := store.claims(state=state.value, limit=PAGE, marker=marker):
            found += page
            marker = page[-1].id
    return found
