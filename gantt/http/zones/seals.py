# SPDX-License-Identifier: Apache-2.0
"""Tokens: what a zone says to a parent that the parent cannot read, and nobody can change.

``g1.`` and, in base64, a nonce with what AES-GCM (NIST SP 800-38D) makes of the rest.  A token is
bound to the parent, and where it is an offer to the request and its consumers; the database's
incarnation is in it, so that nothing outlives a database that was put back.  A token authorises
nothing: what it names is judged when it is claimed.
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
from gantt.scheduler.ports import ZoneIdentity

PREFIX = 'g1.'
NONCE_BYTES, MEMBER_BYTES = 12, 6
#: For how long an offer may be claimed, and a place be redeemed.
OFFER_SECONDS, PLACE_SECONDS = 30.0, 86_400.0


class SealedOffer(msgspec.Struct, frozen=True, array_like=True, tag='offer'):
    """Places for one request.

    :ivar digest: of what was asked for
    :ivar epochs: of the hosts, in their order: a host that has registered since is another one
    :ivar members: the consumers that it was asked for, see ``members_of``: it is good for no other
    :ivar generations: likewise; one that has another by now is tried after the others
    """

    place: OfferedPlace
    evaluated: str
    digest: str
    epochs: list[int]
    members: bytes = b''
    generations: list[int] = []


class SealedPlace(msgspec.Struct, frozen=True, array_like=True, tag='place'):
    """The place of a member that was claimed.

    :ivar child: name of the zone below that has it; '': this one
    :ivar place: sealed by that zone
    """

    claim_id: str
    child: str = ''
    place: str = ''


class SealedAlternate(msgspec.Struct, frozen=True, array_like=True, tag='alternate'):
    """Another host for a member, on which nothing is claimed.

    :ivar host: of this zone; '': it is in the zone below
    :ivar child: name of the zone below that has it; '': this one
    :ivar place: sealed by that zone
    """

    consumer: str
    host: str = ''
    child: str = ''
    place: str = ''


#: What can be sealed.
Sealable = SealedOffer | SealedPlace | SealedAlternate


class _Sealed(msgspec.Struct, frozen=True, array_like=True):
    good_until: float
    incarnation: int
    what: Annotated[Sealable, 'by its tag']


_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_Sealed)


def members_of(consumers: Iterable[str]) -> list[bytes]:
    """Consumers in few bytes each: a token has those of all levels."""
    return [hashlib.blake2b(one.encode(), digest_size=MEMBER_BYTES).digest() for one in consumers]


def is_for(offer: SealedOffer, consumers: Iterable[str]) -> bool:
    """Whether it was asked for all of these consumers."""
    members, size = offer.members, MEMBER_BYTES
    known = {members[first : first + size] for first in range(0, len(members), size)}
    return known.issuperset(members_of(consumers))


class Seals:
    """Seals and opens by the secret of this zone.

    :param identity: of this zone
    """

    def __init__(self, identity: ZoneIdentity) -> None:
        self._cipher, self._incarnation = AESGCM(identity.secret), identity.incarnation

    def seal(self, what: Sealable, parent: str, now: float) -> str:
        """A token for a parent.

        :param now: of the database's clock
        """
        seconds = OFFER_SECONDS if isinstance(what, SealedOffer) else PLACE_SECONDS
        plain = _encoder.encode(_Sealed(now + seconds, self._incarnation, what))
        nonce = secrets.token_bytes(NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, plain, parent.encode())
        return PREFIX + base64.urlsafe_b64encode(nonce + sealed).decode().rstrip('=')

    def open_offer(self, token: str, parent: str, now: float) -> SealedOffer:
        """The offer that a token is.

        :raises TokenRefused: whatever is wrong with it: why is nobody's business
        """
        found = self._good(token, parent, now)
        if not isinstance(found, SealedOffer):
            raise exceptions.TokenRefused()
        return found

    def open_place(self, token: str, parent: str, now: float) -> SealedPlace | SealedAlternate:
        """The place that a token is.  :raises TokenRefused: likewise"""
        found = self._good(token, parent, now)
        if isinstance(found, SealedOffer):
            raise exceptions.TokenRefused()
        return found

    def _good(self, token: str, parent: str, now: float) -> Sealable:
        found = self._opened(token, parent)
        if found is None or found.incarnation != self._incarnation or found.good_until < now:
            raise exceptions.TokenRefused()
        return found.what

    def _opened(self, token: str, parent: str) -> _Sealed | None:
        if not token.startswith(PREFIX) or not token.isascii():
            return None
        text = token[len(PREFIX) :]
        try:
            whole = base64.b64decode(text + '=' * (-len(text) % 4), altchars=b'-_', validate=True)
            plain = self._cipher.decrypt(whole[:NONCE_BYTES], whole[NONCE_BYTES:], parent.encode())
            return _decoder.decode(plain)
        except (ValueError, InvalidTag, msgspec.MsgspecError):
            return None
