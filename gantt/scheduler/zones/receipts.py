# SPDX-License-Identifier: Apache-2.0
"""What this zone has asked of one below, sealed for itself: that is believed no more than that.

It goes down with each allocation and comes back with each change of a claim.  Where the claim was
forgotten here, as the database went back, it says whose that is and what it takes; of a claim
without one the zone below has made up that it is ours.  Nothing in it is told to that zone.
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
    """One allocation.

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
        """Whether such a claim was asked for."""
        return self.key == claim.key and _member(claim.consumer) in self.members


_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Receipt)


class Receipts:
    """Seals and opens them, by a secret that outlives an older copy of the database.  Any thread.

    :param identity: of this zone
    """

    def __init__(self, identity: Callable[[], ZoneIdentity]) -> None:
        self._identity = identity

    def sealed(self, child: str, request: SelectDestinations) -> str:
        """Of an allocation.

        :param child: uuid of the zone that it is asked of
        :param request: as it is sent there, with all that is known of it here
        """
        spec = request.spec
        receipt = Receipt(
            request.request_id,
            [_member(one) for one in request.consumers],
            spec.purpose,
            spec.project_id,
            spec.user_id,
            spec.consumer_type,
            None if spec.group is None else spec.group.uuid,
            spec.at_most,
        )
        nonce = secrets.token_bytes(NONCE_BYTES)
        made = self._cipher().encrypt(nonce, _encoder.encode(receipt), child.encode())
        return base64.urlsafe_b64encode(nonce + made).decode()

    def opened(self, child: str, claim: ClaimBelow) -> Receipt | None:
        """That of a claim; None: that zone was never asked for it."""
        try:
            whole = base64.urlsafe_b64decode(claim.receipt)
            nonce, made = whole[:NONCE_BYTES], whole[NONCE_BYTES:]
            found = _decoder.decode(self._cipher().decrypt(nonce, made, child.encode()))
        except (ValueError, InvalidTag, msgspec.MsgspecError):
            return None
        return found if found.is_of(claim) else None

    def _cipher(self) -> AESGCM:
        """Under a key of its own: nothing else that this zone seals is taken for a receipt."""
        secret = self._identity().secret
        return AESGCM(hashlib.blake2b(key=secret, person=b'receipts', digest_size=32).digest())


def _member(consumer: str) -> bytes:
    return hashlib.blake2b(consumer.encode(), digest_size=MEMBER_BYTES).digest()
