# SPDX-License-Identifier: Apache-2.0
"""Sealed tokens of a zone for a parent, which it cannot read, and which cannot be changed.

``g1.`` and, in base64, a nonce with the output of AES-GCM (NIST SP 800-38D) of the rest.  A token
is bound to the parent, and where it is an offer to the request and its consumers; the database's
incarnation is in it, so that no token outlives a database that was restored from an older copy.  A
token authorises nothing: the place that it names is checked when it is claimed.
"""

import base64
import hashlib
import secrets
from collections.abc import Iterable
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gantt import exceptions
from gantt.core.messages.request import OfferedPlace
from gantt.zones.ports import ZoneIdentity

TOKEN_PREFIX = 'g1.'  # nosec B105 # no password
NONCE_BYTES, MEMBER_BYTES = 12, 6
#: Seconds for which an offer may be claimed, and a sealed host be unsealed.
OFFER_SECONDS, HOST_SECONDS = 30.0, 86_400.0


class SealedOffer(msgspec.Struct, frozen=True, array_like=True, tag='offer'):
    """Places for one request.

    :ivar digest: of the request
    :ivar epochs: epochs of the hosts, in their order: a host that has registered since counts as
        another
    :ivar members: the consumers that it is for, see ``consumer_digests``: it is good for no other
    :ivar generations: generations of the hosts; a host with another generation by now is tried
        after others
    """

    place: OfferedPlace
    evaluated: str
    digest: str
    epochs: list[int]
    members: bytes = b''
    generations: list[int] = []


class SealedClaim(msgspec.Struct, frozen=True, array_like=True, tag='claim'):
    """The claim of a member.

    :ivar child: name of the child zone that has it; '': this one
    :ivar sealed_host: sealed by that zone
    """

    claim_id: str
    child: str = ''
    sealed_host: str = ''


class SealedAlternate(msgspec.Struct, frozen=True, array_like=True, tag='alternate'):
    """Another host for a member, on which nothing is claimed.

    :ivar host: name of the host in this zone; '': it is in the child zone
    :ivar child: name of the child zone that has it; '': this one
    :ivar sealed_host: sealed by that zone
    """

    consumer: str
    host: str = ''
    child: str = ''
    sealed_host: str = ''


#: Types that can be sealed.
Sealable = SealedOffer | SealedClaim | SealedAlternate


class _Sealed(msgspec.Struct, frozen=True, array_like=True):
    good_until: float
    incarnation: int
    what: Annotated[Sealable, 'by its tag']


_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_Sealed)


def consumer_digests(consumers: Iterable[str]) -> list[bytes]:
    """Return digests of consumers in few bytes each: a token has those of all levels."""
    return [
        hashlib.blake2b(consumer.encode(), digest_size=MEMBER_BYTES).digest()
        for consumer in consumers
    ]


def is_offered_to(offer: SealedOffer, consumers: Iterable[str]) -> bool:
    """Return whether an offer was requested for all these consumers."""
    members, size = offer.members, MEMBER_BYTES
    digests = {members[first : first + size] for first in range(0, len(members), size)}
    return digests.issuperset(consumer_digests(consumers))


class TokenSealer:
    """A sealer and opener of tokens by the secret of this zone.

    :param identity: of this zone
    """

    def __init__(self, identity: ZoneIdentity) -> None:
        self._cipher = AESGCM(identity.secret)
        self._incarnation = identity.incarnation

    def seal(self, what: Sealable, parent: str, now: float) -> str:
        """Return a token for a parent.

        :param now: time by the database's clock
        """
        seconds = OFFER_SECONDS if isinstance(what, SealedOffer) else HOST_SECONDS
        plain = _encoder.encode(_Sealed(now + seconds, self._incarnation, what))
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, plain, parent.encode())
        return TOKEN_PREFIX + base64.urlsafe_b64encode(nonce + sealed).decode().rstrip('=')

    def open_offer(self, token: str, parent: str, now: float) -> SealedOffer:
        """Return the offer of a token.

        :raises TokenRefused: for any fault of it, without a reason
        """
        sealed = self._open_valid(token, parent, now)
        if not isinstance(sealed, SealedOffer):
            raise exceptions.TokenRefused()
        return sealed

    def open_host(self, token: str, parent: str, now: float) -> SealedClaim | SealedAlternate:
        """Return the claim or alternate of a token.

        :raises TokenRefused: for any fault of the token, without a reason
        """
        sealed = self._open_valid(token, parent, now)
        if isinstance(sealed, SealedOffer):
            raise exceptions.TokenRefused()
        return sealed

    def _open_valid(self, token: str, parent: str, now: float) -> Sealable:
        sealed = self._decrypted(token, parent)
        if sealed is None or sealed.incarnation != self._incarnation or sealed.good_until < now:
            raise exceptions.TokenRefused()
        return sealed.what

    def _decrypted(self, token: str, parent: str) -> _Sealed | None:
        if not token.startswith(TOKEN_PREFIX) or not token.isascii():
            return None
        text = token[len(TOKEN_PREFIX) :]
        try:
            message = base64.b64decode(text + '=' * (-len(text) % 4), altchars=b'-_', validate=True)
            plain = self._cipher.decrypt(
                message[:NONCE_BYTES], message[NONCE_BYTES:], parent.encode()
            )
            return _decoder.decode(plain)
        except (ValueError, InvalidTag, msgspec.MsgspecError):
            return None
