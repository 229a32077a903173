# SPDX-License-Identifier: Apache-2.0
"""Host keys: authentication of a host's reports and registrations by signatures.

A host signs with Ed25519 (RFC 8032).  The signed value is one MessagePack array

    ["gantt message 1", method, host, epoch, sequence, body]

in the one encoding that MessagePack has for it when each number, text, list and map is written
as short as it can be, and the keys of a map are in the order of their UTF-8 bytes.  ``body``
is the argument as it is sent, without ``signature`` and ``proof``; a number is an integer where
its JSON has neither a fraction nor an exponent, else a float of 64 bits.  A registration has no
epoch yet: its epoch is 0, and its sequence the number in its proof.  So no signature
is valid for another host, in another epoch, or for another method.

The proof of a registration is text, its parts separated by a space:

    ed25519 NUMBER KEY SIGNATURE [OLDER-KEY ITS-SIGNATURE]...

with each older key's signature over the array ["gantt key 1", the key that came after it].
Keys and signatures are base64 for URLs without padding.  NUMBER grows with every registration.

The first key that a host registers with is its key from then on, until the host proves a
successor (a rotation) or an operator forgets or revokes it.

Hosts of Nova are reported by a report source, whose key is the key of all its hosts.  Messages
beside the reports are signed like a message of epoch 0: a list of guests with sequence 0, since
its times order it; a message of an agent next to nova-compute with its own sequence, which is
the number of its proof.  The agent's key differs from the source's, and is stored and replaced
the same way.
"""

import base64
import enum
import fnmatch
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.messages.report import RegisterHost

MESSAGE_DOMAIN, SUCCESSOR_DOMAIN = 'gantt message 1', 'gantt key 1'
ALGORITHM = 'ed25519'
KEY_BYTES, SIGNATURE_BYTES = 32, 64
#: Upper bound of earlier keys that a proof names.
OLDER_KEYS_MAX = 5
#: Upper bound of revoked keys that are stored for a host, the newest.
REVOKED_KEYS_MAX = 16
MESSAGE_NUMBER_MAX = 2**53
#: Fields that hold a signature, and are not signed.
UNSIGNED_FIELDS = ('signature', 'proof')

_encode = msgspec.msgpack.Encoder(order='deterministic').encode
_replace = msgspec.structs.replace


class SigningMode(enum.StrEnum):
    """Modes of accepting messages of a host."""

    OFF = 'off'  # all; nothing is verified and no key is stored
    KNOWN = 'known'  # of a host that has a key, only messages that it has signed
    REQUIRED = 'required'  # only signed messages


class SigningModes(msgspec.Struct, frozen=True):
    """The modes of hosts.

    :ivar of_hosts: patterns of names with their modes; the first that matches counts
    """

    mode: SigningMode = SigningMode.KNOWN
    of_hosts: tuple[tuple[str, SigningMode], ...] = ()

    def of(self, host: str) -> SigningMode:
        """Return the mode of one host."""
        for pattern, mode in self.of_hosts:
            if fnmatch.fnmatchcase(host, pattern):
                return mode
        return self.mode


class HostKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored key of a host.

    :ivar public: the key; '': there is none, or it was forgotten
    :ivar agent: the key of the agent next to nova-compute, '' if there is none
    :ivar number: number of the last registration that it has signed
    :ivar since: time at which it was stored, by the database's clock
    :ivar is_revoked: no report for the host is accepted until an operator forgets the key
    :ivar revoked: keys that are never accepted for this host again
    """

    public: str = ''
    agent: str = ''
    number: int = 0
    since: float = 0.0
    is_revoked: bool = False
    revoked: tuple[str, ...] = ()


#: Replaces an unreadable stored key: no report is accepted until an operator forgets it.
UNREADABLE_KEY = HostKey(is_revoked=True)


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Proof of a registration: its sender holds ``key``, the successor of ``older``.

    :ivar older: keys that passed on to the next one, the newest first
    """

    number: int
    key: str
    older: tuple[str, ...] = ()


class VerifiedRegistration(RegisterHost, frozen=True, kw_only=True):
    """A registration whose sender was verified; never sent.

    :ivar proven: None: it proves nothing
    """

    mode: SigningMode
    proven: Proof | None = None


class ProofParts(msgspec.Struct, frozen=True, kw_only=True):
    """A proof as it is written, before anything in it is verified."""

    number: int
    key: bytes
    signature: bytes
    older: tuple[tuple[bytes, bytes], ...] = ()


def signed_bytes(
    method: str, host: str, epoch: int, sequence: int, body: Mapping[str, Any]
) -> bytes:
    """Return the bytes that the signature of a message covers.

    :raises ValueError: the body has a value that no agent sends: a number beyond 64 bits, or
        half a character
    """
    signed = {key: value for key, value in body.items() if key not in UNSIGNED_FIELDS}
    return _encoded([MESSAGE_DOMAIN, method, host, epoch, sequence, signed])


def successor_bytes(newer: bytes) -> bytes:
    """Return the bytes that a key signs to authorise its successor."""
    return _encoded([SUCCESSOR_DOMAIN, key_text(newer)])


def _encoded(value: Any) -> bytes:
    try:
        return _encode(value)
    except (OverflowError, RecursionError) as e:
        raise ValueError(str(e)) from None


def key_text(value: bytes) -> str:
    """Return a key or a signature as it is sent."""
    return base64.urlsafe_b64encode(value).decode().rstrip('=')


def key_bytes(value: str, size: int) -> bytes | None:
    """Return a key or a signature from its text, None if it does not have ``size`` bytes."""
    try:
        raw = base64.b64decode(value + '=' * (-len(value) % 4), altchars=b'-_', validate=True)
    except (ValueError, TypeError):
        return None
    # One text for each value: unused bits of the last character must be zero.
    return raw if len(raw) == size and key_text(raw) == value else None


def fingerprint(public: str) -> str:
    """Return the fingerprint of a key: SHA256 and base64, as OpenSSH shows keys."""
    raw = key_bytes(public, KEY_BYTES) or b''
    digest = base64.b64encode(hashlib.sha256(raw).digest()).decode().rstrip('=')
    return f'SHA256:{digest}'


def proof_text(parts: ProofParts) -> str:
    """Return the proof as it is sent."""
    pieces = [ALGORITHM, str(parts.number), key_text(parts.key), key_text(parts.signature)]
    for key, signature in parts.older:
        pieces += [key_text(key), key_text(signature)]
    return ' '.join(pieces)


def parse_proof(proof: str) -> ProofParts | None:
    """Return the parts of a proof, None if the text is not a proof."""
    algorithm, *pieces = proof.split(' ')
    is_fit = (
        algorithm == ALGORITHM and 3 <= len(pieces) <= 3 + 2 * OLDER_KEYS_MAX and len(pieces) % 2
    )
    if not is_fit or not (pieces[0].isascii() and pieces[0].isdigit() and len(pieces[0]) <= 16):
        return None
    number = int(pieces[0])
    keys = [key_bytes(piece, KEY_BYTES) for piece in pieces[1::2]]
    signatures = [key_bytes(piece, SIGNATURE_BYTES) for piece in pieces[2::2]]
    pairs = [
        (key, signature)
        for key, signature in zip(keys, signatures, strict=True)
        if key is not None and signature is not None
    ]
    if len(pairs) != len(keys) or not 1 <= number <= MESSAGE_NUMBER_MAX:
        return None
    (key, signature), *older = pairs
    return ProofParts(number=number, key=key, signature=signature, older=tuple(older))


def key_after_registration(
    known_key: HostKey | None, message: RegisterHost, *, is_repeat: bool, now: float
) -> HostKey | None:
    """Return the key to store after a registration.

    :param known_key: None: the host has none
    :param is_repeat: it is the registration that was accepted last
    :raises NotProven: the sender is not the host; nothing may change
    """
    if not isinstance(message, VerifiedRegistration) or message.mode is SigningMode.OFF:
        return known_key
    if known_key is not None and known_key.is_revoked:
        raise revoked_key_error(message.name)
    proven = message.proven
    if proven is None:
        if (known_key is not None and known_key.public) or message.mode is SigningMode.REQUIRED:
            raise unsigned_error(message.name, known_key)
        return known_key
    revoked = () if known_key is None else known_key.revoked
    if known_key is None or not known_key.public:
        if proven.key in revoked:
            raise exceptions.NotProven(
                host=message.name,
                problem='its registration has a key that was revoked',
                fix='Let the host make another one: remove the key file there, restart the agent',
            )
        agent_key = '' if known_key is None else known_key.agent
        return HostKey(
            public=proven.key, agent=agent_key, number=proven.number, since=now, revoked=revoked
        )
    if proven.key == known_key.public:
        if proven.number <= known_key.number and not is_repeat:
            raise exceptions.NotProven(
                host=message.name,
                problem=f'its registration {proven.number} comes after number {known_key.number}',
                fix='Is its clock right?',
                current=known_key.number,
            )
        return _replace(known_key, number=max(proven.number, known_key.number))
    if known_key.public in proven.older and proven.key not in revoked:
        return _replace(known_key, public=proven.key, number=proven.number, since=now)
    raise _another_agent_error(message.name)


def key_after_agent_message(
    known_key: HostKey | None, host: str, mode: SigningMode, proven: Proof | None
) -> HostKey | None:
    """Return the keys to store after a message of an agent next to nova-compute.

    :param known_key: None: the host has none
    :param proven: None: it proves nothing
    :raises NotProven: the sender is not that agent; nothing may change
    """
    if mode is SigningMode.OFF:
        return known_key
    stored = known_key or HostKey()
    if stored.is_revoked:
        raise revoked_key_error(host)
    if proven is None:
        if stored.agent or stored.public or mode is SigningMode.REQUIRED:
            raise unsigned_error(host, known_key)
        return known_key
    is_fit = not stored.agent or stored.agent in (proven.key, *proven.older)
    if not is_fit or proven.key in stored.revoked:
        raise _another_agent_error(host)
    return _replace(stored, agent=proven.key)


def _another_agent_error(host: str) -> exceptions.NotProven:
    return exceptions.NotProven(
        host=host,
        problem='it comes with another key than it had',
        fix='Was the host installed anew, or its key file lost, run "gantt-manage host key '
        f'forget {host}"',
    )


def unsigned_error(host: str, known_key: HostKey | None) -> exceptions.NotProven:
    """Return the error for a message without a signature."""
    if known_key is None or not known_key.public:
        return exceptions.NotProven(
            host=host,
            problem='it has no key yet, and is to have one',
            fix='Let it register with one: [compute] sign_messages of its agent',
        )
    return exceptions.NotProven(
        host=host,
        problem='the message is not signed, and the host has a key',
        fix='Is its agent without [compute] sign_messages, run '
        f'"gantt-manage host key forget {host}"',
    )


def revoked_key_error(host: str) -> exceptions.NotProven:
    """Return the error for a message of a host whose key was revoked."""
    return exceptions.NotProven(
        host=host,
        problem='its key was revoked',
        fix=f'Let the host make another one, then run "gantt-manage host key forget {host}"',
    )


def revoked_key(known_key: HostKey) -> HostKey:
    """Return the revoked key, which blocks reports until forgotten and is never accepted again."""
    present = [key for key in (known_key.public, known_key.agent) if key]
    keys = tuple(dict.fromkeys((*known_key.revoked, *present)))[-REVOKED_KEYS_MAX:]
    return _replace(known_key, is_revoked=True, revoked=keys)


def forgotten_key(known_key: HostKey) -> HostKey | None:
    """Return the record of a forgotten key: the next key that is not revoked is accepted."""
    return HostKey(revoked=known_key.revoked) if known_key.revoked else None
