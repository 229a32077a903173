# SPDX-License-Identifier: Apache-2.0
"""Session of a host with the scheduler: its epoch, the order of its messages, updates of claims.

Every message of a host carries (epoch, sequence).  The epoch is handed out when
it registers, the sequence is counted here.  Of two agents with one name the
later registration wins: the older one is *fenced*, builds and reports no more,
and registers again only when it is restarted.  Where the scheduler does not know
the epoch, or has an older one than ours (a database restored from a backup), the
host registers again.

Registrations are counted in the journal, over all starts of the agent: a late
one that a dead agent had sent must not fence us.
"""

import logging
import threading
import uuid
from collections.abc import Callable

import msgspec

from gantt import exceptions
from gantt.compute.agent.journal import Journal, Stamp
from gantt.compute.ports import SchedulerPort
from gantt.core.messages.report import ClaimUpdate, Registered, RegisterHost

LOG = logging.getLogger(__name__)

#: Longest reason that is sent.
REASON_CHARACTERS_MAX = 1000
#: Errors where the scheduler does not know the epoch, the host or its key.
REJECTION_ERRORS = (exceptions.StaleEpoch, exceptions.NotFound, exceptions.NotProven)


class Fenced(exceptions.Unavailable):
    """An error of an agent replaced by a later registration of its name; it must stop."""

    code = 'gantt.fenced'
    template = (
        'host {host!r}: another agent registered under this name (epoch {current}, ours is '
        '{epoch}); this one builds and reports no more. Stop one of them, then restart the other'
    )


class JournalBehind(Fenced):
    """An error of an agent whose journal is behind the scheduler's count of registrations."""

    code = 'gantt.journal_behind'
    template = (
        'host {host!r}: registration {count} of its journal comes after number {current}: the '
        'journal was put back to an older state, or copied; this agent builds and reports no '
        'more. Make sure that no other one has this journal, stop this one, move the file that '
        '[compute] journal names out of the way, and start it again. Without [compute] '
        'guest_list_command stop the guests here first: nothing else knows of them'
    )


class NotRegistered(exceptions.Unavailable):
    """An error of a host that is not registered now; it will be tried again."""

    code = 'gantt.not_registered'
    template = 'host {host!r} is not registered with the scheduler yet'


class Session:
    """Epoch and sequence of one host, and its updates of claims.

    :param announcement: the registration; its nonce is replaced
    :param journal: None: nothing outlives this process, and the last registration counts
    """

    def __init__(
        self, announcement: RegisterHost, port: SchedulerPort, journal: Journal | None = None
    ) -> None:
        self.name = announcement.name
        self._announcement = announcement
        self.port = port
        self._boot_nonce = uuid.uuid4().hex
        self._journal = journal
        self._registrations = 0
        self._unanswered: RegisterHost | None = None  # registration without an answer yet
        self._lock = threading.Lock()
        self._epoch = 0
        self._sequence = 0
        self._last_epoch = 0 if journal is None else journal.last_epoch
        self.fence: Fenced | None = None  # why nothing may be sent any more
        self.report_seconds = 60.0
        self.incarnation = 0

    @property
    def epoch(self) -> int:
        """Current epoch; 0 where the host is not registered now."""
        return self._epoch

    @property
    def is_registered(self) -> bool:
        return self._epoch > 0 and self.fence is None

    @property
    def is_fenced(self) -> bool:
        """True where another agent reports for this host; only a restart of this one helps."""
        return self.fence is not None

    def raise_if_fenced(self) -> None:
        """Raise if fenced.

        :raises Fenced: nothing may be sent or built any more; names the remedy
        """
        if self.fence is not None:
            raise type(self.fence)(None, **self.fence.kwargs)

    def register(self) -> Registered:
        """Register the host, to get an epoch.

        A repeat after a lost answer is the same message and gets the same epoch.

        :raises Unavailable: no answer; register again
        :raises Fenced: this agent has been replaced, or its journal is an older one
        """
        self.raise_if_fenced()
        if self._unanswered is None:
            self._unanswered = self._next_registration()
        try:
            registered = self.port.register(self._unanswered)
        except exceptions.StaleRegistration as e:
            with self._lock:
                self.fence = JournalBehind(
                    host=self.name, count=e.kwargs.get('count'), current=e.kwargs.get('current')
                )
            self.raise_if_fenced()
            raise
        with self._lock:
            self._registrations += 1
            self._unanswered = None
            self._epoch = registered.epoch
            self._last_epoch = max(self._last_epoch, registered.epoch)
            self._sequence = 0
        if self._journal is not None:
            self._journal.note_epoch(registered.epoch)
        self.report_seconds = float(registered.report_seconds)
        self.incarnation = registered.incarnation
        return registered

    def _next_registration(self) -> RegisterHost:
        """Return a registration with a nonce and number that no earlier one had."""
        nonce = f'{self._boot_nonce}.{self._registrations}'
        registration = msgspec.structs.replace(
            self._announcement, boot_nonce=nonce, last_epoch=self._last_epoch
        )
        if self._journal is None:
            return registration
        return msgspec.structs.replace(
            registration,
            journal=self._journal.identity,
            journal_count=self._journal.count_registration(),
        )

    def stamp(self) -> Stamp:
        """Return the stamp of the next message: the current epoch and the next sequence number.

        Take it *before* reading what is reported: a report must not be newer
        than a confirmation whose claim it does not list.

        :raises Fenced, NotRegistered:
        """
        with self._lock:
            self.raise_if_fenced()
            if not self._epoch:
                raise NotRegistered(host=self.name)
            self._sequence += 1
            return Stamp(self._epoch, self._sequence)

    def is_last(self, stamp: Stamp) -> bool:
        """Return whether nothing was sent after ``stamp``."""
        return stamp == Stamp(self._epoch, self._sequence)

    def register_again(self, stamp: Stamp) -> None:
        """Register again, where reports in the epoch of ``stamp`` are stale for no known reason.

        Whatever the cause, a message of an earlier life or a number that was put back,
        another epoch is free of it.
        """
        if self._forget_registration(stamp):
            LOG.warning(
                'Scheduler treats reports of this epoch as stale; the host registers again: '
                'host=%s epoch=%d',
                self.name,
                stamp.epoch,
            )

    def _forget_registration(self, stamp: Stamp) -> bool:
        """Leave the epoch of ``stamp``; return False where it was left before."""
        with self._lock:
            if stamp.epoch != self._epoch:
                return False
            self._epoch = 0
        return True

    def rejected(self, stamp: Stamp, error: exceptions.GanttError) -> None:
        """Handle the scheduler's rejection of our epoch or key: become fenced, or register again.

        :param error: one of ``REJECTION_ERRORS``, as the answer to ``stamp``
        """
        # Registering proves the key, and its predecessors.
        is_unproven = isinstance(error, exceptions.NotProven)
        newest = 0 if is_unproven else error.kwargs.get('current', 0)
        if isinstance(newest, int) and newest > stamp.epoch:
            with self._lock:
                if stamp.epoch != self._epoch:
                    return  # an answer to an older registration of our own
                self.fence = Fenced(host=self.name, current=newest, epoch=stamp.epoch)
            LOG.error('Agent no longer builds and reports: error=%s', self.fence)
        elif not self._forget_registration(stamp):
            return
        elif is_unproven:
            LOG.error(
                'Signature was not accepted; the host registers again: host=%s error=%s',
                self.name,
                error,
            )
        else:
            LOG.warning(
                'Scheduler does not know the host; it registers again: host=%s error=%s',
                self.name,
                error,
            )

    # -- updates of claims ------------------------------------------------------------------
    def confirm(self, stamp: Stamp, claim_id: str) -> str:
        """Query whether a guest may start: ``ok``, ``gone``, or '' for an answer that is void.

        An answer is void where the host has registered again since its query,
        or was not known: it must query again.

        :param stamp: place of this query, from :meth:`stamp`
        :raises Unavailable: no answer
        """
        try:
            outcomes = self.port.confirm(self._update(stamp, [claim_id], ''))
        except REJECTION_ERRORS as e:
            self.rejected(stamp, e)
            return ''
        if stamp.epoch != self._epoch or self.fence is not None:
            return ''
        return 'ok' if outcomes.get(claim_id) == 'ok' else 'gone'

    def refuse(self, claim_ids: list[str], reason: str) -> None:
        """Refuse claims that the second check rejected.  Never raises."""
        self._notify('refuse', self.port.refuse, claim_ids, reason)

    def release(self, claim_ids: list[str], reason: str) -> None:
        """Release claims of guests that have ended.  Never raises."""
        self._notify('release', self.port.release, claim_ids, reason)

    def _notify(
        self,
        kind: str,
        send: Callable[[ClaimUpdate], dict[str, str]],
        claim_ids: list[str],
        reason: str,
    ) -> None:
        """Send an update of claims once; losing it does no harm: reports and leases repeat it."""
        try:
            stamp = self.stamp()
            try:
                send(self._update(stamp, claim_ids, reason))
            except REJECTION_ERRORS as e:
                self.rejected(stamp, e)
        except (exceptions.Unavailable, exceptions.Refused) as e:
            LOG.info(
                'Update of claims did not reach the scheduler; reports repeat it: host=%s '
                'update=%s claims=%s error=%s',
                self.name,
                kind,
                ','.join(claim_ids),
                e,
            )

    def _update(self, stamp: Stamp, claim_ids: list[str], reason: str) -> ClaimUpdate:
        return ClaimUpdate(
            name=self.name,
            epoch=stamp.epoch,
            sequence=stamp.sequence,
            claim_ids=claim_ids,
            reason=reason[:REASON_CHARACTERS_MAX],
        )
