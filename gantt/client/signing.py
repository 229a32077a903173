# SPDX-License-Identifier: Apache-2.0
"""Signing of hosts' messages as they are sent, for the clients of this package."""

import threading
import time
from collections.abc import Callable
from typing import Any

from gantt.core.resources import host_keys
from gantt.core.resources.host_keys import MESSAGE_NUMBER_MAX, ProofParts
from gantt.ed25519 import PrivateKey


class Signer:
    """A signer with one key, for any number of hosts, from any thread.

    :param older: earlier keys of the host, the newest first, each with its signature over the key
        after it
    :param wall: seconds of a clock that goes on over restarts
    """

    def __init__(
        self,
        key: PrivateKey,
        older: tuple[tuple[bytes, bytes], ...] = (),
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._key = key
        self._older = older
        self._wall = wall
        self._number = 0
        self._lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the key, as people compare it."""
        return host_keys.fingerprint(host_keys.key_text(self._key.public))

    def message(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a report or of a message about claims, with its signature."""
        signed_part = host_keys.signed_bytes(
            method, body['name'], body['epoch'], body['sequence'], body
        )
        return {**body, 'signature': host_keys.key_text(self._key.sign(signed_part))}

    def guests(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a list of guests, with its signature."""
        signed_part = host_keys.signed_bytes('sync_guests', body['host'], 0, 0, body)
        return {**body, 'signature': host_keys.key_text(self._key.sign(signed_part))}

    def facts(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of the facts of an agent on a host of nova-compute, with its proof."""
        return self._proof('update_host_facts', body['host'], body['sequence'], body)

    def registration(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a registration, with its proof; no two have the same number."""
        return self._proof('register_host', body['name'], self._next_number(), body)

    def use_numbers_after(self, number: object) -> bool:
        """Continue after a number that the scheduler has seen; False where that cannot help."""
        if not isinstance(number, int) or not 0 < number < MESSAGE_NUMBER_MAX - 1:
            return False
        with self._lock:
            self._number = max(self._number, number)
        return True

    def _proof(self, method: str, host: str, number: int, body: dict[str, Any]) -> dict[str, Any]:
        signed_part = host_keys.signed_bytes(method, host, 0, number, body)
        parts = ProofParts(
            number=number,
            key=self._key.public,
            signature=self._key.sign(signed_part),
            older=self._older,
        )
        return {**body, 'proof': host_keys.proof_text(parts)}

    def _next_number(self) -> int:
        with self._lock:
            self._number = max(self._number + 1, int(self._wall() * 1_000_000))
            return self._number
