# SPDX-License-Identifier: Apache-2.0
"""Lock on a request: its row, opened before anything is claimed, so that its owner works alone.

Its consumers are stored in ``delegated_consumers`` from then on, so that two requests for one of
them meet, wherever each is placed.
"""

from typing import NamedTuple

from gantt.core.messages.request import SelectDestinations
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.core.zones.choice import GoneOffers
from gantt.scheduler.ports.zones import OpenRequest
from gantt.scheduler.request.queue import PendingRequest
from gantt.scheduler.zones.offers.evaluate import Evaluated

#: Seconds that a row is open beyond the budget of its request.
SPARE_SECONDS = 1.0


class RequestLock(NamedTuple):
    """Lock on a request: its row, opened by this worker.

    :ivar number: of its attempt
    :ivar token: the keys of its claims in other zones are derived from it
    :ivar order: of its claims in other zones
    :ivar rule: of its group; None: it has no group
    """

    number: int
    token: str
    order: int
    rule: GroupRule | None = None

    def ruled(self, request: SelectDestinations) -> SelectDestinations:
        """Return the request under the rule of its group, which zones below do not have."""
        return request if self.rule is None else group_rule.with_rule(request, self.rule)


class PendingZoneRequest(PendingRequest):
    """State of a request whose row is opened before it is placed.

    :ivar may_go_down: to zones below; False: its caller wants hosts of this zone
    :ivar stays: it is for hosts of this zone alone, as it may not go down, or is bound to them
    :ivar known: it, under the rule that its group was known to have; None: not read yet
    :ivar lock: on its row; None: it is to be opened, or opened anew
    :ivar abandoned: token of a lock that its owner has left, whose claims are to be ended
    :ivar is_begun: its row was tried to be opened
    :ivar is_let_in: within the quotas of its project
    :ivar evaluated: the offers of all zones; None: they are to be queried
    :ivar gone: offers that did not hold
    :ivar gone_before: number of these when the offers were queried
    """

    __slots__ = (
        'abandoned',
        'evaluated',
        'gone',
        'gone_before',
        'is_begun',
        'is_let_in',
        'known',
        'may_go_down',
        'lock',
        'stays',
    )

    def __init__(
        self, request: SelectDestinations, deadline: float, number: int, *, may_go_down: bool
    ) -> None:
        super().__init__(request, deadline, number)
        self.may_go_down, self.stays = may_go_down, not may_go_down
        self.known: SelectDestinations | None = None
        self.lock: RequestLock | None = None
        self.abandoned = ''
        self.is_begun = self.is_let_in = False
        self.evaluated: Evaluated | None = None
        self.gone, self.gone_before = GoneOffers(), 0

    def join(self, deadline: float, *, repeats: bool) -> None:
        # Its row is open until the deadline of the first caller, which is answered by then.
        self.repeats |= repeats

    def to_open(self, worker: str, seconds: float) -> OpenRequest:
        """Return its row, to be opened for a worker.

        :param seconds: until its deadline
        """
        request, attempt = self.request, self.attempt
        return OpenRequest(
            id=request.request_id,
            fingerprint=self.fingerprint,
            owner=worker,
            # The keys of claims below are of one lock: a row that is opened anew counts on.
            attempt=attempt.number + attempt.continues,
            takes_over=attempt.takes_over,
            seconds=seconds + SPARE_SECONDS,
            consumers=request.consumers,
            purpose=request.spec.purpose,
            stays=self.stays,
            group=request.spec.group,
            project_id=request.spec.project_id,
            of_parent=request.parent is not None,
            rule_generation=request.rule_generation,
        )
