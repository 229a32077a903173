# SPDX-License-Identifier: Apache-2.0
"""Claims after they are made: confirmed, refused, released, expired, read.

Always the provider's row first, then the claim, only from the state that it
was read in, and only what came back is taken off the usage.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from gantt.core.claims import reconcile
from gantt.core.claims.claim import LIVE, Claim, Event, State, after, stepped, why_not_confirmed
from gantt.core.messages.layout import Layout
from gantt.core.messages.report import ClaimWords
from gantt.core.nova import host as nova_host
from gantt.db.claims.aside import Aside
from gantt.db.engine import session
from gantt.db.engine.retry import Again
from gantt.db.hosts import providers, rows
from gantt.db.schema import models
from gantt.scheduler.ports import ClaimFate, ClaimResult

_c = models.claims
_a = models.allocations
_p = models.providers

_ids: Any = sa.bindparam('ids', expanding=True)
ALLOCATIONS = sa.select(_a).where(_a.c.claim_id.in_(_ids))
LAYOUTS = sa.select(_c.c.provider_id, _c.c.id, _c.c.layout).where(
    _c.c.provider_id.in_(_ids), _c.c.live == 1, _c.c.layout.is_not(None)
)
NAMED = sa.select(_p.c.id).where(_p.c.name == sa.bindparam('name'))
OVERDUE = (
    sa.select(_c.c.id)
    .where(_c.c.expires_at < sa.bindparam('now'))
    .order_by(_c.c.expires_at, _c.c.id)
    .limit(sa.bindparam('most'))
)
WRITE = (
    _c.update()
    .where(_c.c.id == sa.bindparam('b_id'), _c.c.state == sa.bindparam('b_state'))
    .values(
        {
            name: sa.bindparam(name)
            for name in (
                'state',
                'live',
                'lifecycle',
                'consumer',
                'lease_until',
                'expires_at',
                'move_id',
                'adopted',
                'absences',
                'reason',
                'updated_at',
            )
        }
    )
)
WRITE_LAYOUT = (
    _c.update().where(_c.c.id == sa.bindparam('b_id')).values(layout=sa.bindparam('layout'))
)
REFUSED = (
    _p.update()
    .where(_p.c.name == sa.bindparam('b_name'))
    .values(refusals=_p.c.refusals + sa.bindparam('count', type_=sa.BigInteger))
)


# -- reading ------------------------------------------------------------------------
def load_claims(
    tx: session.Tx,
    *,
    ids: Sequence[str] | None = None,
    request_ids: Sequence[str] | None = None,
    provider_ids: Sequence[int] | None = None,
    live: bool = False,
    where: Sequence[Any] = (),
    limit: int | None = None,
) -> list[Claim]:
    """Claims with their allocations, ascending by id."""
    query = rows.CLAIMS.order_by(_c.c.id)
    for column, among in (
        (_c.c.id, ids),
        (_c.c.request_id, request_ids),
        (_c.c.provider_id, provider_ids),
    ):
        if among is not None:
            query = query.where(column.in_(list(among)))
    if live:
        query = query.where(_c.c.live == 1)
    query = query.where(*where)
    if limit is not None:
        query = query.limit(limit)
    found = tx.all(query)
    shares = allocations(tx, [row.id for row in found])
    return [rows.claim(row, shares.get(row.id, {})) for row in found]


def allocations(tx: session.Tx, ids: Sequence[str]) -> dict[str, dict[int, dict[str, int]]]:
    """Claim id -> provider id -> class -> amount."""
    found: dict[str, dict[int, dict[str, int]]] = {}
    for start in range(0, len(ids), 1000):
        for row in tx.all(ALLOCATIONS, ids=list(ids[start : start + 1000])):
            found.setdefault(row.claim_id, {})[row.provider_id] = rows.amounts(row)
    return found


def layouts_on(tx: session.Tx, hosts: Iterable[int]) -> dict[int, dict[str, Layout]]:
    """Host -> claim -> what it takes inside, of the live claims; every host is in it."""
    found: dict[int, dict[str, Layout]] = {pid: {} for pid in sorted(hosts)}
    for row in tx.all(LAYOUTS, ids=list(found)) if found else ():
        layout = rows.layout(row.layout)
        if layout is not None:
            found[row.provider_id][row.id] = layout
    return found


# -- changing -----------------------------------------------------------------------
class Changes:
    """Claims that change under the lock of their providers."""

    def __init__(self, tx: session.Tx, memory: rows.Memory) -> None:
        self.tx = tx
        self.memory = memory
        self.locked = providers.Locked({}, {})
        self.touched: set[int] = set()
        #: Providers whose usage changed: their generation grows, once for all of it.
        self.grown: set[int] = set()
        self._writes: list[dict[str, Any]] = []
        self._layouts: list[dict[str, Any]] = []

    def lock(self, provider_ids: Iterable[int]) -> None:
        """Lock the providers; before any claim is read that is to be changed."""
        self.locked = providers.lock(self.tx, self.memory, set(provider_ids))

    def change(self, before: Claim, now: Claim) -> None:
        """A claim as it becomes; usage follows where it ends."""
        self._writes.append(
            {
                'b_id': before.id,
                'b_state': before.state.value,
                'state': now.state.value,
                'live': int(now.is_live),
                'lifecycle': now.lifecycle.value,
                'consumer': now.consumer,
                'lease_until': now.lease_until,
                'expires_at': rows.expires_at(now),
                'move_id': now.move_id,
                'adopted': int(now.adopted),
                'absences': now.absences,
                'reason': now.reason,
                'updated_at': now.updated_at,
            }
        )
        if now.layout != before.layout:
            layout = None if now.layout is None else rows.text(now.layout)
            self._layouts.append({'b_id': before.id, 'layout': layout})
        self.touch(before.provider_id)
        if before.is_live and not now.is_live:
            self.count(before, -1)

    def count(self, claim: Claim, sign: int) -> None:
        """Add or take off what a claim uses, on every provider that it is on."""
        for pid, amounts in claim.allocations.items():
            row = self.locked.counters.get(pid)
            if row is not None:
                rows.add(row, amounts, sign)
                self.grown.add(pid)
                self.touch(pid)

    def touch(self, provider_id: int) -> None:
        """The claims on a provider change."""
        row = self.locked.counters.get(provider_id)
        if row is not None:
            row.claims_stamp = self.tx.stamp
            self.touched.add(provider_id)

    def write(self) -> None:
        """Write the claims, then the providers.

        :raises Again: a claim is not in the state any more that it was read in
        """
        self._writes.sort(key=lambda values: values['b_id'])
        if self._writes and self.tx.many(WRITE, self._writes) != len(self._writes):
            raise Again('a claim was written meanwhile')
        if self._layouts:
            self.tx.many(WRITE_LAYOUT, sorted(self._layouts, key=lambda values: values['b_id']))
        for pid in self.grown:
            self.locked.counters[pid].generation += 1
        providers.save(self.tx, self.locked, self.touched)

    def result(self, fates: list[ClaimFate]) -> ClaimResult:
        """What became of the claims, with the touched hosts as they become."""
        hosts = providers.changes_of(self.tx, self.memory, self.locked, self.touched)
        return ClaimResult(fates=fates, hosts=hosts)

    def end(self, claims: Iterable[Claim], event: Event, reason: str) -> list[ClaimFate]:
        """Let ``event`` happen to claims under lock; their fates."""
        fates = []
        for claim in claims:
            state = after(claim.state, event, claim.lifecycle)
            if state is not claim.state:
                self.change(claim, stepped(claim, state, reason, self.tx.now))
            fates.append(ClaimFate(claim_id=claim.id, fate=_fate(claim, state), state=state.value))
        return fates


def _fate(claim: Claim, state: State) -> str:
    if claim.state not in LIVE:
        return 'gone'
    return 'ok' if state is not claim.state else 'kept'


def providers_of(claims: Iterable[Claim]) -> set[int]:
    """Every provider that these claims are on."""
    found = set()
    for claim in claims:
        found.add(claim.provider_id)
        found.update(claim.allocations)
    return found


def end_claims(changes: Changes, claims: Sequence[Claim], event: Event, reason: str) -> ClaimResult:
    """Lock, read again, let ``event`` happen, write: for claims of any host.

    :param claims: as read before the lock
    """
    changes.lock(providers_of(claims))
    again = load_claims(changes.tx, ids=[claim.id for claim in claims]) if claims else []
    if providers_of(again) - providers_of(claims):
        raise Again('a claim went to another provider meanwhile')
    fates = changes.end(again, event, reason)
    changes.write()
    return changes.result(fates)


# -- what a host says -------------------------------------------------------------------
def confirm(changes: Changes, words: ClaimWords) -> ClaimResult:
    """Reserved -> confirmed; late is fine, the claim's state decides.

    Nothing is given back, so that the host's row is all there is to lock.
    """
    tx = changes.tx
    changes.locked = providers.lock_named(tx, changes.memory, words.name)
    row = _speaker(changes, words)
    if row is None:
        return _all_gone(words)
    stamp = row.claims_stamp
    found = tx.all(rows.CLAIMS.where(_c.c.id.in_(words.claim_ids), _c.c.provider_id == row.id))
    known = {one.id: rows.claim(one, {}) for one in found}
    fates = {}
    for claim_id in dict.fromkeys(words.claim_ids):
        claim = known.get(claim_id)
        if claim is None:
            fates[claim_id] = ClaimFate(claim_id=claim_id, fate='gone')
            continue
        state = after(claim.state, Event.CONFIRM, claim.lifecycle)
        if state is not claim.state:
            changes.change(claim, stepped(claim, state, '', tx.now))
        fate = 'ok' if state is State.CONFIRMED else 'gone'
        why = '' if fate == 'ok' else why_not_confirmed(claim)
        fates[claim_id] = ClaimFate(claim_id=claim_id, fate=fate, state=state.value, reason=why)
    _advance(changes, row, words, fates.values())
    changes.write()
    providers.keep_members(changes.memory, row.id, stamp, row.claims_stamp)
    return changes.result([fates[claim_id] for claim_id in words.claim_ids])


def refuse(changes: Changes, words: ClaimWords) -> ClaimResult:
    """Reserved -> refused, counted against the host."""
    result = _end(changes, words, Event.REFUSE)
    refused = {fate.claim_id for fate in result.fates if fate.fate == 'ok'}
    if refused:
        changes.tx.run(REFUSED, b_name=words.name, count=len(refused))
    return result


def release(changes: Changes, words: ClaimWords) -> ClaimResult:
    """Live -> released, in the order of (epoch, sequence)."""
    return _end(changes, words, Event.RELEASE)


def _end(changes: Changes, words: ClaimWords, event: Event) -> ClaimResult:
    tx = changes.tx
    host = tx.first(NAMED, name=words.name)
    nested = _nested(tx, words.claim_ids) if host else set()
    changes.lock({host.id} | nested if host else ())
    row = _speaker(changes, words) if host else None
    if row is None:
        return _all_gone(words)
    known = {claim.id: claim for claim in load_claims(tx, ids=words.claim_ids)}
    mine = {claim_id: claim for claim_id, claim in known.items() if claim.provider_id == row.id}
    if providers_of(mine.values()) - nested - {row.id}:
        raise Again('a claim came to be meanwhile')
    stale = event is Event.RELEASE and words.sequence <= row.sequence
    fates = {}
    for claim_id in dict.fromkeys(words.claim_ids):
        claim = mine.get(claim_id)
        if claim is None:
            fates[claim_id] = ClaimFate(claim_id=claim_id, fate='gone')
        elif stale:
            fate = 'kept' if claim.is_live else 'gone'
            fates[claim_id] = ClaimFate(claim_id=claim_id, fate=fate, state=claim.state.value)
        else:
            fates[claim_id] = changes.end([claim], event, words.reason)[0]
    _advance(changes, row, words, fates.values())
    changes.write()
    return changes.result([fates[claim_id] for claim_id in words.claim_ids])


def _speaker(changes: Changes, words: ClaimWords) -> rows.Counters | None:
    """The locked row of the host that speaks, None where it is not of the current epoch.

    :raises StaleEpoch: its number is too far beyond the last one
    """
    for pid, row in changes.locked.counters.items():
        template = changes.locked.templates[pid]
        if template.name == words.name:
            if row.epoch != words.epoch:
                return None
            reconcile.check_number(words, row.sequence, template.boot_nonce)
            return row
    return None


def _all_gone(words: ClaimWords) -> ClaimResult:
    fates = [ClaimFate(claim_id=claim_id, fate='gone') for claim_id in words.claim_ids]
    return ClaimResult(fates=fates)


def _advance(
    changes: Changes, row: rows.Counters, words: ClaimWords, fates: Iterable[ClaimFate]
) -> None:
    """An accepted word counts as the last that was heard, unless it is late.

    One about claims none of which the host ever had does not: who knows no claim of the host
    must not be able to use up its numbers.
    """
    if words.sequence > row.sequence and any(fate.state for fate in fates):
        row.sequence = words.sequence
        changes.touched.add(row.id)


def _nested(tx: session.Tx, claim_ids: Sequence[str]) -> set[int]:
    """Providers beside the host that these claims are on, read before the lock."""
    query = sa.select(_a.c.provider_id).where(_a.c.claim_id.in_(list(claim_ids))).distinct()
    return {row.provider_id for row in tx.all(query)}


# -- by time, and by operators --------------------------------------------------------------
def overdue(tx: session.Tx, limit: int, but: Collection[str] = ()) -> list[str]:
    """Ids of reserved claims past their lease, longest first, without some."""
    found = tx.all(OVERDUE, now=tx.now, most=limit + len(but))
    return [row.id for row in found if row.id not in but][:limit]


def sweep(changes: Changes, ids: Sequence[str], aside: Aside) -> ClaimResult:
    """Expire those of these claims that are reserved and past their lease.

    Those on hosts that others keep locked are left to another sweep.
    """
    tx = changes.tx
    claims = load_claims(tx, ids=ids) if ids else []
    changes.lock(aside.without(providers_of(claims)))
    if aside.left:
        ids = [one.id for one in claims if providers_of([one]).isdisjoint(aside.left)]
    again = load_claims(tx, ids=ids) if ids else []
    # Confirmed, extended or ended since: no business of the sweeper any more.
    due = [c for c in again if (until := rows.expires_at(c)) is not None and until < tx.now]
    due.sort(key=lambda claim: (claim.lease_until, claim.id))
    kept = nova_host.kept_by_moves(due, _of_nova(changes, due), tx.now)
    for claim in due:
        if claim.id in kept:
            changes.change(claim, kept[claim.id])
    fates = changes.end([c for c in due if c.id not in kept], Event.EXPIRE, 'lease ran out')
    changes.write()
    return changes.result(fates)


def _of_nova(changes: Changes, due: Sequence[Claim]) -> list[Claim]:
    """The live claims of consumers of these claims, as far as those are on hosts of Nova."""
    templates = changes.locked.templates
    consumers = {
        claim.consumer
        for claim in due
        if claim.provider_id in templates and templates[claim.provider_id].speaks_for == 'nova'
    }
    where = [_c.c.consumer.in_(sorted(consumers)), _c.c.live != 0]
    return load_claims(changes.tx, where=where) if consumers else []


def force(changes: Changes, claim_id: str, reason: str) -> ClaimResult:
    """An operator's release."""
    claims = load_claims(changes.tx, ids=[claim_id])
    if not claims:
        return ClaimResult(fates=[ClaimFate(claim_id=claim_id, fate='gone')])
    return end_claims(changes, claims, Event.FORCE, reason)
