# SPDX-License-Identifier: Apache-2.0
"""Who a host is towards the scheduler: its epoch, and the order of its words.

Everything a host says carries (epoch, sequence).  The epoch is handed out when
it registers, the sequence is counted here.  Of two agents with one name the
later registration wins: the older one is *fenced*, builds and reports no more,
and registers again only when somebody restarts it.  An epoch that the
scheduler knows nothing of, or an older one than ours (a database restored from
a backup), is answered by registering again.
"""

import logging
import threading
import uuid

import msgspec

from gantt import exceptions
from gantt.compute.ports import SchedulerPort
from gantt.core.report import Registered, RegisterHost

LOG = logging.getLogger(__name__)


class Fenced(exceptions.Unavailable):
    """Another agent registered under this name later; this one must stop."""

    code = 'gantt.fenced'
    template = (
        'host {host!r}: another agent registered under this name (epoch {current}, ours is '
        '{epoch}); this one builds and reports no more. Stop one of them, then restart the other'
    )


class NotRegistered(exceptions.Unavailable):
    """The host is not registered now; it will be tried again."""

    code = 'gantt.not_registered'
    template = 'host {host!r} is not registered with the scheduler yet'


class Stamp(msgspec.Struct, frozen=True):
    """The place of one message in the order of a host's words."""

    epoch: int
    sequence: int


class Session:
    """Epoch and sequence of one host.

    :param announcement: what is said to register; its nonce is replaced
    """

    def __init__(self, announcement: RegisterHost, port: SchedulerPort) -> None:
        self.name = announcement.name
        self._announcement = announcement
        self._port = port
        self._boot = uuid.uuid4().hex
        self._registrations = 0
        self._lock = threading.Lock()
        self._epoch = 0
        self._sequence = 0
        self._fenced_by = 0
        self.report_seconds = 60.0
        self.incarnation = 0

    @property
    def epoch(self) -> int:
        """The epoch we speak in, 0 where there is none now."""
        return self._epoch

    @property
    def is_registered(self) -> bool:
        return self._epoch > 0 and not self._fenced_by

    @property
    def is_fenced(self) -> bool:
        """Another agent speaks for this host; only a restart of this one helps."""
        return self._fenced_by > 0

    def register(self) -> Registered:
        """Ask for an epoch.

        A repeat after a lost answer carries the same nonce and gets the same epoch.

        :raises Unavailable: no answer; ask again
        :raises Fenced: this agent has been replaced
        """
        self._raise_if_fenced()
        nonce = f'{self._boot}.{self._registrations}'
        registered = self._port.register(
            msgspec.structs.replace(self._announcement, boot_nonce=nonce)
        )
        with self._lock:
            self._registrations += 1
            self._epoch = registered.epoch
            self._sequence = 0
        self.report_seconds = float(registered.report_seconds)
        self.incarnation = registered.incarnation
        return registered

    def stamp(self) -> Stamp:
        """The next place in the order.

        Take it *before* looking at what is said: a report must not be newer
        than a confirmation whose claim it does not list.

        :raises Fenced, NotRegistered:
        """
        with self._lock:
            self._raise_if_fenced()
            if not self._epoch:
                raise NotRegistered(host=self.name)
            self._sequence += 1
            return Stamp(self._epoch, self._sequence)

    def is_current(self, stamp: Stamp) -> bool:
        """Whether an answer to ``stamp`` still means anything."""
        return stamp.epoch == self._epoch and not self._fenced_by

    def refused(self, stamp: Stamp, error: exceptions.GanttError) -> None:
        """The scheduler does not take our epoch: fenced, or register again.

        :param error: StaleEpoch or NotFound, as the answer to ``stamp``
        """
        current = error.kwargs.get('current', 0)
        newest = current if isinstance(current, int) else 0
        with self._lock:
            if stamp.epoch != self._epoch:
                return  # an answer to an older registration of our own
            if newest > self._epoch:
                self._fenced_by = newest
            else:
                self._epoch = 0
        if self._fenced_by:
            LOG.error('%s', Fenced(host=self.name, current=newest, epoch=stamp.epoch))
        else:
            LOG.warning('Host %s is not known to the scheduler any more (%s); registering again',
                        self.name, error)  # fmt: skip

    def _raise_if_fenced(self) -> None:
        if self._fenced_by:
            raise Fenced(host=self.name, current=self._fenced_by, epoch=self._epoch)
