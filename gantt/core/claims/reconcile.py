# SPDX-License-Identifier: Apache-2.0
"""Folds of a host's report into its row and the claims on it: pure functions.

Stores call these under the lock of the host's row and write what they return.

The compute is authoritative on existence, the database on permission: only a report of the
host ends a confirmed claim, and no absence ends a claim that is only reserved.
Order rests on (epoch, sequence): an old epoch is *gone*, an
old sequence *stale*, and both leave everything as it is.
"""

from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec
from msgspec import UNSET

from gantt import exceptions
from gantt.core.claims import host_facts, inheritance
from gantt.core.claims.acceptance import is_over_committed
from gantt.core.claims.claim import (
    Claim,
    Event,
    State,
    claim_ids_of_consumer,
    guest_of,
    state_after,
    with_state,
)
from gantt.core.messages import base
from gantt.core.messages.layout import layout_with_amounts
from gantt.core.messages.report import (
    DICTIONARY_NONCE,
    ClaimUpdate,
    HostReport,
    Registered,
    Running,
)
from gantt.core.messages.request import Flavor, Lifecycle, name_of
from gantt.core.resources.amounts import add_amounts
from gantt.core.resources.host import HostChange, HostFacts, HostRow, UnreadableFacts
from gantt.core.topology.free import free_topology_of

APPLIED, STALE, GONE, NEEDS_FULL = 'applied', 'stale', 'gone', 'needs_full'
SEQUENCE_AHEAD = 'ahead'
#: Largest gap between the last sequence received of a host and its next one: an agent that was
#: silent for longer registers again.
SEQUENCE_GAP_MAX = 10_000
_replace = msgspec.structs.replace


#: Response to a host that registers, and the host as it became.
Registration = tuple[Registered, HostChange]
RegistrationOutcome = Registration | exceptions.GanttError


class ReportEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to write, and the outcome to return.

    :ivar outcome: applied | stale | gone | needs_full; all but the first change nothing
    :ivar row: the host's row as it becomes (usage, generation and version included)
    :ivar claims: claims that changed state or are new (adopted), as they become; their amounts
        on other providers (pools) the store adds and takes off there
    :ivar over: ids of reservations that end for good, as another guest runs under their id
    :ivar groups: server groups that gained a member by adoption: their generation grows
    :ivar changed_pipeline: the generation grew
    """

    outcome: str
    row: HostRow
    claims: list[Claim] = []
    confirmed: list[str] = []
    released: list[str] = []
    adopted: list[str] = []
    over: list[str] = []
    groups: list[str] = []
    changed: bool = False


def apply_report(
    row: HostRow,
    live: Sequence[Claim],
    known: Mapping[str, Claim],
    report: HostReport,
    now: float,
) -> ReportEffect:
    """Fold one report into its host.

    :param live: the live claims on this host
    :param known: claims that the report names and that are not among ``live``
        (final ones, or of another host), by id; those of ``unclaimed_guests`` with them
    :param now: the database's clock
    """
    outcome = report_outcome(row, report)
    if outcome != APPLIED:
        return ReportEffect(outcome=outcome, row=row)
    seen = _ReportedGuests(live, report)
    claims: list[Claim] = []
    ended = [claim for claim in live if claim.id in seen.ended_reservations]
    lost = {**known, **{place.id: place for place in ended}}
    others = [claim for claim in live if claim.id not in seen.ended_reservations]
    members = _members_before(lost.values()) if seen.unclaimed else {}
    for entry in seen.unclaimed:
        before = _claim_before(entry, lost, seen.ended_reservations)
        claims.append(_adopted_claim(row, entry, before, members, report, now, [*others, *claims]))
    adopted = [claim.id for claim in claims]
    confirmed: list[str] = []
    released: list[str] = []
    for claim in live:
        state = seen.state_of(claim)
        if state is claim.state:
            continue
        reason = '' if state is State.CONFIRMED else 'absent'
        if claim.id in seen.ended_reservations:
            reason = 'a guest runs in it'
        claims.append(with_state(claim, state, reason, now))
        (confirmed if state is State.CONFIRMED else released).append(claim.id)
    claims = _finished_claims(claims, seen.contained(live), report)
    used = usage_after(row.used, row.id, live, claims)
    contained = usage_after({}, row.id, (), seen.contained(live))
    folded = fold_facts(row, report, now, contained, used)
    changed = bool(claims) or folded.generation != row.generation
    if claims and folded.generation == row.generation:
        folded = _replace(folded, generation=row.generation + 1)
    return ReportEffect(
        outcome=APPLIED,
        row=folded,
        claims=claims,
        confirmed=confirmed,
        released=released,
        adopted=adopted,
        over=sorted(seen.ended_reservations),
        groups=sorted({c.group for c in claims if c.adopted and c.is_live and c.group}),
        changed=changed,
    )


def report_outcome(row: HostRow, report: HostReport) -> str:
    """Return whether a report may be applied to ``row``; see ``ReportEffect.outcome``.

    An epoch that is not the current one is gone, be it older or one that was
    never handed out.  A delta that rests on another full report than the last
    one applied here leaves no trace, so that this full report may still come.
    """
    if report.epoch != row.epoch:
        return GONE
    if report.sequence <= row.sequence:
        return STALE
    if is_too_far_ahead(row.sequence, row.boot_nonce, report.sequence):
        return SEQUENCE_AHEAD
    is_known = report.base == row.full_sequence and not isinstance(row.facts, UnreadableFacts)
    if not report.full and not is_known:
        return NEEDS_FULL
    return APPLIED


def is_too_far_ahead(last: int, boot_nonce: str, sequence: int) -> bool:
    """Return whether a sequence is further ahead in its epoch than an agent can have counted.

    A message of such a sequence would make all later messages of the agent stale.

    :param last: the last sequence received
    :param boot_nonce: of the registration; hosts without an agent are numbered by a clock
    """
    return sequence > last + SEQUENCE_GAP_MAX and boot_nonce != DICTIONARY_NONCE


def check_sequence(update: ClaimUpdate, last: int, boot_nonce: str) -> None:
    """Check that the sequence of a claim update is no leap.

    :raises StaleEpoch: it is; the host must register again
    """
    if is_too_far_ahead(last, boot_nonce, update.sequence):
        raise exceptions.StaleEpoch(
            f'host {update.name!r}: sequence {update.sequence} is too far beyond the last one '
            f'received ({last}); the host must register again',
            host=update.name,
            epoch=update.epoch,
            current=update.epoch,
        )


def fold_facts(
    row: HostRow,
    report: HostReport,
    now: float,
    contained: Mapping[str, int],
    used: Mapping[str, int],
) -> HostRow:
    """Return the row after an accepted report, without its changes of claims.

    The generation grows where usage or a fact changed.  Metrics are measured
    anew each time and no layout rests on them: they are kept, but are no fact
    in this sense.  ``facts`` stays the same object where nothing changed.

    A report that lists exactly the live claims of the host, all of them
    confirmed, needs no more than this, with ``contained = used = row.used``.

    :param contained: amounts of our claims that the host's own figure of use contains, by class
    :param used: use by live claims, as it becomes
    """
    facts = _merged_facts(
        row.facts, report, now, _STORED_FACTS if row.reports_inventories else _HOST_WRITTEN_FACTS
    )
    now_row = _replace(
        row,
        sequence=report.sequence,
        full_sequence=report.sequence if report.full else row.full_sequence,
        reported_at=now,
        version=row.version + 1,
        facts=facts,
        used={name: amount for name, amount in used.items() if amount},
        foreign=_foreign_use(row, report, contained),
        node=row.node if report.node is UNSET else report.node,
        cell=row.cell if report.cell is UNSET else report.cell,
        zone=row.zone if report.zone is UNSET else report.zone,
        aggregates=_aggregates(row, report),
        service_disabled=_reported_or_known(report, 'disabled', row.service_disabled, None),
    )
    over = is_over_committed(now_row)
    grown = _has_new_facts(row, now_row) or over is not row.over_committed
    return _replace(now_row, over_committed=over, generation=row.generation + int(grown))


def usage_after(
    used: Mapping[str, int], provider_id: int, before: Iterable[Claim], now: Iterable[Claim]
) -> dict[str, int]:
    """Return the use on one provider after claims changed, by class; zeros are left out.

    :param before: claims as they were, at least those that changed
    :param now: claims that changed or are new, as they became
    """
    total = dict(used)
    were_live = {claim.id for claim in before if claim.is_live}
    for claim in now:
        sign = int(claim.is_live) - int(claim.id in were_live)
        if sign:
            add_amounts(total, claim.allocations.get(provider_id, {}), sign)
    return {name: amount for name, amount in total.items() if amount}


# -- claims in a report ---------------------------------------------------------------
def unclaimed_guests(
    live: Iterable[Claim], known: Mapping[str, Claim], report: HostReport
) -> set[str]:
    """Return consumers of guests that run without a claim, as far as a report names any.

    An earlier claim of theirs has their member of a group, where the report names none.

    :param live: the live claims on the host
    :param known: other claims that the report names, by id
    """
    entries = report.running or ()
    here = {claim.id: guest_of(claim) for claim in live}
    ids, guests = here.keys() | known.keys(), set(here.values())
    return {
        entry.consumer
        for entry in entries
        if entry.claim_id not in ids and entry.consumer not in guests
    }


def _members_before(claims: Iterable[Claim]) -> dict[str, Claim]:
    """Return guest -> its newest ended claim, where that was of a member of a group."""
    newest = {
        guest_of(claim): claim
        for claim in sorted(
            claims, key=lambda claim: (claim.updated_at, claim.created_at, claim.id)
        )
        if not claim.is_live
    }
    return {guest: claim for guest, claim in newest.items() if claim.member_name is not None}


class _ReportedGuests:
    """Live claims that a report lists, and guests that it lists beside them.

    An entry with the id of a live claim is that claim; any other entry is the
    consumer's: its confirmed claims here, else the first reserved one.

    A reservation of a plan has the guest of the create that took it over, or none.  Another guest
    that runs under its id took it over before the database was put back to an earlier state: the
    reservation ends, whatever consumer has it by now, and its guest is a stranger.
    """

    def __init__(self, live: Sequence[Claim], report: HostReport) -> None:
        self.lists_running = report.running is not None
        self.running: set[str] = set()
        self.pending: set[str] = set()
        self.unclaimed: list[Running] = []
        self.ended_reservations: set[str] = set()
        ids = {claim.id for claim in live}
        of_places = guests_of_reservations(live)
        exact = {
            entry.claim_id
            for entry in (*(report.running or ()), *(report.pending or ()))
            if entry.claim_id in ids
        }
        by_consumer: dict[str, list[Claim]] | None = None
        for entries, listed in ((report.running, self.running), (report.pending, self.pending)):
            for entry in entries or ():
                stands_for = of_places.get(entry.claim_id or '', entry.consumer)
                if stands_for != entry.consumer and listed is self.running:
                    self.ended_reservations.add(entry.claim_id or '')
                    self.unclaimed.append(entry)
                    continue
                if entry.claim_id in ids:
                    listed.add(entry.claim_id)
                    continue
                if by_consumer is None:
                    by_consumer = _by_consumer(live, exact)
                consumer_claims = by_consumer.get(entry.consumer, ())
                listed.update(claim_ids_of_consumer(consumer_claims))
                if not consumer_claims and listed is self.running:
                    self.unclaimed.append(entry)
        # A consumer is one guest on a host, however many entries list it.
        listed_guests = {guest_of(claim) for claim in live if claim.id in self.running}
        strangers = {entry.consumer: entry for entry in self.unclaimed}
        self.unclaimed = [
            entry for consumer, entry in strangers.items() if consumer not in listed_guests
        ]

    def state_of(self, claim: Claim) -> State:
        """Return the state of a live claim after the report."""
        if claim.id in self.ended_reservations:
            return State.RELEASED
        if claim.id in self.running:
            return state_after(claim, Event.SEEN_RUNNING)
        if claim.id in self.pending or not self.lists_running:
            return claim.state
        return state_after(claim, Event.SEEN_ABSENT)

    def contained(self, live: Iterable[Claim]) -> list[Claim]:
        """Return the claims that the report's figure of use can already contain."""
        if not self.lists_running:
            return [claim for claim in live if claim.state is State.CONFIRMED]
        return [claim for claim in live if claim.id in self.running or claim.id in self.pending]


def guests_of_reservations(live: Iterable[Claim]) -> dict[str, str]:
    """Return ids of the claims of members of groups -> their guests, or placeholder consumers."""
    return {
        claim.id: guest_of(claim)
        for claim in live
        if claim.member_name is not None and not claim.problem
    }


def _claim_before(entry: Running, known: Mapping[str, Claim], over: Container[str]) -> Claim | None:
    """Return the claim that a guest without one had, as its host names it; None: not known.

    For a reservation that ends as another guest runs in it, the claim is that reservation, owned by
    the project of the plan.

    :param over: ids of such reservations
    """
    lost = known.get(entry.claim_id) if entry.claim_id else None
    if lost is None or (lost.id not in over and guest_of(lost) != entry.consumer):
        return None
    former = lost.former_reservation
    if former is None:
        return lost
    return _replace(
        lost, project_id=former.project_id, user_id=former.user_id, flavor=former.flavor
    )


def _by_consumer(live: Iterable[Claim], exact: set[str | None]) -> dict[str, list[Claim]]:
    claims: dict[str, list[Claim]] = {}
    for claim in live:
        if claim.id not in exact:
            claims.setdefault(guest_of(claim), []).append(claim)
    return claims


def _adopted_claim(
    row: HostRow,
    entry: Running,
    lost: Claim | None,
    members: Mapping[str, Claim],
    report: HostReport,
    now: float,
    others: Iterable[Claim],
) -> Claim:
    """Return a claim for a guest that runs without one.

    It takes the amounts of the claim that the host names; where none is known, those that the host
    reports.  A guest that was a member of a group is that member again.  The id depends on the
    report only: folded again it is the same.

    :param lost: see ``_claim_before``; ``members``: see ``_members_before``
    """
    before = lost or members.get(entry.consumer)
    allocations = {row.id: _positive_amounts(entry.resources)}
    if lost is not None:
        shares = inheritance.amounts_with_inherited(lost)
        on_host = shares.pop(lost.provider_id, {})
        allocations = {row.id: on_host, **(shares if lost.provider_id == row.id else {})}
    return Claim(
        id=base.derived_id('adopted', row.uuid, report.epoch, report.sequence, entry.consumer),
        request_id=None,
        consumer=entry.consumer,
        provider_id=row.id,
        host=row.name,
        state=State.CONFIRMED,
        lifecycle=Lifecycle.HOST,
        allocations={provider: amounts for provider, amounts in allocations.items() if amounts},
        group=before.group if before else None,
        project_id=before.project_id if before else None,
        user_id=before.user_id if before else None,
        consumer_type=before.consumer_type if before else 'INSTANCE',
        layout=_restored_layout(row, lost, others),
        member_name=before.member_name if before else None,
        flavor=name_of(Flavor(name=entry.flavor or '')) or (before.flavor if before else None),
        adopted=True,
        reason='runs without a live claim',
        created_at=now,
        updated_at=now,
    )


# -- effects of a report on layouts -----------------------------------------------------
def _finished_claims(
    claims: list[Claim], contained: Iterable[Claim], report: HostReport
) -> list[Claim]:
    """Return the changed claims, and those whose layouts the host's own figures contain now.

    For a reporter that cannot tell our guests apart, its reported cells and
    devices count: it may have pinned them otherwise than they were laid out.

    :param claims: claims that change for other reasons
    """
    if report.used is UNSET or (report.numa is UNSET and report.devices is UNSET):
        return claims
    changed = {claim.id: claim for claim in claims}
    for claim in contained:
        now = changed.get(claim.id, claim)
        if now.problem:
            continue
        if now.is_live and now.layout is not None and layout_with_amounts(now.layout) is not None:
            changed[claim.id] = _replace(now, layout={**now.layout, 'reported': True})
    return list(changed.values())


def _restored_layout(row: HostRow, lost: Claim | None, others: Iterable[Claim]) -> dict | None:
    """Return the layout of a lost claim, where no other claim has any of it since."""
    layout = (
        layout_with_amounts(lost.layout)
        if lost is not None and lost.provider_id == row.id
        else None
    )
    if lost is None or layout is None:
        return None
    room = free_topology_of(row.facts, [layout_with_amounts(claim.layout) for claim in others])
    return lost.layout if room.has_free(layout) else None


# -- facts of the host in a report ------------------------------------------------------
#: Facts that reports leave to requests to Placement's interface, for hosts that use it.
_API_WRITTEN_FACTS = ('inventories', 'traits')
#: Facts that a report states and a host stores, under one name.
_STORED_FACTS = tuple(field for field in HostReport.FACTS if field in HostFacts.__struct_fields__)
_HOST_WRITTEN_FACTS = tuple(field for field in _STORED_FACTS if field not in _API_WRITTEN_FACTS)
_NO_FACTS = HostFacts()


def _aggregates(row: HostRow, report: HostReport) -> list[str]:
    """Return the aggregates as they become; the same list object where unchanged."""
    if report.aggregates is UNSET or not row.reports_inventories:
        return row.aggregates
    reported = sorted(set(report.aggregates))
    return row.aggregates if reported == row.aggregates else reported


def _reported_or_known(report: HostReport, field: str, current: object, default: object) -> object:
    """Return a field as it becomes: a full report resets fields that it leaves out."""
    reported = getattr(report, field)
    if reported is not UNSET:
        return reported
    return default if report.full else current


def _merged_facts(
    current: HostFacts, report: HostReport, now: float, fields: Sequence[str]
) -> HostFacts:
    if isinstance(current, UnreadableFacts):
        current = current.readable
    changed = {}
    for field in fields:
        before = getattr(current, field)
        reported = _reported_or_known(report, field, before, getattr(_NO_FACTS, field))
        if reported != before and field == 'traits':
            assert isinstance(reported, list)
            reported = sorted(set(reported))  # a set of rows, wherever it is kept
        if reported != before:
            changed[field] = reported
    reported = _replace(current, **changed) if changed else current
    return host_facts.merged_facts(current, reported, report, now)


def _foreign_use(row: HostRow, report: HostReport, contained: Mapping[str, int]) -> dict[str, int]:
    if report.used is not UNSET:
        # A claim that the reporter may not know of yet is not taken off: the
        # figure errs on the full side until the next report.
        return _positive_amounts({n: used - contained.get(n, 0) for n, used in report.used.items()})
    foreign = _reported_or_known(report, 'foreign', row.foreign, {})
    assert isinstance(foreign, Mapping)
    return _positive_amounts(foreign)


def _positive_amounts(amounts: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _has_new_facts(before: HostRow, now: HostRow) -> bool:
    if before.facts is not now.facts:
        facts = before.facts
        same = _replace(now.facts, metrics=facts.metrics, agent=facts.agent)
        if same != before.facts:
            return True
    return (
        before.used != now.used
        or before.foreign != now.foreign
        or before.service_disabled != now.service_disabled
        or (before.node, before.cell, before.zone) != (now.node, now.cell, now.zone)
        or before.aggregates != now.aggregates
    )
