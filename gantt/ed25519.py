# SPDX-License-Identifier: Apache-2.0
"""Signatures of hosts, created and verified; ``core.resources.host_keys`` has what they cover."""

import functools

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gantt.core.resources import host_keys
from gantt.core.resources.host_keys import KEY_BYTES, SIGNATURE_BYTES, Parts, Proof


@functools.lru_cache(maxsize=32_768)
def _public(raw: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(raw)


def _is_of(key: bytes, signature: bytes, stated: bytes) -> bool:
    try:
        _public(key).verify(signature, stated)
    except (InvalidSignature, ValueError):
        return False
    return True


def is_signed(public: str, signature: str, stated: bytes) -> bool:
    """Return whether ``signature`` is of that key, over these bytes."""
    key = host_keys.read(public, KEY_BYTES)
    raw = host_keys.read(signature, SIGNATURE_BYTES)
    return key is not None and raw is not None and _is_of(key, raw, stated)


def proven(parts: Parts, stated: bytes) -> Proof | None:
    """Return what a proof proves, None where a signature in it is wrong.

    :param stated: the bytes of the registration
    """
    if not _is_of(parts.key, parts.signature, stated):
        return None
    newer = parts.key
    for key, signature in parts.older:
        if not _is_of(key, signature, host_keys.link(newer)):
            return None
        newer = key
    return Proof(
        number=parts.number,
        key=host_keys.text(parts.key),
        older=tuple(host_keys.text(key) for key, _ in parts.older),
    )


class PrivateKey:
    """A key that signs.

    :param raw: 32 bytes; None: a new one
    """

    def __init__(self, raw: bytes | None = None) -> None:
        if raw is None:
            self._key = Ed25519PrivateKey.generate()
        else:
            self._key = Ed25519PrivateKey.from_private_bytes(raw)
        self.public: bytes = self._key.public_key().public_bytes_raw()

    @property
    def raw(self) -> bytes:
        """The secret itself."""
        return self._key.private_bytes_raw()

    def sign(self, stated: bytes) -> bytes:
        """Return the signature over these bytes."""
        return self._key.sign(stated)
