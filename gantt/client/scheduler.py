# SPDX-License-Identifier: Apache-2.0
"""Client of conductors: place instances, read an answer, take a request back."""

import uuid
from collections.abc import Sequence
from typing import Any

from gantt import exceptions
from gantt.client.calls import NoAnswer, ServerCaller, TryTimeouts, within_budget
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
_TRANSIENT_ERRORS = (exceptions.Busy, exceptions.BrokerUnavailable, exceptions.DatabaseUnavailable)


class SchedulerClient:
    """Calls on topic ``gantt-scheduler``.

    :param transport: from ``gantt.client.get_transport``
    :param attempt_seconds: after so long without an answer the same request
        is sent again, the next time after half as long again and so on: its first
        copy or its answer may be lost, or the scheduler that took it is stopped.  It goes to
        another scheduler then, by name: one that answers a ping.  None: a sixth of the budget, 0.5
        to 1.4 s
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
        patience = TryTimeouts(request.budget_ms / 1000, self._attempt_seconds)
        transient = (*_TRANSIENT_ERRORS, NoAnswer)
        body = within_budget('select_destinations', request, patience, self._call, transient)
        return wire.read_answer(body)

    def _call(self, method: str, seconds: float, **args: Any) -> Any:
        try:
            return self._caller.call(method, seconds, **args)
        except exceptions.Unavailable as e:
            if type(e) is exceptions.Unavailable:  # an error of the receiver, not its decision
                raise NoAnswer(e.message, **e.kwargs) from None
            raise

    def get_request(self, request_id: str, *, timeout: float = 10.0) -> Answer:
        """Return the stored answer of an earlier request.

        :raises NotFound: the request was never placed, or is no longer stored
        :raises Busy: the request is being placed
        """
        body = self._caller.call_until_answered(
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

        :param consumers: consumers whose claims are in use; empty: all consumers of the request
        :returns: ``claims``, each with its ``outcome``: ``ok``, or ``gone`` where it ended before
        :raises NotFound: it has no claims
        :raises Refused: the request was placed on hosts, which confirm claims themselves
        """
        message = ConfirmRequest(request_id=request_id, consumers=list(consumers))
        return self._call_for_request('confirm_request', message, timeout)

    def release_request(
        self,
        request_id: str,
        consumers: Sequence[str] = (),
        reason: str = '',
        *,
        timeout: float = 10.0,
    ) -> dict[str, Any]:
        """Release claims of a request without a host, which is used no more.

        :param consumers: consumers whose claims are released; empty: all consumers of the request
        :raises NotFound: it has no claims
        :raises Refused: the request was placed on hosts, which release claims themselves
        """
        message = ReleaseRequest(request_id=request_id, consumers=list(consumers), reason=reason)
        return self._call_for_request('release_request', message, timeout)

    def _call_for_request(
        self, method: str, message: ConfirmRequest | ReleaseRequest, timeout: float
    ) -> dict[str, Any]:
        return self._caller.call_until_answered(
            method,
            timeout,
            (*_TRANSIENT_ERRORS, NoAnswer),
            context_id=message.request_id,
            request=base.to_builtins(message),
        )

    def cancel_claims(
        self, request_id: str, reason: str = '', *, timeout: float = 10.0
    ) -> dict[str, Any]:
        """Take a request back: its claims that are not confirmed are released."""
        return self._caller.call_until_answered(
            'cancel_claims',
            timeout,
            (*_TRANSIENT_ERRORS, NoAnswer),
            context_id=request_id,
            request=base.to_builtins(CancelClaims(request_id=request_id, reason=reason)),
        )
