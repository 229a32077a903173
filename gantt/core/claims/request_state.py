# SPDX-License-Identifier: Apache-2.0
"""State machine of a request: its events, and the effects that its scheduler carries out.

The transition table is data; the loops of ``scheduler.request`` feed events and carry out effects,
and the documentation is generated from the table.  All requests live by it: those for hosts of this
zone, those that child zones place, and groups.  Whether a request may go on at all is judged by its
row, which all schedulers share: see ``check_request_row``, the one judge of every store.
"""

import enum
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from gantt.core.claims.commit import CommitStatus, RequestDraft, RequestOutcome

#: Seconds to wait after the second lost race, and at most; in between they double.
BACK_OFF_SECONDS_FIRST, BACK_OFF_SECONDS_MAX = 0.005, 0.1
#: Largest number of hosts that a conflict names.
_NAMED_HOSTS_MAX = 5


class RequestState(enum.StrEnum):
    """States of a request, as its scheduler knows them; the last one is final."""

    WAITING = 'waiting'  # this scheduler has no claim of it
    TAKING_OVER = 'taking over'  # the next commit replaces an attempt that its owner has left
    OPENED = 'opened'  # its row is open and ours, some members may be claimed
    ANSWERED = 'answered'  # all waiting callers have a response


class RequestEvent(enum.StrEnum):
    """Events of a request; the first are the outcomes of its commit."""

    PLACED = 'placed'  # all its claims are created, and its answer is stored
    PARTIAL = 'partial'  # some claims are created, other members are left
    OPENED = 'opened'  # its row is open and ours, before anything is claimed
    DROPPED = 'dropped'  # nothing was claimed: another request was faster
    GROUP_CHANGED = 'group_changed'  # its group is not as it was planned with
    REJECTED = 'rejected'  # a consumer runs already, or is of another project
    REPEAT = 'repeat'  # it was answered before, and the answer is stored
    OPEN = 'open'  # another scheduler has it
    BUSY = 'busy'  # another scheduler has it, and its caller is to come again
    OVERDUE = 'overdue'  # its row was left open past its deadline, or by ourselves
    CANCELLED = 'cancelled'  # it was cancelled
    REUSED = 'reused'  # its id was used with another body
    LOST = 'lost'  # its row is no longer ours
    LOCKED = 'locked'  # another process keeps rows locked that it needs
    OFFER_GONE = 'offer_gone'  # a zone has not honoured its offer, or has not answered
    NO_ROOM = 'no_room'  # no host was found, or no place of a plan, or too little is known of them
    OVER_QUOTA = 'over_quota'  # its project is at a limit
    REFUSED = 'refused'  # it names what does not exist
    FAILED = 'failed'  # a plug-in or the database failed on it
    OUT_OF_TIME = 'out_of_time'  # its budget is spent
    OUT_OF_TRIES = 'out_of_tries'  # it has lost as many races as it may
    DECIDED = 'decided'  # it claims nothing: a dry run, or a rebuild where the guest is
    SUSPECT = 'suspect'  # the host table is of another database than there is now
    BATCH_FAILED = 'batch_failed'  # the batch that it was in failed, for an unknown reason
    UNCERTAIN = 'uncertain'  # its outcome cannot be read: its deadline ends it


class Effect(enum.StrEnum):
    """Actions of the scheduler on an event, in the order in which they are listed."""

    RELEASE = 'release what it has claimed'
    RECORD = 'record the decision'
    ANSWER = 'answer'
    PLAN_AGAIN = 'plan again'
    BACK_OFF = 'plan again after a pause that doubles'
    WAIT = 'plan again in a moment'


Step = tuple[RequestState, tuple[Effect, ...]]
_OPEN_STATES = (RequestState.WAITING, RequestState.TAKING_OVER, RequestState.OPENED)


def _stay_step(*effects: Effect, claimed: tuple[Effect, ...] | None = None) -> tuple[Step, ...]:
    """Return, for each open state, the same step, which leaves the state as it is.

    :param claimed: effects instead, where its row is open and ours
    """
    return tuple(
        (state, effects if claimed is None or state is not RequestState.OPENED else claimed)
        for state in _OPEN_STATES
    )


def _final_step(*effects: Effect, releases: bool = False) -> tuple[Step, ...]:
    """Return the final step for each open state.

    :param releases: claims that it has by then are released
    """
    ends = (RequestState.ANSWERED, (*effects, Effect.ANSWER))
    last = (RequestState.ANSWERED, (Effect.RELEASE, *effects, Effect.ANSWER)) if releases else ends
    return ends, ends, last


#: Event -> its steps when waiting, when taking over, and when opened.
_STEPS_BY_EVENT: dict[RequestEvent, tuple[Step, ...]] = {
    RequestEvent.PLACED: _final_step(),
    RequestEvent.PARTIAL: 3 * ((RequestState.OPENED, (Effect.PLAN_AGAIN,)),),
    RequestEvent.OPENED: 3 * ((RequestState.OPENED, (Effect.PLAN_AGAIN,)),),
    # A request with claims does not pause: others would wait for them in vain.
    RequestEvent.DROPPED: _stay_step(Effect.BACK_OFF, claimed=(Effect.PLAN_AGAIN,)),
    RequestEvent.GROUP_CHANGED: _stay_step(Effect.BACK_OFF, claimed=(Effect.PLAN_AGAIN,)),
    RequestEvent.REJECTED: _final_step(releases=True),
    RequestEvent.REPEAT: _final_step(),
    RequestEvent.OPEN: (*_stay_step(Effect.WAIT)[:2], (RequestState.WAITING, (Effect.WAIT,))),
    RequestEvent.BUSY: _final_step(),
    RequestEvent.OVERDUE: 3 * ((RequestState.TAKING_OVER, (Effect.PLAN_AGAIN,)),),
    RequestEvent.CANCELLED: _final_step(),
    RequestEvent.REUSED: _final_step(),
    RequestEvent.LOST: (*_stay_step(Effect.WAIT)[:2], (RequestState.WAITING, (Effect.WAIT,))),
    RequestEvent.LOCKED: _stay_step(Effect.WAIT),
    RequestEvent.OFFER_GONE: _stay_step(Effect.PLAN_AGAIN),
    RequestEvent.NO_ROOM: _final_step(Effect.RECORD, releases=True),
    RequestEvent.OVER_QUOTA: _final_step(Effect.RECORD, releases=True),
    RequestEvent.REFUSED: _final_step(releases=True),
    RequestEvent.FAILED: _final_step(releases=True),
    RequestEvent.OUT_OF_TIME: _final_step(releases=True),
    RequestEvent.OUT_OF_TRIES: _final_step(releases=True),
    RequestEvent.DECIDED: _final_step(Effect.RECORD),
    RequestEvent.SUSPECT: _stay_step(Effect.WAIT),
    RequestEvent.BATCH_FAILED: _stay_step(Effect.PLAN_AGAIN),
    RequestEvent.UNCERTAIN: _final_step(),
}
#: (state, event) -> the state after it, and the effects.  An answered request has no more events.
TRANSITIONS: dict[tuple[RequestState, RequestEvent], Step] = {
    (state, event): step
    for event, steps in _STEPS_BY_EVENT.items()
    for state, step in zip(
        (*_OPEN_STATES, RequestState.ANSWERED), (*steps, (RequestState.ANSWERED, ())), strict=True
    )
}
_RACE_EVENTS = frozenset({RequestEvent.PARTIAL, RequestEvent.DROPPED, RequestEvent.GROUP_CHANGED})


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of a request; every change of it is a ``transition``.

    :ivar number: number of the attempt in the request's row: claim ids derive from it
    :ivar takes_over: number of the attempt that is replaced; only while taking over
    :ivar todo: members not claimed yet
    :ivar done: claimed member -> its part of the answer
    :ivar conflicts: the races that it has lost, a line each: that many, and no more, are counted
    :ivar locked: why it waits, where that is for rows that others keep locked
    :ivar is_isolated: a batch with it failed: it is planned by itself
    """

    number: int
    state: RequestState = RequestState.WAITING
    takes_over: int | None = None
    todo: Sequence[int]
    done: Mapping[int, Any] = {}
    conflicts: tuple[str, ...] = ()
    locked: str = ''
    is_isolated: bool = False

    @property
    def tries(self) -> int:
        """Number of the next try: one more than races were lost."""
        return len(self.conflicts) + 1

    @property
    def continues(self) -> bool:
        """True where its row is open and ours from an earlier commit."""
        return self.state is RequestState.OPENED

    @property
    def may_hold_claims(self) -> bool:
        """True where it has claims, or may have some."""
        return self.state is not RequestState.WAITING or self.is_isolated


def transition(
    attempt: Attempt,
    event: RequestEvent,
    *,
    made: Mapping[int, Any] | None = None,
    conflict: str = '',
    number: int = 0,
    reason: str = '',
) -> tuple[Attempt, tuple[Effect, ...]]:
    """Return a request after an event, and the effects to carry out.

    :param made: the members that the commit has claimed, as ``Attempt.done``
    :param conflict: the race that it lost, see ``conflict_line``; '': it lost none
    :param number: of the attempt that is overdue, or of the one that its row was opened for
    :param reason: why it is locked
    """
    before, (state, effects) = attempt.state, TRANSITIONS[attempt.state, event]
    if state is RequestState.ANSWERED:
        return msgspec.structs.replace(attempt, state=state), effects
    changes: dict[str, Any] = {
        'state': state,
        'locked': reason if event is RequestEvent.LOCKED else '',
    }
    if event in _RACE_EVENTS:
        # A large request goes in several commits: where all of this one were claimed, none lost.
        if conflict:
            changes['conflicts'] = (*attempt.conflicts, conflict)
        if made:
            changes['done'] = {**attempt.done, **made}
            changes['todo'] = [member for member in attempt.todo if member not in made]
    elif event is RequestEvent.OPENED:
        changes['number'] = number
    elif event is RequestEvent.OVERDUE:
        changes |= {'takes_over': number, 'number': number + 1}
    elif event is RequestEvent.BATCH_FAILED:
        changes['is_isolated'] = True
    if state is RequestState.OPENED:
        changes['takes_over'] = None
    elif before is RequestState.OPENED:
        changes |= {'done': {}, 'todo': range(len(attempt.done) + len(attempt.todo))}
    return msgspec.structs.replace(attempt, **changes), effects


def conflict_line(event: str, lost: Iterable[str], reason: str) -> str:
    """Return a race that was lost, in words.

    :param event: outcome of the commit
    :param lost: names of the hosts of the members that lost it
    :param reason: why the first of them did; '': not known
    """
    parts = '; '.join(filter(None, [', '.join(sorted(set(lost))[:_NAMED_HOSTS_MAX]), reason]))
    return f'{event}: {parts}' if parts else event


def back_off(request_id: str, attempt: Attempt) -> float:
    """Return the seconds until a request that lost races is to be planned again; 0 after the first.

    Between half and all of a bound that doubles with each, by the seed of its next try: requests
    that lost together do not come back together.
    """
    lost = len(attempt.conflicts)
    if lost < 2:
        return 0.0
    longest = min(BACK_OFF_SECONDS_FIRST * 2 ** (lost - 2), BACK_OFF_SECONDS_MAX)
    return longest * (0.5 + seed_of_try(request_id, attempt.tries) / 2**33)


def seed_of_try(request_id: str, tries: int) -> int:
    """Return the tie-break seed of a try: equal for a replay, different for every other try."""
    body = f'{request_id} {tries}'.encode()
    return int.from_bytes(hashlib.blake2b(body, digest_size=4).digest(), 'big')


class StoredRequestRow(Protocol):
    """Row of a request, of any store."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def owner(self) -> str: ...

    @property
    def attempt(self) -> int: ...

    @property
    def deadline(self) -> float: ...

    @property
    def answer(self) -> bytes | None: ...


def check_request_row(
    row: StoredRequestRow | None, draft: RequestDraft, now: float
) -> RequestOutcome | None:
    """Return why a request may not go on whose row the commit did not insert; None: it may.

    :param row: as read under its lock; None: it was deleted
    :param now: of the clock that deadlines are of
    """
    if row is None:
        return RequestOutcome(id=draft.id, outcome=CommitStatus.LOST, attempt=draft.attempt)
    wait = row.deadline - now
    is_ours = row.owner == draft.owner
    if row.state == 'cancelled':
        status = CommitStatus.CANCELLED  # it may have come before the request did
    elif row.fingerprint != draft.fingerprint:
        status = CommitStatus.REUSED
    elif row.state == 'placed':
        answer = bytes(row.answer or b'')
        return RequestOutcome(
            id=draft.id, outcome=CommitStatus.REPEAT, attempt=row.attempt, answer=answer
        )
    elif draft.continues:
        if is_ours and row.attempt == draft.attempt:
            return None
        status = CommitStatus.LOST
    elif draft.takes_over is not None and is_ours and row.attempt == draft.takes_over + 1:
        return None  # taken over by an earlier batch that placed nothing
    # One of ours that we do not continue is of a commit that was taken for lost: no scheduler
    # works on it, and none knows its claims.
    elif wait > 0 and not is_ours:
        return RequestOutcome(
            id=draft.id, outcome=CommitStatus.OPEN, attempt=row.attempt, wait_seconds=wait
        )
    elif takes_over(row, draft):
        return None
    else:
        status = CommitStatus.OVERDUE
    return RequestOutcome(id=draft.id, outcome=status, attempt=row.attempt)


def takes_over(row: StoredRequestRow | None, draft: RequestDraft) -> bool:
    """Return whether a request that may go on replaces an attempt; its claims are then released."""
    return row is not None and not draft.continues and row.attempt == draft.takes_over
