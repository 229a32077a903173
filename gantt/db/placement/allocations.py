# SPDX-License-Identifier: Apache-2.0
"""Allocations written by requests, as claims: one transaction for all that one request says.

Who writes allocations locks the consumers' rows of ``written_consumers`` ascending, then all
providers concerned ascending, whatever is on them; then it looks at the claims again.  Two writers
of one consumer meet at its row, also where it does not exist yet; schedulers and hosts, which know
nothing of that row, are met at the providers.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import sqlalchemy as sa
from msgspec import UNSET

from gantt import exceptions
from gantt.core.claims import allocations as rules
from gantt.core.claims.acceptance import (
    ProviderState,
    SharesRefusal,
    reshaped,
    why_not_written,
)
from gantt.core.claims.allocations import (
    AllocationWish,
    ClaimChanges,
    ConsumerState,
    WishCompiler,
)
from gantt.core.claims.claim import Claim, State, guest_of
from gantt.core.claims.inheritance import gained, of_pools
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostRow
from gantt.db.claims import held
from gantt.db.claims.claims import providers_of, write_inherited
from gantt.db.engine import arrays, retry, session
from gantt.db.engine.arrays import Update
from gantt.db.engine.combine import Combined
from gantt.db.engine.retry import Again
from gantt.db.hosts import claim_rows, providers, rows, sole
from gantt.db.hosts.base import HostTables, is_id
from gantt.db.placement import consumers as stored
from gantt.db.placement.places import KnownPlace, KnownPlaces
from gantt.db.placement.providers import check_classes
from gantt.db.schema import models

_c = models.claims
_a = models.allocations
_p = models.providers
_w = models.written_consumers

#: id of a provider -> class -> inventory
Inventories = Mapping[int, Mapping[str, Inventory]]
NOTHING_RESHAPED: Inventories = MappingProxyType({})
#: Claims as they were, and as they become.
Heirs = Sequence[tuple[Claim, Claim]]

_ids: Any = sa.bindparam('ids', expanding=True)
_uuids: Any = sa.bindparam('uuids', expanding=True)
#: What claims are known by: each change of one writes when it was.
MARKS_OF = sa.select(_c.c.id, _c.c.state, _c.c.updated_at).where(
    _c.c.consumer.in_(_uuids), claim_rows.is_live
)
STATE = Update(_w, {'b_uuid': 'uuid'}, ('generation', 'digest', 'stamp'))
FORGET = _w.delete().where(_w.c.uuid.in_(_uuids))
WRITTEN_BY = (
    sa.select(_w.c.uuid)
    .where(_w.c.uuid.in_(_uuids), _w.c.stamp.in_(sa.bindparam('stamps', expanding=True)))
    .limit(1)
)
_OWNER = ('project_id', 'user_id', 'consumer_type')
#: All that a write changes of a claim that stays.
CHANGED = (*_OWNER, 'consumer', 'guest', 'sole', 'updated_at', *claim_rows.AMOUNTS)
REWRITE = Update(_c, {'b_id': 'id', 'b_state': 'state'}, CHANGED)
#: Claims end as they were read, or not at all: of each change the time is another one.
END = arrays.by_key(
    _c.update()
    .where(_c.c.id.in_(_ids), _c.c.updated_at.in_(sa.bindparam('marks', expanding=True)))
    .values(
        state=State.RELEASED.value,
        live=0,
        expires_at=None,
        sole=None,
        reason=rules.WRITTEN,
        updated_at=sa.bindparam('now'),
    ),
    _c,
)
FORGET_SHARES = _a.delete().where(_a.c.claim_id.in_(_ids))


class AllocationWriter:
    """One transaction that writes allocations.

    :ivar locked: the providers, once they are
    :ivar end_below: consumers that are to have nothing, whose claims in zones below end
    """

    def __init__(self, tx: session.Tx, memory: rows.Memory, known: KnownPlaces) -> None:
        self.tx = tx
        self.memory = memory
        self._known = known
        self.locked = providers.LockedProviders({}, {}, {})
        self.end_below: set[str] = set()
        self._wishes: Sequence[AllocationWish] = ()
        self._states: dict[str, ConsumerState] = {}
        self._live: dict[str, list[Claim]] = {}
        self._places: dict[int, KnownPlace] = {}
        self._ids: dict[str, int] = {}
        self._touched: set[int] = set()

    # -- looked at, and locked -------------------------------------------------------------
    def begin(self, wishes: Sequence[AllocationWish], also: Iterable[str] = ()) -> None:
        """Lock consumers and providers, and look at what is there.

        :param also: uuids of further providers to lock
        """
        self._wishes = wishes
        consumers = sorted(wish.consumer for wish in wishes)
        self._lock_consumers(consumers)
        self._look(consumers)
        self._check_generations()
        self._must_not_be_below()
        self.end_below = held.end_below(self.tx, _to_have_nothing(wishes))
        named = {uuid for wish in wishes for uuid in wish.allocations} | set(also)
        self._find(named)
        wanted = self._concerned()
        if wanted:
            self.locked = providers.lock_placed(self.tx, self.memory, wanted)
        # What claims alone name and the look did not find is gone, by hand or by a backup put back
        # in part: there is nothing to lock, and nothing is given back there.
        roots = {place.root.id for place in self._places.values()}
        if not self._places.keys() | roots <= self.locked.counters.keys():
            self._known.forget(self._places.values())
            raise Again('a provider was deleted meanwhile')
        if not all(place.holds(self.locked) for place in self._places.values()):
            self._known.forget(self._places.values())
            self._find(named)
            if not self._concerned() <= wanted:
                raise Again('a tree was changed meanwhile')
        if self._matters_what_there_is() and self._have_changed(consumers):
            self._look(consumers)
            if not self._concerned() <= wanted:
                raise Again('a claim came to be meanwhile')
            self._check_generations()
        # What is only given back is not judged.
        providers.read_pools(self.tx, self.locked, self._ids.values())

    def _look(self, consumers: Sequence[str]) -> None:
        found = stored.read(self.tx, consumers)
        self._live = {consumer: of.claims for consumer, of in found.items()}
        # Their rows are locked, and a step up since.
        self._states = {
            consumer: of.written._replace(generation=of.written.generation - 1)
            for consumer, of in found.items()
            if of.written is not None
        }

    def _matters_what_there_is(self) -> bool:
        """Whether anything follows from claims but that they end.

        What ends does as it was read, and a claim that came to be meanwhile is one of after the
        write.  It is not where somebody may inherit, or where a generation was said.
        """
        claims = [claim for mine in self._live.values() for claim in mine]
        says = (wish.allocations or wish.generation is not UNSET for wish in self._wishes)
        return bool(claims) and (any(says) or any(map(of_pools, claims)))

    def _have_changed(self, consumers: Sequence[str]) -> bool:
        """Whether claims are others than before their providers were locked."""
        found = {tuple(row) for row in self.tx.all(MARKS_OF, uuids=list(consumers))}
        live = (claim for mine in self._live.values() for claim in mine)
        return found != {(claim.id, claim.state.value, claim.updated_at) for claim in live}

    def _lock_consumers(self, consumers: Sequence[str]) -> None:
        values = [
            {'uuid': one, 'generation': 0, 'digest': '', 'stamp': self.tx.stamp}
            for one in consumers
        ]
        self.tx.insert_or_step(_w, values, 'uuid', 'generation')

    def _must_not_be_below(self) -> None:
        """
        :raises ConsumerBelow: one that has nothing here, and is to have something, has it below
        :raises Busy: it is being placed, perhaps below
        """
        new = {wish.consumer for wish in self._wishes if wish.allocations}
        new -= {consumer for consumer, claims in self._live.items() if claims}
        for consumer, zone in held.zones_of(self.tx, new).items():
            raise exceptions.ConsumerBelow(consumer=consumer, zone=zone)
        for consumer in sorted(held.on_their_way(self.tx, new)):
            raise exceptions.Busy(
                reason=f'consumer {consumer} is being placed by a request that may go below',
                retry_after_ms=retry.RETRY_AFTER_MS,
            )

    def _check_generations(self) -> None:
        for wish in self._wishes:
            rules.check_generation(wish, self._visible(wish.consumer))

    def _visible(self, consumer: str) -> int | None:
        return rules.visible_generation(self._live[consumer], self._states.get(consumer))

    def _find(self, named: set[str]) -> None:
        """
        :raises NotFound: a provider that is named is not there
        """
        found = self._known.named(self.tx, sorted(filter(is_id, named)))
        self._ids = {place.uuid: pid for pid, place in found.items()}
        for uuid in sorted(named):
            if uuid not in self._ids:
                raise exceptions.NotFound(kind='provider', name=uuid)
        claims = [claim for mine in self._live.values() for claim in mine]
        self._places = found | self._known.of(self.tx, providers_of(claims) - found.keys())

    def _concerned(self) -> set[int]:
        """Providers that are named, those of claims that there are, and the roots of both."""
        claims = [claim for mine in self._live.values() for claim in mine]
        roots = {place.root.id for place in self._places.values()}
        return {*self._ids.values(), *roots, *providers_of(claims)}

    def must_be_apart(self, groups: Sequence[Iterable[str]]) -> None:
        """
        :param groups: consumers of several requests
        :raises NotTogether: one guest's claims are in two of them: what ends may be inherited
        """
        seen: set[str] = set()
        for consumers in groups:
            guests = {guest_of(claim) for one in consumers for claim in self._live[one]}
            guests.update(consumers)
            if not seen.isdisjoint(guests):
                raise NotTogether
            seen |= guests

    def id_of(self, uuid: str) -> int:
        """Of a provider that was named."""
        return self._ids[uuid]

    def host_of(self, uuid: str) -> HostRow | None:
        """The record of a provider that was named, where it is a host."""
        return self.locked.templates.get(self._ids[uuid])

    def has_any(self, consumer: str) -> bool:
        """Whether a consumer exists, here or below."""
        return bool(self._live[consumer]) or consumer in self.end_below

    # -- judged, and written -------------------------------------------------------------------
    def changes(self, wishes: Sequence[AllocationWish]) -> ClaimChanges:
        """What becomes of the claims of some of the consumers."""
        compiler = WishCompiler(
            self._live,
            {pid: place.root for pid, place in self._places.items()},
            self._ids,
            now=self.tx.now,
            stamp=self.tx.stamp,
        )
        return compiler.compile(wishes)

    def resolve_heirs(self, wishes: Sequence[AllocationWish], changes: ClaimChanges) -> Heirs:
        """Let what inherits follow from the changes, which are completed.

        :returns: claims of other consumers that take something over of what these give up
        """
        guests = sorted(rules.guests_concerned(changes))
        if not guests:
            return []
        theirs = claim_rows.load_claims(
            self.tx, where=[claim_rows.of_guests(guests), claim_rows.is_live]
        )
        theirs = [claim for claim in theirs if guest_of(claim) in guests]
        consumers = {wish.consumer for wish in wishes}
        return rules.resolve_heirs(changes, theirs, consumers, self.tx.now)

    def judge(
        self,
        wishes: Sequence[AllocationWish],
        changes: ClaimChanges,
        heirs: Heirs,
        union: Inventories = NOTHING_RESHAPED,
    ) -> None:
        """
        :param changes: what becomes of the claims of these
        :param heirs: claims of others that take something over, see :meth:`resolve_heirs`
        :param union: id of a provider that is reshaped -> what it has meanwhile, by class
        :raises AllocationRefused: a provider does not have it
        :raises NotFound: of kind ``resource class``
        """
        before, now = [], []
        for wish in wishes:
            before.append(rules.shares_of(self._live[wish.consumer]))
            now.append(rules.shares_of(changes.of(wish.consumer)))
        wanted = {pid for one in now for pid in one}
        states = {pid: self._state(pid, union.get(pid)) for pid in wanted}
        refusal = why_not_written(states, before, now, [gained(*pair) for pair in heirs])
        if refusal is not None:
            self._must_be_classes()
            raise self._refused(refusal)

    def _state(self, pid: int, union: Mapping[str, Inventory] | None) -> ProviderState:
        state = self.locked.state(pid)
        return state if union is None else reshaped(state, union)

    def _must_be_classes(self) -> None:
        shares = (amounts for wish in self._wishes for amounts in wish.allocations.values())
        check_classes(self.tx, {name for amounts in shares for name in amounts})

    def _refused(self, refusal: SharesRefusal) -> exceptions.AllocationRefused:
        return exceptions.AllocationRefused(
            provider=self._places[refusal.provider_id].uuid,
            classes=refusal.names,
            why=refusal.why,
            reason=refusal.reason,
        )

    def count(self, changes: ClaimChanges, heirs: Heirs) -> None:
        """Usage as it becomes, and what others take over."""
        taken: list[tuple[Claim, int]] = [(claim, -1) for claim in changes.gone]
        taken += [(claim, 1) for claim in changes.new]
        for before, now in changes.changed:
            taken += [(before, -1), (now, 1)]
        for claim, sign in taken:
            if claim.provider_id in self.locked.counters:
                self.locked.counters[claim.provider_id].claims_stamp = self.tx.stamp
                self._touched.add(claim.provider_id)
            for pid, amounts in claim.allocations.items():
                self._use(pid, amounts, sign)
        for before, now in heirs:
            for pid, amounts in gained(before, now).items():
                self._use(pid, amounts, 1)
                write_inherited(self.tx, now, pid)

    def _use(self, pid: int, amounts: Mapping[str, int], sign: int) -> None:
        """Nothing of a provider that is gone."""
        if pid in self.locked.counters:
            rows.add(self.locked.counters[pid], amounts, sign)
            self._touched.add(pid)

    def step_named(self, wishes: Sequence[AllocationWish]) -> None:
        """The generations of what is named, as Placement steps them: once for each provider.

        Where a consumer is to have nothing that is what it had.
        """
        stepped: set[int] = set()
        for wish in wishes:
            if wish.allocations:
                named = {self._ids[uuid] for uuid in wish.allocations}
            else:
                named = set(rules.shares_of(self._live[wish.consumer]))
            for pid in (named & self.locked.counters.keys()) - stepped:
                self.step(pid)
            stepped |= named

    def step(self, pid: int, by: int = 1) -> None:
        """One provider's generation."""
        self.locked.counters[pid].generation += by
        self._touched.add(pid)

    def write(self, changes: ClaimChanges, *, usage_only: bool) -> None:
        """Claims, consumers, providers, and the feed.

        :param usage_only: of providers nothing has changed but what claims change
        """
        tx = self.tx
        self._end(changes.gone)
        changed = sorted((_values(*pair) for pair in changes.changed), key=lambda of: of['b_id'])
        if changed and _unless_sole(tx, changed) != len(changed):
            raise Again('a claim was written meanwhile')
        if changed:
            tx.run(FORGET_SHARES, ids=[one['b_id'] for one in changed])
        made = sorted(changes.new, key=lambda claim: (claim.consumer, claim.id))
        tx.many(_c.insert(), [claim_rows.claim_values(claim) for claim in made])
        shares = [*made, *(now for _, now in changes.changed)]
        values = [one for claim in shares for one in claim_rows.allocation_values(claim)]
        tx.many(_a.insert(), values)
        self._write_consumers(changes)
        providers.save(tx, self.locked, self._touched, usage_only=usage_only)

    def _end(self, gone: Sequence[Claim]) -> None:
        if not gone:
            return
        marks = sorted({claim.updated_at for claim in gone})
        ids = sorted(claim.id for claim in gone)
        if self.tx.run(END, ids=ids, marks=marks, now=self.tx.now) != len(ids):
            raise Again('a claim was written meanwhile')

    def _write_consumers(self, changes: ClaimChanges) -> None:
        gone, stay = [], []
        for wish in sorted(self._wishes, key=lambda wish: wish.consumer):
            now = changes.of(wish.consumer)
            if not now:
                gone.append(wish.consumer)
                continue
            state = rules.next_state(self._visible(wish.consumer), now)
            stay.append({'b_uuid': wish.consumer, 'stamp': self.tx.stamp, **state._asdict()})
        if gone:
            self.tx.run(FORGET, uuids=gone)
        if stay:
            STATE.run(self.tx, stay)


def _values(before: Claim, now: Claim) -> dict[str, Any]:
    values = {name: claim_rows.CLAIM[name](now) for name in CHANGED}
    return {'b_id': before.id, 'b_state': before.state.value, **values}


def _unless_sole(tx: session.Tx, values: Sequence[dict[str, Any]]) -> int:
    """
    :raises Again: a claim of the consumer that gets one has come to be meanwhile
    """
    try:
        return REWRITE.run(tx, values)
    except Exception as e:
        if not sole.is_of_sole(retry.root_of(e)):
            raise
        raise Again('a claim for the same consumer came to be meanwhile') from e


def _to_have_nothing(wishes: Iterable[AllocationWish]) -> set[str]:
    """Consumers of whom everything is to end, wherever it is.

    Who says a generation has read what is here, and speaks of that.
    """
    return {one.consumer for one in wishes if not one.allocations and one.generation is UNSET}


class WriteRequest(NamedTuple):
    """All that one request says: of all of it, or nothing is written.

    :ivar must_exist: a consumer that does not exist is an error; generations are not stepped
    """

    wishes: Sequence[AllocationWish]
    must_exist: bool = False

    @property
    def consumers(self) -> frozenset[str]:
        return frozenset(wish.consumer for wish in self.wishes)


def _one_of(writer: AllocationWriter, request: WriteRequest) -> ClaimChanges:
    """What becomes of the claims of one request; usage and generations are counted."""
    if not request.must_exist:
        writer.step_named(request.wishes)
    for wish in request.wishes if request.must_exist else ():
        if not writer.has_any(wish.consumer):
            raise exceptions.NotFound(kind='consumer', name=wish.consumer)
    changes = writer.changes(request.wishes)
    heirs = writer.resolve_heirs(request.wishes, changes)
    writer.judge(request.wishes, changes, heirs)
    writer.count(changes, heirs)
    return changes


class NotTogether(Exception):
    """Requests of one transaction have to do with each other."""


class SqlAllocations(HostTables):
    """See ``scheduler.ports.allocations``; what is read is in ``placement.usages``."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.known_places = KnownPlaces()
        self._writers = Combined(lambda one: self._write([one]), self._write_together)

    def write_allocations(self, wishes: Sequence[AllocationWish]) -> None:
        self._do(WriteRequest(wishes))

    def delete_allocations(self, consumer: str) -> None:
        if not is_id(consumer):
            raise exceptions.NotFound(kind='consumer', name=consumer)
        wish = AllocationWish(consumer=consumer, allocations={}, project_id='', user_id='')
        self._do(WriteRequest([wish], must_exist=True))

    def _do(self, request: WriteRequest) -> None:
        self._writers.do(request, request.consumers)

    def _write_together(self, requests: Sequence[WriteRequest]) -> bool:
        """Whether all of them were done; else nothing was, and each is told alone what is wrong."""
        try:
            self._write(requests)
        except exceptions.DatabaseUnavailable:
            raise  # perhaps it was done
        except (exceptions.GanttError, NotTogether):
            return False
        return True

    def _write(self, requests: Sequence[WriteRequest]) -> None:
        """All of some requests, one after another, in one transaction."""
        wishes = [wish for request in requests for wish in request.wishes]
        stamps: list[int] = []

        def work(tx: session.Tx) -> bool:
            stamps.append(tx.stamp)
            writer = AllocationWriter(tx, self.memory, self.known_places)
            writer.begin(wishes)
            writer.must_be_apart([request.consumers for request in requests])
            together = ClaimChanges(same=[], changed=[], gone=[], new=[])
            for request in requests:
                together.extend(_one_of(writer, request))
            writer.write(together, usage_only=True)
            return True

        self.run(work, wishes, stamps)

    def run(self, work: Any, wishes: Sequence[AllocationWish], stamps: Sequence[int]) -> None:
        """One transaction, again where that helps.

        :param stamps: of those that were begun
        """

        def already_committed(tx: session.Tx) -> bool | None:
            consumers = [wish.consumer for wish in wishes]
            if tx.first(WRITTEN_BY, uuids=consumers, stamps=list(stamps)) is not None:
                return True
            if any(wish.allocations for wish in wishes):
                return None
            if held.zones_of(tx, _to_have_nothing(wishes)):
                return None  # to note once more that they are to end there changes nothing
            return None if any(of.claims for of in stored.read(tx, consumers).values()) else True

        try:
            self.database.write(work, already_committed, once_locked=True)
        except retry.RowsLocked as e:
            raise retry.busy() from e
