# SPDX-License-Identifier: Apache-2.0
"""A log that is replayed gives the very table that was there, through random histories."""

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gantt.core.claims.claim import Claim
from gantt.core.claims.commit import ClaimColumns, ClaimDraft
from gantt.core.messages.request import Flavor, Image, Purpose, SelectDestinations
from gantt.core.table.columns import COLUMNS
from gantt.core.table.host_table import HostTable
from gantt.scheduler import table_log
from tests.scheduler.test_layouts import CELLS, ROOM, pinned
from tests.world import Host, World, a_group, a_request, new_uuid


def state_of(table: HostTable) -> dict[str, Any]:
    """All of a table that a decision may depend on, bit for bit."""
    arrays = {name: getattr(table, name).tobytes() for name in COLUMNS}
    arrays |= {f'metric {name}': array.tobytes() for name, array in table.metrics.items()}
    return {
        **arrays,
        'classes': list(table.classes.names),
        'hosts': list(table.hosts),
        'names': list(table.names),
        'placed': [list(table.placed.on_provider(row.id).items()) for row in table.hosts],
        'where': {p.consumer: table.rows_of_consumer(p.consumer) for p in table.placed},
        'groups': {
            group: {host: dict(of) for host, of in table.placed.in_group(group).items()}
            for group in {p.group for p in table.placed if p.group}
        },
        'images': {image: dict(of) for image, of in table.placed.by_image().items()},
        'flavors': {name: dict(of) for name, of in table.placed.by_flavor().items()},
        'pending': [table.pending_claims_of(row.id) for row in table.hosts],
        'unreported': table.unreported_claims(),
        'generations': table.generations(),
        'now': table.now,
    }


def seen_of(table: HostTable) -> dict[str, Any]:
    """The same but for codes, for the order in which claims came, and where picks are counted.

    A table of a later checkpoint has codes of its own, and picks that were committed are in the
    figures of its hosts, whether or not the live one has read these yet.
    """
    by_class = {
        name: [getattr(table, column)[code].tolist() for column in ('cap', 'used', 'free')]
        for code, name in enumerate(table.classes.names)
        if table.used[code].any() or table.cap[code].any()
    }
    state = state_of(table)
    alike = ('names', 'groups', 'unreported', 'generations', 'instances', 'io_ops', 'open')
    return {
        'classes': by_class,
        'hosts': [msgspec.structs.replace(row, used={}) for row in table.hosts],
        'placed': [sorted(map(str, of)) for of in state['placed']],
        'where': {consumer: sorted(rows) for consumer, rows in state['where'].items()},
        **{name: state[name] for name in alike},
    }


class History:
    """Two schedulers over one store, hosts, callers and operators; the log of the first."""

    def __init__(self, seed: int, **settings: Any) -> None:
        self.rng = random.Random(seed)
        self.world = World(claims_per_commit=4, **settings)
        self.parts: list[tuple[int, bool, list[bytes]]] = []  # first event, a checkpoint starts
        self.world.store.table_logs.save_table_log = self._save
        self.other = self.world.another_scheduler()
        for number in range(1, 6):
            host = Host(self.world, f'cmp-{number}', inventories=ROOM, numa=CELLS)
            host.report()
            self.world.hosts[host.name] = host
        self.world.turn()
        self.cache = self.world.scheduler.cache
        self.groups = [a_group(policy) for policy in ('anti-affinity', 'soft-affinity')]
        self.claimed: list[tuple[str, str]] = []  # request, host
        self.seen: list[tuple[int, Any]] = []

    def _save(self, worker: str, first: int, last: int, starts: bool, chunks: list[bytes]) -> None:
        if worker == self.cache.log.worker:
            self.parts.append((first, starts, chunks))

    def a_request(self) -> SelectDestinations:
        """Of any kind that leaves its own kind of pick."""
        kind = self.rng.choice(('plain', 'plain', 'group', 'named', 'pinned', 'move', 'vain'))
        count = self.rng.choice((1, 1, 2, 5))
        if kind == 'pinned':
            return pinned(count, cpus=self.rng.choice((1, 2)))
        fields: dict[str, Any] = {'vcpu': self.rng.choice((1, 1, 2)), 'ram': 256}
        if kind == 'group':
            fields['group'] = self.rng.choice(self.groups)
        elif kind == 'named':
            fields['flavor'] = Flavor(name=self.rng.choice(('m1', 'm2')))
            fields['image'] = Image(properties={'os_distro': 'linux'})
        elif kind == 'vain':
            fields['vcpu'] = 1000
        elif kind == 'move':
            live = [c for c in self.world.store.claims.list_claims(limit=1000) if c.is_live]
            if live:
                fields['consumers'] = [self.rng.choice(live).consumer]
                fields['purpose'] = Purpose.RESIZE
                count = 1
        return a_request(count, **fields)

    # -- what happens ------------------------------------------------------------
    def ours(self) -> None:
        for _ in range(self.rng.choice((1, 1, 3))):
            self.world.ask(self.a_request())
        self.world.scheduler.placing.step()

    def race(self) -> None:
        """Both plan on what they know: some of ours are refused by the commit."""
        self.theirs()
        self.ours()

    def theirs(self) -> None:
        self.world.ask(self.a_request(), self.other)
        self.other.placing.step()

    def report(self) -> None:
        host = self.rng.choice(list(self.world.hosts.values()))
        host.report(**self.rng.choice(({}, {'foreign': {'MEMORY_MB': 64}}, {'traits': ['A']})))
        self.world.scheduler.report_queue.step()

    def shelve(self) -> None:
        name = self.rng.choice(list(self.world.hosts))
        self.world.store.hosts.disable_host(name, 'repairs', 'op')
        if self.rng.random() < 0.9:
            self.world.store.hosts.enable_host(name)

    def give_up(self) -> None:
        live = [c for c in self.world.store.claims.list_claims(limit=1000) if c.is_live]
        if live:
            self.world.store.requests.cancel_request(self.rng.choice(live).request_id, 'not wanted')

    def turn(self) -> None:
        self.world.turn(self.rng.choice((0.2, 2.0)))

    def flush(self) -> None:
        self.cache.log.flush(self.world.store.table_logs)

    KINDS = (ours, ours, ours, race, race, theirs, report, report, shelve, give_up, turn, flush)

    def run(self, steps: int, look: Any) -> None:
        for _ in range(steps):
            self.rng.choice(self.KINDS)(self)
            if self.cache.is_loaded and self.rng.random() < 0.2:
                self.seen.append((self.cache.log.position, look(self.cache.working)))
        self.flush()

    def events(self, position: int) -> list[tuple[int, Any]]:
        """Since the last checkpoint before a position."""
        start = max(first for first, starts, _ in self.parts if starts and first < position)
        parts = [chunks for first, _, chunks in self.parts if start <= first < position]
        return list(table_log.read_events(parts))

    def check(self, look: Any, seed: int) -> set[type]:
        """Every state that was seen is there again; kinds of events on the way."""
        kinds = set()
        for position, then in self.seen:
            events = self.events(position)
            kinds |= {type(event) for _, event in events}
            again = table_log.table_at(events, position)
            assert again is not None, f'seed {seed}, at {position}'
            assert not list(differences(then, look(again))), f'seed {seed}, at {position}'
        return kinds


def differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for name in before:
        if before[name] != after[name]:
            yield f'{name}: {before[name]!r:.600} then, {after[name]!r:.600} again'


@pytest.mark.parametrize('block', [range(n * 6, n * 6 + 6) for n in range(4)], ids=str)
def test_any_history_gives_the_same_table_bit_for_bit(block):
    kinds = set()
    for seed in block:
        history = History(seed, checkpoint_seconds=1e9, reload_seconds=1e9)
        history.run(50, state_of)
        kinds |= history.check(state_of, seed)
    assert {table_log.CommitEntry, table_log.PickColumns, table_log.HostsEntry} <= kinds


def test_a_history_with_checkpoints_gives_the_same_table():
    checkpoints = 0
    for seed in range(100, 112):
        history = History(seed, checkpoint_seconds=0.5, reload_seconds=4.0)
        history.run(50, seen_of)
        history.check(seen_of, seed)
        checkpoints += sum(starts for _, starts, _ in history.parts) - 1
    assert checkpoints > 12


def picks_on(host: int, consumers: dict[str, str], amounts: dict[str, int]) -> ClaimColumns:
    """Return picks on one host, by claim id the consumer of each."""
    return ClaimColumns.of(
        [
            ClaimDraft(
                claim=Claim(
                    id=claim_id,
                    request_id='r',
                    consumer=consumer,
                    provider_id=host,
                    allocations={host: amounts},
                    flavor=f'm{number}',
                )
            )
            for number, (claim_id, consumer) in enumerate(consumers.items())
        ]
    )


def test_a_commit_leaves_the_open_picks_of_others_on_its_hosts():
    history = History(1, checkpoint_seconds=1e9, reload_seconds=1e9)
    cache, host = history.cache, history.cache.working.hosts[0]
    amounts = {'VCPU': 1, 'MEMORY_MB': 64}
    consumers = {new_uuid(): new_uuid() for _ in range(3)}
    picks = picks_on(host.id, {**consumers, 'no uuid': 'NOR-THIS'}, amounts)
    cache.apply_and_record(table_log.picks_added(picks))
    cache.apply_and_record(table_log.picks_removed(picks, [1, 2, 3]))
    written = msgspec.structs.replace(host, version=host.version + 1, used=amounts)
    cache.commit_applied([written], {host.id}, {picks.ids[1]})
    assert cache.working.pending_claims_of(host.id) == [picks.ids[2], 'no uuid']
    history.flush()
    again = table_log.table_at(history.events(cache.log.position), cache.log.position)
    assert again is not None
    assert not list(differences(state_of(cache.working), state_of(again)))


def test_classes_that_a_commit_brings_have_their_codes_in_the_same_order():
    history = History(1, checkpoint_seconds=1e9, reload_seconds=1e9)
    cache = history.cache
    first, second, third = cache.working.hosts[:3]
    replace = msgspec.structs.replace
    others = replace(first, version=first.version + 2, reported_at=first.reported_at + 1)
    rows = [
        replace(second, version=second.version + 2, used={'VCPU': 1, 'CUSTOM_Z': 1}),
        replace(others, used={'CUSTOM_Y': 3}, foreign={'CUSTOM_X': 2}),
        replace(third, version=third.version + 1, used={'CUSTOM_W': 5}),
    ]
    cache.commit_applied(rows, {row.id for row in rows})
    assert cache.working.classes.names[-4:] == [f'CUSTOM_{name}' for name in 'ZYXW']
    history.flush()
    again = table_log.table_at(history.events(cache.log.position), cache.log.position)
    assert again is not None
    assert not list(differences(state_of(cache.working), state_of(again)))


@pytest.mark.parametrize(
    'ids',
    [
        (),
        (new_uuid(),),
        (new_uuid(), new_uuid()),
        (new_uuid().upper(),),
        (new_uuid().replace('-', ''),),
        (f'{new_uuid()}\n{new_uuid()}',),
        (new_uuid() * 2, ''),
        (new_uuid()[:-1], '0' + new_uuid()),
        ('', 'a', 'ü'),
    ],
)
def test_ids_come_back_as_they_were(ids):
    history = History(1, checkpoint_seconds=1e9, reload_seconds=1e9)
    cache, host = history.cache, history.cache.working.hosts[0].id
    picks = picks_on(host, {claim_id: claim_id[::-1] for claim_id in ids}, {'VCPU': 1})
    cache.apply_and_record(table_log.picks_added(picks))
    history.flush()
    again = table_log.table_at(history.events(cache.log.position), cache.log.position)
    assert again is not None
    assert again.pending_claims_of(host) == cache.working.pending_claims_of(host) == list(ids)
    assert [placed.consumer for placed in again.placed] == [consumer[::-1] for consumer in ids]
