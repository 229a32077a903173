# SPDX-License-Identifier: Apache-2.0
"""Lock on a request: its row, opened before anything is claimed, so that only its owner places it.

Its consumers are stored in ``delegated_consumers`` from then on, so that two requests for one of
them meet, wherever each is placed.
"""

from typing import NamedTuple

from gantt.core.messages.request import SelectDestinations
from gantt.core.resources import group_rule
from gantt.core.resources.group_rule import GroupRule
from gantt.scheduler.request.queue import PendingRequest
from gantt.zones.model.choice import GoneOffers
from gantt.zones.ports import OpenRequest
from gantt.zones.service.offers.evaluate import EvaluationResult

#: Seconds that a row is open beyond the budget of its request.
SPARE_SECONDS = 1.0


class RequestLock(NamedTuple):
    """Lock on a request: its row, opened by this worker.

    :ivar number: number of its attempt
    :ivar token: the keys of its claims in other zones are derived from it
    :ivar order: order of its claims in other zones
    :ivar rule: of its group; None: it has no group
    """

    number: int
    token: str
    order: int
    rule: GroupRule | None = None

    def with_rule(self, request: SelectDestinations) -> SelectDestinations:
        """Return the request under the rule of its group, which child zones do not have."""
        return request if self.rule is None else group_rule.request_with_rule(request, self.rule)


class PendingZoneRequest(PendingRequest):
    """State of a request whose row is opened before it is placed.

    :ivar may_go_down: to child zones; False: its caller wants hosts of this zone
    :ivar stays: it is for hosts of this zone only, as it may not go down, or is bound to them
    :ivar presumed_request: under the rule that its group presumably has; None: not read yet
    :ivar lock: on its row; None: it is to be opened, or opened anew
    :ivar abandoned_token: token of a lock that its owner has left, whose claims are to be ended
    :ivar is_begun: its row was tried to be opened
    :ivar is_admitted: within the quotas of its project
    :ivar evaluated: the offers of all zones; None: they are to be queried
    :ivar gone_offers: offers that did not hold
    :ivar gone_count_before: number of these when the offers were queried
    """

    __slots__ = (
        'abandoned_token',
        'evaluated',
        'gone_offers',
        'gone_count_before',
        'is_begun',
        'is_admitted',
        'lock',
        'may_go_down',
        'presumed_request',
        'stays',
    )

    def __init__(
        self, request: SelectDestinations, deadline: float, number: int, *, may_go_down: bool
    ) -> None:
        super().__init__(request, deadline, number)
        self.may_go_down = may_go_down
        self.stays = not may_go_down
        self.presumed_request: SelectDestinations | None = None
        self.lock: RequestLock | None = None
        self.abandoned_token = ''  # nosec B105 # there is none
        self.is_begun = self.is_admitted = False
        self.evaluated: EvaluationResult | None = None
        self.gone_offers = GoneOffers()
        self.gone_count_before = 0

    def join(self, deadline: float, *, repeats: bool) -> None:
        # Its row is open until the deadline of the first caller, which is answered by then.
        self.repeats |= repeats

    def as_open_request(self, worker: str, seconds: float) -> OpenRequest:
        """Return its row, to be opened for a worker.

        :param seconds: until its deadline
        """
        request, attempt = self.request, self.attempt
        return OpenRequest(
            id=request.request_id,
            fingerprint=self.fingerprint,
            owner=worker,
            # Keys of claims in child zones are of one lock: numbers go on where it is opened again.
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
