# SPDX-License-Identifier: Apache-2.0
"""The scheduler over the message broker."""

from typing import Any

from gantt.client import ClaimsClient, StatsClient
from gantt.client.signing import Signer
from gantt.compute.ports import fate_of
from gantt.core.messages.report import ClaimWords, HostReport, Registered, RegisterHost


class OverRpc:
    """The port ``SchedulerPort`` over ``gantt.client``; for any number of hosts.

    :param transport: of ``gantt.client.get_transport``
    :param call_seconds: how long one call may take, tries included
    :param signer: the key of all these hosts; None: nothing is signed
    """

    def __init__(
        self, transport: Any, call_seconds: float = 10.0, signer: Signer | None = None
    ) -> None:
        self._claims = ClaimsClient(transport, timeout=call_seconds, signer=signer)
        self._stats = StatsClient(transport, timeout=call_seconds, signer=signer)

    def register(self, message: RegisterHost) -> Registered:
        return self._claims.register_host(message)

    def report(self, report: HostReport) -> str | None:
        fate = self._stats.update_resource_stats(report)
        return None if fate is None else fate_of(report, fate.fate, fate.current_sequence)

    def confirm(self, words: ClaimWords) -> dict[str, str]:
        return {f.claim_id: f.fate for f in self._claims.confirm_claims(words)}

    def refuse(self, words: ClaimWords) -> dict[str, str]:
        return {f.claim_id: f.fate for f in self._claims.refuse_claims(words)}

    def release(self, words: ClaimWords) -> dict[str, str]:
        return {f.claim_id: f.fate for f in self._claims.release_claims(words)}
