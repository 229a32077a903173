# SPDX-License-Identifier: Apache-2.0
"""Hosts of an unmodified Nova, played: what really happens, and the broadcasts that tell of it.

The broadcasts are the captured ones, with other hosts, instances and times in
them, decoded as the scheduler decodes them.  A play decides of each whether it
is lost, comes now, or comes late; every one that comes, comes a second time
later, as to another scheduler.  Lists come late as well, and by the host's clock,
which may be another one than the database's, or be put back.  After each word:

* where a guest is, the claim that it had there lives on;
* while it moves, the claims at both ends live.

What is not promised, and so not played:

* A clock of a host that goes ahead by more than ``SKEW_SECONDS``, with lists that
  come late: what was listed before a guest came looks later than that, and where
  three such lists come behind each other, and no other, they end its claim.
* One that is behind, or was put back, by ``guest_events.CLOCK_SET_BACK_SECONDS`` less what its
  lists are late by, or by more: it is believed, for nothing waits so long in a queue.
* Fewer than two lists, and no update, within the lease of a claim.
* An update of an earlier stay that comes while another move to the same host is open: it
  confirms that move's claim, and three lists without the guest then look like a revert.
* A delete that was asked for by another clock than that of its skew.
"""

import copy
import functools
from collections.abc import Iterable, Iterator

from devel.memory_store.stores import memory_stores
from gantt.core.claims.claim import Claim
from gantt.nova.model.events import GuestLocation, NovaCast
from gantt.nova.model.host import ABSENCES_TO_RELEASE
from gantt.nova.wire import casts
from tests.builders import CLEAN, Host, a_draft, a_host, claimed, new_uuid, uuid_of
from tests.rpc.bus import load

SYNC_SECONDS = 120.0
LEASE_SECONDS = 900.0
SKEW_SECONDS = 30.0
MOVE_SECONDS = 14_400.0
#: Fates of a broadcast: lost, or heard after so many rounds of syncs.
LOST, NOW, LATE, LATER = None, 0, 1, 4
#: A second scheduler hears everything so many rounds after the first.
LAG = 2
GUEST = uuid_of('the guest')
#: Read once; who changes something in one copies it.
captured = functools.cache(load)
#: Within this all is as Nova has it, but moves that nobody ended: what the documents promise.
STATED_ROUNDS = int(LEASE_SECONDS / SYNC_SECONDS) + 2 * ABSENCES_TO_RELEASE + LATER + 1
#: Where clocks differ: a list of a clock that is behind ends nothing until it has caught up,
#: and one that is as late as that keeps what it names for one more lease.
STATED_OF_CLOCKS = 2 * int(LEASE_SECONDS / SYNC_SECONDS) + 4


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Play:
    """One guest, three hosts.

    :param fates: of updates and deletes, in their order; then all come
    :param deaf: of each host the syncs of which rounds are lost: (of how many, how many)
    :param slow: of each host how late its syncs come, in rounds, by turns
    :param clocks: of each host what its clock is ahead by from which round on
    """

    def __init__(
        self,
        fates: Iterable[int | None] = (),
        deaf: dict[str, tuple[int, int]] | None = None,
        slow: dict[str, list[int]] | None = None,
        clocks: dict[str, list[tuple[int, float]]] | None = None,
    ) -> None:
        self.clock = Clock()
        self.store = memory_stores(self.clock)
        self.hosts: dict[str, Host] = {
            name: a_host(name)
            .with_room(vcpu=64, ram=65_536, disk=1000)
            .on(self.store, reporter='nova')
            for name in 'ABC'
        }
        self.where: str | None = None
        self.moving: tuple[str, str] | None = None
        self.down: set[str] = set()
        self.trace: list[str] = []
        self._outcomes = iter(fates)
        self._deaf = deaf or {}
        self._slow = slow or {}
        self._clocks = clocks or {}
        self._post: list[tuple[int, NovaCast]] = []
        self._round = 0
        self._quiet = False

    # -- what really happens ---------------------------------------------------------
    def claim(self, host: str, purpose: str = 'create') -> Claim:
        """The scheduler answered a request: a place on a host."""
        draft = a_draft().leased(LEASE_SECONDS)
        move_id = new_uuid() if purpose in ('resize', 'live_migrate', 'evacuate') else None
        return claimed(
            self.store,
            draft.taking(self.hosts[host], GUEST, purpose=purpose, vcpu=2, move_id=move_id),
        )[0]

    def boot(self, host: str, purpose: str = 'create') -> None:
        self.say(f'{purpose} on {host}')
        if purpose == 'unshelve':
            self.resolve()
        self.claim(host, purpose)
        self.where = host
        self.rounds(1)
        self.update(host)

    def rescheduled(self, host: str) -> None:
        """The build failed, and the conductor took an alternate without asking."""
        self.say(f'rescheduled to {host}')
        self.where = host
        self.rounds(1)
        self.update(host)

    def move(self, purpose: str, to: str, rounds: int = 3) -> None:
        """A move begins."""
        assert self.where is not None
        self.say(f'{purpose} from {self.where} to {to}')
        self.resolve()
        self.claim(to, purpose)
        self.moving = (self.where, to)
        self.rounds(rounds)

    def resolve(self) -> None:
        """What a request says of a guest that is there, before it is placed."""
        location = GuestLocation(consumer=GUEST, host=self.where, cutoff=self.clock.now)
        self._checked(lambda: self.store.nova.resolve_guest(location))
        self.clock.sleep(2)

    def arrive_live(self) -> None:
        """The source speaks of the guest once more, the destination does not."""
        assert self.moving is not None
        source, self.where = self.moving
        self.moving = None
        self.say(f'runs on {self.where}')
        self.update(source)

    def arrive_resized(self) -> None:
        assert self.moving is not None
        self.where = self.moving[1]
        self.say(f'is resized on {self.where}')
        self.update(self.where, moving=True)

    def arrive_evacuated(self) -> None:
        assert self.moving is not None
        self.where, self.moving = self.moving[1], None
        self.say(f'rebuilt on {self.where}')
        self.update(self.where)

    def confirm(self) -> None:
        assert self.moving is not None
        source, self.moving = self.moving[0], None
        self.say(f'confirmed, leaves {source}')
        self.delete(source)

    def stay(self) -> None:
        """Rolled back or reverted: nobody says so."""
        assert self.moving is not None
        self.where, self.moving = self.moving[0], None
        self.say(f'stays on {self.where}')

    def gone(self) -> None:
        """Deleted, or shelved away."""
        assert self.where is not None
        host, self.where = self.where, None
        self.say(f'gone from {host}')
        self.delete(host)

    # -- what is said of it ------------------------------------------------------------
    def update(self, host: str, moving: bool = False) -> None:
        args = copy.deepcopy(captured('update_instance_info').args)
        args['host_name'] = host
        (objects,) = args['instance_info']['nova_object.data']['objects']
        data = objects['nova_object.data']
        data |= {'uuid': GUEST, 'host': host, 'node': host, 'vcpus': 2}
        flavor = data['flavor']['nova_object.data']
        flavor |= {'vcpus': 2, 'memory_mb': 0, 'root_gb': 0, 'ephemeral_gb': 0, 'swap': 0}
        if moving:
            data['migration_context'] = {
                'nova_object.name': 'MigrationContext',
                'nova_object.data': {},
            }
        self._send(self._cast(casts.update_instance_info(args)), next(self._outcomes, NOW))

    def delete(self, host: str) -> None:
        args = captured('delete_instance_info').args | {'host_name': host, 'instance_uuid': GUEST}
        self._send(self._cast(casts.delete_instance_info(args)), next(self._outcomes, NOW))

    def sync(self, host: str) -> None:
        uuids = [GUEST] if self.where == host else []
        args = captured('sync_instance_info').args | {'host_name': host, 'instance_uuids': uuids}
        of, lost = self._deaf.get(host, (1, 0))
        is_lost = not self._quiet and self._round % of < lost
        turns = self._slow.get(host, [NOW])
        late = NOW if self._quiet else turns[self._round % len(turns)]
        cast = self._cast(casts.sync_instance_info(args), self._ahead(host))
        self._send(cast, LOST if is_lost else late)

    def _ahead(self, host: str) -> float:
        return next((s for at, s in reversed(self._clocks.get(host, [])) if at <= self._round), 0.0)

    def _cast(self, word, ahead: float = 0.0) -> NovaCast:
        return NovaCast(
            id=new_uuid(), requested_at=self.clock.now + ahead, skew=SKEW_SECONDS, event=word
        )

    def _send(self, cast: NovaCast, fate: int | None) -> None:
        kind = type(cast.event).__name__
        if kind != 'GuestsListed' or fate is LOST:
            self.say(f'  {kind} of {cast.event.host}: {"lost" if fate is LOST else f"+{fate}"}')
        # It takes a moment, so that nothing happens at the same time.
        self.clock.sleep(1)
        if fate is LOST:
            return
        if fate == NOW:
            self.receive(cast)
        else:
            self._post.append((self._round + fate, cast))
        self._post.append((self._round + fate + LAG, cast))

    # -- what becomes of it --------------------------------------------------------------
    def rounds(self, count: int) -> None:
        """So many times two minutes: each host lists its guests, the sweeper sweeps."""
        for _ in range(count):
            self._round += 1
            due = [cast for at, cast in self._post if at <= self._round]
            self._post = [(at, cast) for at, cast in self._post if at > self._round]
            for cast in due:
                self.receive(cast)
            for host in self.hosts:
                if host not in self.down:
                    self.sync(host)
            self.clock.sleep(SYNC_SECONDS)
            self._checked(lambda: self.store.claims.sweep(100))

    def receive(self, cast: NovaCast) -> None:
        self._checked(lambda: self.store.nova.apply_guest_events([cast]))

    def _checked(self, word) -> None:
        before = self.hosts_with_claims()
        word()
        after = self.hosts_with_claims()
        must = set(self.moving or ()) | {self.where}
        freed = (must & set(before)) - set(after)
        assert not freed, self.told(f'the claim on {freed} was freed')
        # Of a move within one host both claims stay.
        if self.moving and self.moving[0] == self.moving[1]:
            host = self.moving[0]
            kept = before.count(host) <= after.count(host)
            assert kept, self.told(f'a claim of the move on {host} was freed')

    def live(self) -> list[Claim]:
        return [
            claim
            for claim in self.store.claims.list_claims(consumer=GUEST, limit=1000)
            if claim.is_live
        ]

    def hosts_with_claims(self) -> list[str]:
        return sorted(claim.host for claim in self.live())

    def say(self, line: str) -> None:
        self.trace.append(f'{self._round:3} {line}')

    def told(self, sentence: str) -> str:
        claims = [
            f'{c.host} {c.purpose} {c.state} {c.absences} {c.reason}'
            for c in self.store.claims.list_claims(consumer=GUEST, limit=1000)
        ]
        return '\n'.join([sentence, *self.trace, *claims])

    def end(self) -> None:
        """Nothing more happens; within the stated time all is as Nova has it.

        A move that nobody ended is shown as such, and settled as a report source does
        that asks Nova's API.
        """
        self._quiet = True
        behind = max((abs(s) for of in self._clocks.values() for _, s in of), default=0.0)
        more = STATED_OF_CLOCKS + int(behind / SYNC_SECONDS) if self._clocks or self._slow else 0
        self.rounds(STATED_ROUNDS + more)
        expected = [] if self.where is None else [(self.where, 'confirmed')]
        live = sorted((claim.host, claim.state.value) for claim in self.live())
        if live != expected:
            self.clock.sleep(MOVE_SECONDS)
            late = self.store.nova.open_moves(MOVE_SECONDS, 10)
            assert [move.target.consumer for move in late] == [GUEST], self.told('a leak')
            self.store.nova.resolve_guest(GuestLocation(consumer=GUEST, host=self.where))
            live = sorted((claim.host, claim.state.value) for claim in self.live())
        assert live == expected, self.told(f'expected {expected}, found {live}')
        assert self.store.claims.audit() == CLEAN


def all_fates(count: int, among: Iterable[int | None]) -> Iterator[tuple[int | None, ...]]:
    """Every way that so many broadcasts can fare."""
    choices = list(among)
    if count == 0:
        yield ()
        return
    for rest in all_fates(count - 1, choices):
        for fate in choices:
            yield (*rest, fate)
