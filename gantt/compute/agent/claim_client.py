# SPDX-License-Identifier: Apache-2.0
"""What a host says about claims: confirm, refuse, release."""

import logging
from collections.abc import Callable

from gantt import exceptions
from gantt.compute.agent.session import Session, Stamp
from gantt.compute.ports import SchedulerPort
from gantt.core.messages.report import ClaimWords

LOG = logging.getLogger(__name__)

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
            fates = self._port.confirm(self._words(stamp, [claim_id], ''))
        except (exceptions.StaleEpoch, exceptions.NotFound) as e:
            self._session.refused(stamp, e)
            return ''
        except exceptions.NotProven as e:
            self._session.unproven(stamp, e)
            return ''
        if not self._session.is_current(stamp):
            return ''
        return 'ok' if fates.get(claim_id) == 'ok' else 'gone'

    def refuse(self, claim_ids: list[str], reason: str) -> None:
        """The second check says no.  Never raises."""
        self._tell('refuse', self._port.refuse, claim_ids, reason)

    def release(self, claim_ids: list[str], reason: str) -> None:
        """The guests are gone.  Never raises."""
        self._tell('release', self._port.release, claim_ids, reason)

    def _tell(
        self,
        word: str,
        say: Callable[[ClaimWords], dict[str, str]],
        claim_ids: list[str],
        reason: str,
    ) -> None:
        """Say it once; a lost word does no harm, as reports and leases say it again."""
        stamp = None
        try:
            stamp = self._session.stamp()
            say(self._words(stamp, claim_ids, reason))
        except (exceptions.StaleEpoch, exceptions.NotFound) as e:
            if stamp is not None:
                self._session.refused(stamp, e)
        except exceptions.NotProven as e:
            if stamp is not None:
                self._session.unproven(stamp, e)
        except (exceptions.Unavailable, exceptions.Refused) as e:
            LOG.info(
                'Host %s: the scheduler was not told to %s %s: %s',
                self._session.name,
                word,
                ', '.join(claim_ids),
                e,
            )

    def _words(self, stamp: Stamp, claim_ids: list[str], reason: str) -> ClaimWords:
        return ClaimWords(
            name=self._session.name,
            epoch=stamp.epoch,
            sequence=stamp.sequence,
            claim_ids=claim_ids,
            reason=reason[:REASON_MAX],
        )
