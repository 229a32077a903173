# SPDX-License-Identifier: Apache-2.0
"""Clients of compute hosts: register, report, update claims; and build and delete guests."""

from typing import Any

import msgspec

from gantt import exceptions
from gantt.client.calls import ServerCaller
from gantt.client.signing import Signer
from gantt.core.claims.host_facts import UpdateHostFacts, UpdateHostFactsResult
from gantt.core.messages import base
from gantt.core.messages.base import TOPIC_PREFIX, topic_of
from gantt.core.messages.build import Build, Delete
from gantt.core.messages.report import ClaimUpdate, HostReport, Registered, RegisterHost
from gantt.core.messages.request import ExtendClaims
from gantt.rpc import wire
from gantt.rpc.amqp.transport import Transport

_TRANSIENT_ERRORS = (exceptions.Unavailable,)

_TRIES_MAX = 20


class ClaimOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of an update of one claim.

    :ivar outcome: ok | gone (final, unknown or of another host) | kept
    :ivar state: state of the claim now
    :ivar reason: why a claim that is live is gone for the caller
    """

    claim_id: str
    outcome: str
    state: str = ''
    reason: str = ''


class ReportOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a report: applied | stale | needs_full (send a full one)."""

    name: str
    outcome: str
    changed: bool = False
    confirmed: list[str] = []
    released: list[str] = []
    adopted: list[str] = []
    current_epoch: int = 0
    current_sequence: int = 0


class ClaimsClient:
    """Calls on topic ``gantt-claims``.

    Each is tried again while the service cannot be reached, ``timeout``
    seconds in all; each has the effect of one.

    :param signer: signs the messages; None: nothing is signed
    """

    def __init__(
        self,
        transport: Transport,
        *,
        timeout: float = 20.0,
        signer: Signer | None = None,
    ) -> None:
        self._caller = ServerCaller(transport, wire.CLAIMS_TOPIC)
        self._timeout = timeout
        self._signer = signer

    def register_host(self, host: RegisterHost) -> Registered:
        """Register a host; the answer carries its epoch.

        :raises StaleRegistration: a later registration with the same journal has arrived before
        :raises HostHeld: the registration is in the name of Nova, and an agent of the host has
            reported lately
        :raises NotProven: the host has another key, or is to have one
        """
        try:
            return self._registered(host)
        except exceptions.NotProven as e:
            # Our clock is behind the last one that numbered registrations of this key.
            if self._signer is None or not self._signer.use_numbers_after(e.kwargs.get('current')):
                raise
        return self._registered(host)

    def _registered(self, host: RegisterHost) -> Registered:
        body = base.to_builtins(host)
        if self._signer is not None:
            body = self._signer.registration(body)
        answer = self._call('register_host', host.name, host=body)
        return base.decode(answer, Registered, inside='registered')

    def confirm_claims(self, update: ClaimUpdate) -> list[ClaimOutcome]:
        """Confirm claims before guests start.  Only ``ok`` allows a start.

        :raises StaleEpoch: the host registered again since
        :raises NotProven: the update is not signed with the host's key: register again
        """
        return self._send_update('confirm_claims', update)

    def refuse_claims(self, update: ClaimUpdate) -> list[ClaimOutcome]:
        """Refuse claims that the second check on the host rejected."""
        return self._send_update('refuse_claims', update)

    def release_claims(self, update: ClaimUpdate) -> list[ClaimOutcome]:
        """Release claims of guests that have ended."""
        return self._send_update('release_claims', update)

    def extend_claims(self, request: ExtendClaims) -> dict[str, Any]:
        """Extend the leases of a request's claims."""
        return self._call('extend_claims', request.request_id, request=base.to_builtins(request))

    def _send_update(self, method: str, update: ClaimUpdate) -> list[ClaimOutcome]:
        body = base.to_builtins(update)
        if self._signer is not None:
            body = self._signer.message(method, body)
        answer = self._call(method, update.name, update=body)
        return base.decode(answer, list[ClaimOutcome], inside='outcomes')

    def _call(self, method: str, context_id: str, **args: Any) -> Any:
        return self._caller.call_until_answered(
            method, self._timeout, _TRANSIENT_ERRORS, context_id=context_id, most=_TRIES_MAX, **args
        )


class StatsClient:
    """Reports on topic ``gantt-stats``.

    A delta is cast: should it be lost, the next one has the same.  A full
    report is called, so that its sender learns its outcome.

    :param signer: signs the reports; None: nothing is signed
    """

    def __init__(
        self,
        transport: Transport,
        *,
        timeout: float = 15.0,
        signer: Signer | None = None,
    ) -> None:
        self._caller = ServerCaller(transport, wire.STATS_TOPIC)
        self._timeout = timeout
        self._signer = signer

    def update_resource_stats(
        self, report: HostReport, *, wait: bool | None = None
    ) -> ReportOutcome | None:
        """Send a report.

        :param wait: whether to wait for its outcome; None: for full ones only
        :raises StaleEpoch, NotFound, NotProven: register again
        :raises Unavailable: not sent, or no answer; the next report repairs that
        """
        body = base.to_builtins(report)
        if self._signer is not None:
            body = self._signer.message('update_resource_stats', body)
        if report.full if wait is None else wait:
            return self.send_foreign(report.name, body)
        self._caller.cast(
            'update_resource_stats', context_id=report.name, name=report.name, stats=body
        )
        return None

    def update_host_facts(self, update: UpdateHostFacts) -> UpdateHostFactsResult:
        """Send facts that an agent has read on a host for which a report source reports.

        :raises NotFound: the host's report source has not reported it yet
        :raises Refused: an agent of its own reports for the host, or a field is wrong
        :raises NotProven: the message is not signed by the agent that is known for the host
        :raises Unavailable: the scheduler does not accept it, or no answer came
        """
        body = base.to_builtins(update)
        if self._signer is not None:
            body = self._signer.facts(body)
        answer = self._caller.call(
            'update_host_facts', self._timeout, context_id=update.host, update=body
        )
        return base.decode(answer, UpdateHostFactsResult, inside='result', newer_minor=True)

    def send_foreign(self, name: str, stats: dict[str, Any]) -> ReportOutcome:
        """Send a plain dictionary or a serialized ComputeNode as it is, and wait."""
        answer = self._caller.call(
            'update_resource_stats', self._timeout, context_id=name, name=name, stats=stats
        )
        return base.decode(answer, ReportOutcome, inside='outcome')


__all__ = ['TOPIC_PREFIX', 'ComputeClient', 'topic_of']


class ComputeClient:
    """Calls and casts of ``build`` and ``delete`` on the topic that a Selection names."""

    def __init__(self, transport: Transport, *, timeout: float = 10.0) -> None:
        self._caller = ServerCaller(transport, TOPIC_PREFIX)
        self._timeout = timeout

    def build(self, topic: str, build: Build, *, wait: bool = False) -> Any:
        """Start a guest under its claim.

        :param topic: ``Selection.build_topic``, or ``topic_of(host)``
        :param build: as ``Selection.build()`` creates it for the selected host
        :param wait: wait for the agent's answer; otherwise only for the broker
        :raises Unavailable: no agent listens there, or no answer came
        :raises BrokerUnavailable: the message was not sent
        """
        return self._send(topic, 'build', build.consumer, wait, build=base.to_builtins(build))

    def delete(self, topic: str, delete: Delete, *, wait: bool = False) -> Any:
        """Stop a guest and release its claim; as :meth:`build`."""
        return self._send(topic, 'delete', delete.consumer, wait, delete=base.to_builtins(delete))

    def _send(self, topic: str, method: str, context_id: str, wait: bool, **args: Any) -> Any:
        if wait:
            return self._caller.call(
                method, self._timeout, context_id=context_id, topic=topic, **args
            )
        self._caller.cast(method, context_id=context_id, topic=topic, **args)
        return None
