# SPDX-License-Identifier: Apache-2.0
"""Client of conductors: place instances, read an answer, take a request back."""

import itertools
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from gantt import exceptions
from gantt.client.calls import TRIES_MOST, NoAnswer, Patience, ServerCaller, again
from gantt.client.hosts import ClaimsClient
from gantt.core.messages import base
from gantt.core.messages.request import (
    CancelClaims,
    ConfirmRequest,
    ExtendClaims,
    GetRequest,
    ReleaseRequest,
    RequestSpec,
    SelectDestinations,
)
from gantt.core.records.decision import Answer
from gantt.rpc import wire
from gantt.rpc.amqp.transport import Transport

#: Errors after which the same request may be sent again: it has the effect of one.
_PASSING = (exceptions.Busy, exceptions.BrokerUnavailable, exceptions.DatabaseUnavailable)

#: The answer needs some time on its way back after the budget was spent there.
_GRACE_SECONDS = 2.0


class SchedulerClient:
    """Calls on topic ``gantt-scheduler``.

    :param transport: from ``gantt.client.get_transport``
    :param attempt_seconds: after so long without an answer the same request
        is sent again, the next time after half as long again and so on: its first
        copy or its answer may be lost, or the scheduler that took it is stopped.  It goes to
        another scheduler then, by name, where one is known that answers.  None: a sixth
        of the budget, 0.5 to 1.4 s
    """

    def __init__(self, transport: Transport, *, attempt_seconds: float | None = None) -> None:
        self._caller = ServerCaller(transport, wire.SCHEDULER_TOPIC)
        self._claims = ClaimsClient(transport, timeout=10.0)
        self._attempt_seconds = attempt_seconds

    def select_destinations(
        self,
        request: SelectDestinations | None = None,
        *,
        spec: RequestSpec | None = None,
        consumers: list[str] | None = None,
        **fields: Any,
    ) -> Answer:
        """Place every consumer and claim its place.

        Either a whole request, or its parts; without ``request_id`` one is
        chosen.  Within the budget the request is sent again where the answer
        was lost or "busy"; the request id makes that the effect of one.

        :raises NoValidHost: no host fits; the message is the verdict
        :raises InvalidMessage, RequestIdReused, RequestCancelled: see there
        :raises Conflict, Unavailable: the budget is spent
        """
        if request is None:
            if spec is None or consumers is None:
                raise TypeError('either a request, or spec and consumers')
            fields.setdefault('request_id', str(uuid.uuid4()))
            request = SelectDestinations(spec=spec, consumers=consumers, **fields)
        sent = itertools.count()
        seconds = request.budget_ms / 1000
        patience = Patience(seconds, self._attempt_seconds)
        return again(
            lambda left: self._select(
                request, left, patience, repeat=next(sent) > 0 or request.repeat
            ),
            seconds,
            most=TRIES_MOST,
            passing=(*_PASSING, NoAnswer),
            what=f'request {request.request_id}',
        )

    def _select(
        self, request: SelectDestinations, left: float, patience: Patience, *, repeat: bool
    ) -> Answer:
        left_ms = max(1, int(left * 1000))
        body = base.to_builtins(msgspec.structs.replace(request, budget_ms=left_ms, repeat=repeat))
        seconds = patience.next(left)
        if seconds >= left:
            seconds = left + _GRACE_SECONDS
        try:
            body_of_answer = self._caller.call(
                'select_destinations',
                seconds,
                context_id=request.request_id,
                publish_tries=1,
                patience=patience,
                request=body,
            )
        except exceptions.Unavailable as e:
            if type(e) is exceptions.Unavailable:  # an error of the receiver, not its decision
                raise NoAnswer(e.message, **e.kwargs) from None
            raise
        return wire.read_answer(body_of_answer)

    def get_request(self, request_id: str, *, timeout: float = 10.0) -> Answer:
        """Return the stored answer of an earlier request.

        :raises NotFound: it was never placed, or is no longer kept
        :raises Busy: it is being placed
        """
        body = self._caller.call_again(
            'get_request',
            timeout,
            (exceptions.BrokerUnavailable, NoAnswer),
            context_id=request_id,
            request=base.to_builtins(GetRequest(request_id=request_id)),
        )
        return wire.read_answer(body)

    def extend_claims(self, request_id: str, seconds: int) -> dict[str, Any]:
        """Extend the leases of a request's claims, to so long from now on.

        :raises NotFound: it has no live claims
        """
        return self._claims.extend_claims(ExtendClaims(request_id=request_id, seconds=seconds))

    def confirm_request(
        self, request_id: str, consumers: Sequence[str] = (), *, timeout: float = 10.0
    ) -> dict[str, Any]:
        """Confirm claims of a request without a host as in use; their leases end no more.

        :param consumers: those whose claims are in use; empty: all of the request
        :returns: ``claims``, each with its ``outcome``: ``ok``, or ``gone`` where it ended before
        :raises NotFound: it has no claims
        :raises Refused: it was placed on hosts, which confirm
        """
        message = ConfirmRequest(request_id=request_id, consumers=list(consumers))
        return self._of_request('confirm_request', message, timeout)

    def release_request(
        self,
        request_id: str,
        consumers: Sequence[str] = (),
        reason: str = '',
        *,
        timeout: float = 10.0,
    ) -> dict[str, Any]:
        """Release claims of a request without a host, which is used no more.

        :param consumers: those whose claims are released; empty: all of the request
        :raises NotFound: it has no claims
        :raises Refused: it was placed on hosts, which release
        """
        message = ReleaseRequest(request_id=request_id, consumers=list(consumers), reason=reason)
        return self._of_request('release_request', message, timeout)

    def _of_request(
        self, method: str, message: ConfirmRequest | ReleaseRequest, timeout: float
    ) -> dict[str, Any]:
        return self._caller.call_again(
            method,
            timeout,
            (*_PASSING, NoAnswer),
            context_id=message.request_id,
            request=base.to_builtins(message),
        )

    def cancel_claims(
        self, request_id: str, reason: str = '', *, timeout: float = 10.0
    ) -> dict[str, Any]:
        """Take a request back: its claims that are not confirmed are released."""
        return self._caller.call_again(
            'cancel_claims',
            timeout,
            (*_PASSING, NoAnswer),
            context_id=request_id,
            request=base.to_builtins(CancelClaims(request_id=request_id, reason=reason)),
        )
