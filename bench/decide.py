# SPDX-License-Identifier: Apache-2.0
"""One decision for one instance: the public place(), Decision included.

The yardstick is the bare NumPy loop on the same table.  256 request shapes, of which ten are
80 % of the requests and a hundred 97 %; fifty hosts change between decisions, every filter of the
default set removes hosts.
"""

import argparse
import statistics
import time
import uuid

import msgspec
import numpy as np

from bench import Result, apart, conditions, count, inside, nested, pooled, rare, refused, yardstick
from bench.every_filter import Every
from gantt import plugin_loader
from gantt.core.messages import base
from gantt.core.messages.request import (
    Destination,
    GroupRef,
    Policy,
    RequestSpec,
    SelectDestinations,
)
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement.place import place, undo_decision
from gantt.core.records.decision import Decision
from gantt.core.resources.host import Aggregate, HostChange, HostFacts, HostRow, Placed
from gantt.core.table import caches
from gantt.core.table.host_table import HostTable

SHAPES = 256
#: The shapes by how often they are requested: the n-th as often as 1/n to this power.
ZIPF = 1.5
CAPS = {'VCPU': 128, 'MEMORY_MB': 1024 * 1024, 'DISK_GB': 8000, 'CUSTOM_LICENSE': 16}
TRAITS = [f'CUSTOM_T{i}' for i in range(20)]
CELLS = [str(uuid.UUID(int=0xCE110000 + i)) for i in range(2)]
ZONES = ('north', 'south')
APART, TOGETHER = 64, 8  # server groups with a rule
NOW = 1_000_000.0
#: Filters that no request concerns here; the first two have a bench of their own: ``--numa``.
ELSEWHERE = {
    'NUMATopologyFilter',
    'PciPassthroughFilter',
    'ComputeCapabilitiesFilter',
    'ImagePropertiesFilter',
    'LocationFilter',
    'RulesFilter',
    'GroupPolicyFilter',
}
#: Picks stand on the table for so many decisions before they are taken back.
STANDING = 32
#: Hosts that change between two decisions, beside those with picks.
CHANGES = 50
#: Decisions of which nothing is cached.
COLD = 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument('--hosts', type=int, help='10,000 unless said otherwise')
    parser.add_argument('--rounds', type=int, default=0, help='of 256 decisions; 0: by hosts')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument(
        '--nested',
        type=count,
        default=0,
        metavar='N',
        help='with --pool: N providers below each host, and requests for groups of them',
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        '--filters',
        choices=('default', 'all'),
        help="Nova's default filters, or all there are, each with work; and all weighers",
    )
    mode.add_argument(
        '--anti-affinity',
        action='store_true',
        help='groups that must be apart, rather on racks of their own; by 5,000 hosts if not said',
    )
    mode.add_argument(
        '--numa',
        action='store_true',
        help='dedicated processors and huge pages, laid out; refusals',
    )
    mode.add_argument(
        '--pool',
        action='store_true',
        help='what pools that hosts share cost requests that do not ask for them',
    )
    mode.add_argument(
        '--rare-classes',
        type=count,
        default=0,
        metavar='N',
        help='what N classes that ten hosts each have cost in memory, and the others in time',
    )


def an_id(kind: int, number: int) -> str:
    """Return a uuid by kind and number."""
    return str(uuid.UUID(int=(kind << 64) + number))


def changes(hosts: int, rng: np.random.Generator) -> list[HostChange]:
    """Return hosts half used, with guests, in two cells and zones; some down, some closed."""
    shares = rng.uniform(0, 1, (len(CAPS), hosts))
    has = rng.random((hosts, len(TRAITS))) < 0.5
    odd = rng.random((3, hosts))
    inventories = {name: Inventory(total=cap) for name, cap in CAPS.items()}
    facts: dict[bytes, HostFacts] = {}
    host_changes = []
    for i in range(hosts):
        key = has[i].tobytes()
        if key not in facts:
            names = [name for name, yes in zip(TRAITS, has[i], strict=True) if yes]
            facts[key] = HostFacts(inventories=inventories, traits=names)
        row = HostRow(
            id=i + 1,
            uuid=an_id(1, i),
            name=f'cmp-{i:06}',
            cell=CELLS[int(odd[0, i] < 0.1)],
            zone=ZONES[int(odd[1, i] < 0.2)],
            version=1,
            facts=facts[key],
            used={
                name: int(cap * shares[line, i]) for line, (name, cap) in enumerate(CAPS.items())
            },
            disabled='maintenance' if odd[2, i] < 0.01 else None,
            over_committed=bool(0.01 <= odd[2, i] < 0.015),
            reported_at=NOW - (900.0 if 0.015 <= odd[2, i] < 0.02 else 30.0),
        )
        guests = [Placed(an_id(2, i * 4 + k), an_id(3, i * 4 + k), i + 1) for k in range(4)]
        host_changes.append(HostChange(provider_id=i + 1, row=row, placed=guests))
    for group in range(APART + TOGETHER):
        for number in range(16 if group < APART else 1):
            host = int(rng.integers(hosts))
            guest = Placed(
                an_id(4, group * 16 + number),
                an_id(5, group * 16 + number),
                host + 1,
                an_id(6, group),
            )
            host_changes[host].placed.append(guest)
    return host_changes


def aggregates(hosts: int, rng: np.random.Generator) -> list[Aggregate]:
    """Return ten aggregates; a host is in each with its own probability."""
    return [
        Aggregate(
            id=i + 1,
            uuid=an_id(7, i),
            name=f'agg-{i}',
            hosts=[f'cmp-{h:06}' for h in np.flatnonzero(rng.random(hosts) < 0.9 - 0.08 * i)],
        )
        for i in range(10)
    ]


def shapes(hosts: int, rng: np.random.Generator) -> list[SelectDestinations]:
    """Return 256 requests, no two alike; each filter has work in some of them."""
    return [_shape(number, hosts, rng) for number in range(SHAPES)]


def _host_names(count: int, hosts: int, rng: np.random.Generator) -> list[str]:
    return [f'cmp-{h:06}' for h in rng.integers(0, hosts, count)]


def _guests(count: int, hosts: int, rng: np.random.Generator) -> list[str]:
    return [an_id(3, int(guest)) for guest in rng.integers(0, hosts * 4, count)]


def _shape(number: int, hosts: int, rng: np.random.Generator) -> SelectDestinations:
    fields: dict[str, object] = {
        'resources': {
            'VCPU': 1 << int(rng.integers(0, 4)),
            'MEMORY_MB': 2048 << int(rng.integers(0, 4)),
            'DISK_GB': 20,
        },
        'required_traits': [TRAITS[int(rng.integers(0, 20))]],
    }
    if number % 4:
        fields['availability_zone'] = ZONES[int(rng.random() < 0.1)]
    if number % 2:
        fields['member_of'] = [['agg-0'], ['agg-1', 'agg-2']]
        fields['ignore_hosts'] = [name.upper() for name in _host_names(8, hosts, rng)]
    else:
        group = int(rng.integers(0, APART))
        fields['group'] = GroupRef(uuid=an_id(6, group), policy=Policy.ANTI_AFFINITY)
    if number % 4 == 1:
        fields['forbidden_aggregates'] = ['agg-9']
        fields['any_traits'] = [TRAITS[:3]]
        fields['different_host'] = _guests(8, hosts, rng)
    if number % 4 == 2:
        fields['destination'] = Destination(cell=CELLS[0])
    fields.update(_rare(number, hosts, rng))
    return SelectDestinations(
        request_id=an_id(8, number),
        spec=RequestSpec(**fields),  # type: ignore[arg-type]
        consumers=[an_id(9, number)],
    )


def _rare(number: int, hosts: int, rng: np.random.Generator) -> dict[str, object]:
    """Return rules that leave few hosts: each in one shape of 32, lest they make us fast."""
    many = min(200, hosts // 10)
    if number % 32 == 7:
        group = APART + int(rng.integers(0, TOGETHER))
        named = _host_names(many, hosts, rng)
        return {'group': GroupRef(uuid=an_id(6, group), policy=Policy.AFFINITY, hosts=named)}
    if number % 32 == 13:
        return {'same_host': _guests(many, hosts, rng)}
    if number % 32 == 21:
        return {'force_hosts': _host_names(many, hosts, rng)}
    return {}


class Both:
    """Gantt and the yardstick on the same hosts."""

    def __init__(self, hosts: int, seed: int, every: Every | None = None) -> None:
        rng = np.random.default_rng(seed)
        self.rng, self.every = rng, every
        world, inside_of = changes(hosts, rng), aggregates(hosts, rng)
        if every:
            world, inside_of = every.hosts(world, rng), every.aggregates(inside_of)
        started = time.perf_counter()
        self.table = HostTable.build(world, inside_of, {}, CAPS, NOW)
        self.build_seconds = time.perf_counter() - started
        self.rows = [change.row for change in world if change.row is not None]
        self.requests = shapes(hosts, rng)
        shares = np.arange(1, SHAPES + 1) ** -ZIPF
        #: Shape of each request after the first of each shape.
        self.mix = rng.choice(SHAPES, 16 * SHAPES, p=shares / shares.sum()).tolist()
        self.pipeline = plugin_loader.load_pipeline()
        if every:
            self.requests = every.requests(self.requests)
            self.pipeline = every.pipeline([row.name for row in self.rows])
        codes = [self.table.add_class(name) for name in CAPS]
        self.bare = yardstick.BareLoop(
            self.table.free[codes].copy(),
            self.table.traits[0].copy(),
            self.table.enabled.copy(),
            [self._wanted(request.spec) for request in self.requests],
        )
        self.standing: list[tuple] = []
        self.removed: dict[str, int] = {f.name: 0 for f in self.pipeline.filters}
        self.survivors: list[int] = []
        self.outcomes: dict[str, int] = {}

    def _wanted(self, spec: RequestSpec) -> tuple[np.ndarray, np.uint64]:
        amounts = np.array([spec.resources.get(name, 0) for name in CAPS])
        code = self.table.trait_codes.add(spec.required_traits[0])
        return amounts, np.uint64(1 << code)

    def change(self) -> None:
        """Apply changes of hosts, as reports and claims make them, to both tables."""
        for _ in range(CHANGES):
            self._change_host()

    def _change_host(self) -> None:
        i = int(self.rng.integers(len(self.rows)))
        row = self.rows[i]
        used = {name: int(cap * self.rng.uniform(0, 1)) for name, cap in CAPS.items()}
        if self.every:
            used = self.every.used(used, self.rng)
        row = self.rows[i] = msgspec.structs.replace(row, used=used, version=row.version + 1)
        guests = list(self.table.placed.on_provider(row.id).values())
        self.table.apply(HostChange(provider_id=row.id, row=row, placed=guests))
        self.bare.free[:, i] = [cap - used[name] for name, cap in CAPS.items()]

    def shape_of(self, number: int) -> int:
        """Return the shape of a request: each once, then as often as the mix has it."""
        shape: int = number if number < SHAPES else self.mix[number % len(self.mix)]
        return shape

    def decide(self, number: int, count: bool) -> float:
        """Return the seconds of one decision; the oldest placement is taken back."""
        request = self.requests[self.shape_of(number)]
        request = msgspec.structs.replace(
            request, request_id=base.derived_id('bench', number), consumers=[an_id(9, number)]
        )
        self.change()
        started = time.perf_counter()
        decision = place(
            self.table, request, self.pipeline, seed=number, decision_id=request.request_id
        )
        spent = time.perf_counter() - started
        self.standing.append((decision, request))
        if len(self.standing) > STANDING:
            undo_decision(self.table, *self.standing.pop(0))
        if count:
            self._count(decision)
        return spent

    def decide_cold(self, number: int) -> float:
        """Return the seconds of a decision of which nothing is cached."""
        self.table.mask_cache = caches.MaskCache()
        self.table.array_cache = caches.ArrayCache(self.table.versions)
        return self.decide(number, count=False)

    def _count(self, decision: Decision) -> None:
        for filters in decision.members[0].filters:
            self.removed[filters.name] += filters.removed
        self.survivors.append(decision.members[0].survivors)
        self.outcomes[decision.outcome] = self.outcomes.get(decision.outcome, 0) + 1

    def decide_bare(self, number: int) -> float:
        """Make the yardstick's decision; return its time."""
        self.change()
        started = time.perf_counter()
        self.bare.decide(self.shape_of(number))
        return time.perf_counter() - started

    def audit(self) -> int:
        """Return hosts that picks have brought above capacity, or with wrong arithmetic."""
        table = self.table
        taken = np.flatnonzero(
            np.isin(
                table.ids,
                [
                    m.selection.provider_id
                    for d, _ in self.standing
                    for m in d.members
                    if m.selection
                ],
            )
        )
        over = int((table.free[:, taken] < 0).any(axis=0).sum())
        return over + int((table.free != table.cap - table.used).any(axis=0).sum())


def run(args: argparse.Namespace) -> Result:
    """Run rounds of Gantt and yardstick in turn; return medians of all decisions."""
    args.hosts = args.hosts or (5000 if args.anti_affinity else 10_000)
    if args.numa:
        return refused.run(args, inside.run(args))
    if args.anti_affinity:
        return apart.run(args)
    if args.nested and not args.pool:
        raise SystemExit('--nested: expected --pool with it')
    if args.pool:
        return nested.run(args) if args.nested else pooled.run(args)
    if args.rare_classes:
        return rare.run(args)
    every = Every(args.filters) if args.filters else None
    both = Both(args.hosts, args.seed, every)
    rounds = args.rounds or (12 if args.hosts <= 20_000 else 4)
    for number in range(SHAPES):
        both.decide(number, count=True)
        both.decide_bare(number)
    ours: list[float] = []
    bare: list[float] = []
    for turn in range(1, rounds + 1):
        for number in range(turn * SHAPES, (turn + 1) * SHAPES):
            ours.append(both.decide(number, count=False) * 1e6)
            bare.append(both.decide_bare(number) * 1e6)
    cached, cache_mb = len(both.table.mask_cache), both.table.mask_cache.nbytes / 2**20
    cold = [
        both.decide_cold(number) * 1e6
        for number in range((rounds + 1) * SHAPES, (rounds + 1) * SHAPES + COLD)
    ]
    value, stick = statistics.median(ours), statistics.median(bare)
    unasked = every.idle if every else ELSEWHERE
    idle = [n for n, removed in both.removed.items() if not removed and n not in unasked]
    return Result(
        bench=f'decide --filters {args.filters}' if every else 'decide',
        value=round(value, 1),
        unit='us',
        yardstick={'name': 'bare NumPy loop', 'value': round(stick, 1)},
        ratio=round(value / stick, 3),
        conditions={
            'hosts': args.hosts,
            'shapes': SHAPES,
            'mix': f'Zipf {ZIPF}',
            'changes_between': CHANGES,
            'processes': 1,
            'repeats': len(ours),
            'minimum': round(min(ours), 1),
            'maximum': round(max(ours), 1),
            'p99': round(float(np.percentile(ours, 99)), 1),
            'mean': round(statistics.fmean(ours), 1),
            'decisions_per_second': round(1e6 / statistics.fmean(ours)),
            'yardstick_mean': round(statistics.fmean(bare), 1),
            'cold_us': round(statistics.median(cold), 1),
            'cold_ratio': round(statistics.median(cold) / stick, 3),
            'cached_masks': cached,
            'cache_mb': round(cache_mb, 1),
            'removed': both.removed,
            'filters_without_work': idle,
            'survivors_median': statistics.median(both.survivors),
            'outcomes': both.outcomes,
            'weighers': [weigher.name for weigher in both.pipeline.weighers],
            'build_seconds': round(both.build_seconds, 2),
            **conditions.here(),
        },
        audit=both.audit() + len(idle),
    )
