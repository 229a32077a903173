# SPDX-License-Identifier: Apache-2.0
"""Receipts: what this zone has requested of a child zone, sealed for itself as proof.

A receipt goes down with each allocation and comes back with each change of a claim.  Where the
claim was forgotten here, as the database was restored from an older copy, the receipt gives its
owner and resources; a claim without one was invented by the child zone.  The child zone cannot read
it.
"""

import base64
import hashlib
import secrets
from collections.abc import Callable

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gantt.core.messages.request import Purpose, SelectDestinations
from gantt.core.zones.messages import ClaimBelow
from gantt.scheduler.ports.zones import ZoneIdentity

NONCE_BYTES, MEMBER_BYTES = 12, 8


class Receipt(msgspec.Struct, frozen=True, array_like=True):
    """The receipt of one allocation.

    :ivar members: its consumers, a few bytes of a digest of each
    """

    key: str
    members: list[bytes]
    purpose: Purpose
    project_id: str | None
    user_id: str | None
    consumer_type: str
    group: str | None
    resources: dict[str, int]

    def is_of(self, claim: ClaimBelow) -> bool:
        """Return whether such a claim was requested."""
        return self.key == claim.key and _member(claim.consumer) in self.members


_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Receipt)


class Receipts:
    """A sealer of receipts, by a secret that outlives an older copy of the database.  Any thread.

    :param identity: of this zone
    """

    def __init__(self, identity: Callable[[], ZoneIdentity]) -> None:
        self._identity = identity

    def sealed(self, child: str, request: SelectDestinations) -> str:
        """Return the sealed receipt of an allocation.

        :param child: uuid of the zone that it is requested of
        :param request: as it is sent there, with all that is known of it here
        """
        spec = request.spec
        receipt = Receipt(
            request.request_id,
            [_member(consumer) for consumer in request.consumers],
            spec.purpose,
            spec.project_id,
            spec.user_id,
            spec.consumer_type,
            None if spec.group is None else spec.group.uuid,
            spec.at_most,
        )
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._cipher().encrypt(nonce, _encoder.encode(receipt), child.encode())
        return base64.urlsafe_b64encode(nonce + sealed).decode()

    def opened(self, child: str, claim: ClaimBelow) -> Receipt | None:
        """Return the receipt of a claim; None: it was never requested of that zone."""
        try:
            message = base64.urlsafe_b64decode(claim.receipt)
            nonce, sealed = message[:NONCE_BYTES], message[NONCE_BYTES:]
            receipt = _decoder.decode(self._cipher().decrypt(nonce, sealed, child.encode()))
        except (ValueError, InvalidTag, msgspec.MsgspecError):
            return None
        return receipt if receipt.is_of(claim) else None

    def _cipher(self) -> AESGCM:
        """Return a cipher under a key of its own: no other seal here passes for a receipt."""
        secret = self._identity().secret
        return AESGCM(hashlib.blake2b(key=secret, person=b'receipts', digest_size=32).digest())


def _member(consumer: str) -> bytes:
    return hashlib.blake2b(consumer.encode(), digest_size=MEMBER_BYTES).digest()
