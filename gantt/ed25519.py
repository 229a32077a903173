# SPDX-License-Identifier: Apache-2.0
"""Signatures of hosts, created and verified; ``core.resources.host_keys`` has what they cover."""

import functools

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from gantt.core.resources import host_keys
from gantt.core.resources.host_keys import KEY_BYTES, SIGNATURE_BYTES, Proof, ProofParts


@functools.lru_cache(maxsize=32_768)
def _load_public_key(raw: bytes) -> Ed25519PublicKey:
    return Ed25519PublicKey.from_public_bytes(raw)


def _is_signature_of(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        _load_public_key(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def is_signed(public: str, signature: str, message: bytes) -> bool:
    """Return whether ``signature`` is that of the key ``public`` over the bytes ``message``."""
    key = host_keys.key_bytes(public, KEY_BYTES)
    raw = host_keys.key_bytes(signature, SIGNATURE_BYTES)
    return key is not None and raw is not None and _is_signature_of(key, raw, message)


def verify_proof(parts: ProofParts, message: bytes) -> Proof | None:
    """Return number, key and older keys of a proof; None where a signature in it is wrong.

    :param message: the bytes of the registration
    """
    if not _is_signature_of(parts.key, parts.signature, message):
        return None
    newer = parts.key
    for key, signature in parts.older:
        if not _is_signature_of(key, signature, host_keys.successor_bytes(newer)):
            return None
        newer = key
    return Proof(
        number=parts.number,
        key=host_keys.key_text(parts.key),
        older=tuple(host_keys.key_text(key) for key, _ in parts.older),
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

    def sign(self, message: bytes) -> bytes:
        """Return the key's signature over the bytes ``message``."""
        return self._key.sign(message)
