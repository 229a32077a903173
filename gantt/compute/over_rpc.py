# SPDX-License-Identifier: Apache-2.0
"""Scheduler over the message broker."""

from typing import Any

from gantt.client import ClaimsClient, StatsClient
from gantt.client.signing import Signer
from gantt.compute.ports import report_outcome
from gantt.core.messages.report import ClaimUpdate, HostReport, Registered, RegisterHost


class RpcSchedulerPort:
    """Implementation of ``SchedulerPort`` over ``gantt.client``; for any number of hosts.

    :param transport: from ``gantt.client.get_transport``
    :param call_seconds: how long one call may take, tries included
    :param signer: signer with the key of all hosts of this port; None: nothing is signed
    """

    def __init__(
        self, transport: Any, call_seconds: float = 10.0, signer: Signer | None = None
    ) -> None:
        self._claims = ClaimsClient(transport, timeout=call_seconds, signer=signer)
        self._stats = StatsClient(transport, timeout=call_seconds, signer=signer)

    def register(self, message: RegisterHost) -> Registered:
        return self._claims.register_host(message)

    def report(self, report: HostReport) -> str | None:
        outcome = self._stats.update_resource_stats(report)
        return (
            None
            if outcome is None
            else report_outcome(report, outcome.outcome, outcome.current_sequence)
        )

    def confirm(self, update: ClaimUpdate) -> dict[str, str]:
        return {answer.claim_id: answer.outcome for answer in self._claims.confirm_claims(update)}

    def refuse(self, update: ClaimUpdate) -> dict[str, str]:
        return {answer.claim_id: answer.outcome for answer in self._claims.refuse_claims(update)}

    def release(self, update: ClaimUpdate) -> dict[str, str]:
        return {answer.claim_id: answer.outcome for answer in self._claims.release_claims(update)}
