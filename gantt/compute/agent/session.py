# SPDX-License-Identifier: Apache-2.0
"""Who a host is towards the scheduler: its epoch, and the order of its words.

Everything a host says carries (epoch, sequence).  The epoch is handed out when
it registers, the sequence is counted here.  Of two agents with one name the
later registration wins: the older one is *fenced*, builds and reports no more,
and registers again only when somebody restarts it.  An epoch that the
scheduler knows nothing of, or an older one than ours (a database restored from
a backup), is answered by registering again.

Registrations are counted in the journal, over all starts of the agent: one
that a dead agent left on its way and that comes late must not fence us.
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

#: The scheduler does not know the epoch, the host or its key: see ``Session.rejected``.
REJECTED = (exceptions.StaleEpoch, exceptions.NotFound, exceptions.NotProven)


class Fenced(exceptions.Unavailable):
    """Another agent registered under this name later; this one must stop."""

    code = 'gantt.fenced'
    template = (
        'host {host!r}: another agent registered under this name (epoch {current}, ours is '
        '{epoch}); this one builds and reports no more. Stop one of them, then restart the other'
    )


class JournalBehind(Fenced):
    """The scheduler has seen later registrations out of our journal than ours."""

    code = 'gantt.journal_behind'
    template = (
        'host {host!r}: registration {count} of its journal comes after number {current}: the '
        'journal was put back to an older state, or copied; this agent builds and reports no '
        'more. Make sure that no other one has this journal, stop this one, move the file that '
        '[compute] journal names out of the way, and start it again. Without [compute] '
        'guest_list_command stop the guests here first: nothing else knows of them'
    )


class NotRegistered(exceptions.Unavailable):
    """The host is not registered now; it will be tried again."""

    code = 'gantt.not_registered'
    template = 'host {host!r} is not registered with the scheduler yet'


class Session:
    """Epoch and sequence of one host.

    :param announcement: what is said to register; its nonce is replaced
    :param journal: None: nothing outlives this process, and whoever registers last counts
    """

    def __init__(
        self, announcement: RegisterHost, port: SchedulerPort, journal: Journal | None = None
    ) -> None:
        self.name = announcement.name
        self._announcement = announcement
        self._port = port
        self._boot = uuid.uuid4().hex
        self._journal = journal
        self._registrations = 0
        self._unanswered: RegisterHost | None = None  # what has had no answer yet
        self._lock = threading.Lock()
        self._epoch = 0
        self._sequence = 0
        self._last_epoch = 0 if journal is None else journal.last_epoch
        self.fence: Fenced | None = None  # why nothing may be said any more
        self.report_seconds = 60.0
        self.incarnation = 0

    @property
    def epoch(self) -> int:
        """The epoch we speak in, 0 where there is none now."""
        return self._epoch

    @property
    def is_registered(self) -> bool:
        return self._epoch > 0 and self.fence is None

    @property
    def is_fenced(self) -> bool:
        """Another agent reports for this host; only a restart of this one helps."""
        return self.fence is not None

    def raise_if_fenced(self) -> None:
        """:raises Fenced: nothing may be said or built any more; says what to do"""
        if self.fence is not None:
            raise type(self.fence)(None, **self.fence.kwargs)

    def register(self) -> Registered:
        """Ask for an epoch.

        A repeat after a lost answer is the same message and gets the same epoch.

        :raises Unavailable: no answer; ask again
        :raises Fenced: this agent has been replaced, or its journal is an older one
        """
        self.raise_if_fenced()
        if self._unanswered is None:
            self._unanswered = self._next()
        try:
            registered = self._port.register(self._unanswered)
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

    def _next(self) -> RegisterHost:
        """Another registration than all before."""
        nonce = f'{self._boot}.{self._registrations}'
        announced = msgspec.structs.replace(
            self._announcement, boot_nonce=nonce, after=self._last_epoch
        )
        if self._journal is None:
            return announced
        return msgspec.structs.replace(
            announced,
            journal=self._journal.identity,
            journal_count=self._journal.count_registration(),
        )

    def stamp(self) -> Stamp:
        """The next place in the order.

        Take it *before* looking at what is said: a report must not be newer
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
        """Whether nothing was said after ``stamp``."""
        return stamp == Stamp(self._epoch, self._sequence)

    def begin_anew(self, stamp: Stamp) -> None:
        """Register again: what is sent in the epoch of ``stamp`` is not taken, for no known reason.

        Whatever came to be there, a message of an earlier life or a number that was put
        back, another epoch is free of it.
        """
        if self._leave(stamp):
            LOG.warning(
                'Host %s: the scheduler takes reports of epoch %d for old ones, and nothing was '
                'said after them; registering again',
                self.name,
                stamp.epoch,
            )

    def _leave(self, stamp: Stamp) -> bool:
        """Have no epoch any more; False where that of ``stamp`` was left before."""
        with self._lock:
            if stamp.epoch != self._epoch:
                return False
            self._epoch = 0
        return True

    def is_current(self, stamp: Stamp) -> bool:
        """Whether an answer to ``stamp`` still means anything."""
        return stamp.epoch == self._epoch and self.fence is None

    def rejected(self, stamp: Stamp, error: exceptions.GanttError) -> None:
        """The scheduler does not take our epoch or our key: fenced, or register again.

        :param error: one of ``REJECTED``, as the answer to ``stamp``
        """
        # Registering proves the key, and what came before it.
        is_unproven = isinstance(error, exceptions.NotProven)
        newest = 0 if is_unproven else error.kwargs.get('current', 0)
        if isinstance(newest, int) and newest > stamp.epoch:
            with self._lock:
                if stamp.epoch != self._epoch:
                    return  # an answer to an older registration of our own
                self.fence = Fenced(host=self.name, current=newest, epoch=stamp.epoch)
            LOG.error('%s', self.fence)
        elif not self._leave(stamp):
            return
        elif is_unproven:
            LOG.error('%s; registering again', error)
        else:
            LOG.warning(
                'Host %s is not known to the scheduler any more (%s); registering again',
                self.name,
                error,
            )


# -- What a host says about claims: confirm, refuse, release.
#: Longest reason that is told.
REASON_MAX = 1000


class Words:
    """The words of one host, in the order that its session keeps."""

    def __init__(self, session: Session, port: SchedulerPort) -> None:
        self._session = session
        self._port = port

    def confirm(self, stamp: Stamp, claim_id: str) -> str:
        """Ask whether a guest may start: ``ok``, ``gone``, or '' for an answer that is void.

        An answer is void where the host has registered again since it asked,
        or was not known: it must ask again.

        :param stamp: place of this question, of ``Session.stamp``
        :raises Unavailable: no answer
        """
        try:
            outcomes = self._port.confirm(self._words(stamp, [claim_id], ''))
        except REJECTED as e:
            self._session.rejected(stamp, e)
            return ''
        if not self._session.is_current(stamp):
            return ''
        return 'ok' if outcomes.get(claim_id) == 'ok' else 'gone'

    def refuse(self, claim_ids: list[str], reason: str) -> None:
        """The second check says no.  Never raises."""
        self._notify('refuse', self._port.refuse, claim_ids, reason)

    def release(self, claim_ids: list[str], reason: str) -> None:
        """The guests are gone.  Never raises."""
        self._notify('release', self._port.release, claim_ids, reason)

    def _notify(
        self,
        word: str,
        say: Callable[[ClaimUpdate], dict[str, str]],
        claim_ids: list[str],
        reason: str,
    ) -> None:
        """Say it once; a lost word does no harm, as reports and leases say it again."""
        try:
            stamp = self._session.stamp()
            try:
                say(self._words(stamp, claim_ids, reason))
            except REJECTED as e:
                self._session.rejected(stamp, e)
        except (exceptions.Unavailable, exceptions.Refused) as e:
            LOG.info(
                'Host %s: the scheduler did not receive the call to %s %s: %s',
                self._session.name,
                word,
                ', '.join(claim_ids),
                e,
            )

    def _words(self, stamp: Stamp, claim_ids: list[str], reason: str) -> ClaimUpdate:
        return ClaimUpdate(
            name=self._session.name,
            epoch=stamp.epoch,
            sequence=stamp.sequence,
            claim_ids=claim_ids,
            reason=reason[:REASON_MAX],
        )
