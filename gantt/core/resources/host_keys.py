# SPDX-License-Identifier: Apache-2.0
"""Who may report for a host: its key, what a signature covers, and who may register.

A host signs with Ed25519 (RFC 8032).  What it signs is one MessagePack array

    ["gantt message 1", method, host, epoch, sequence, body]

in the one encoding that MessagePack has for it when each number, text, list and map is written
as short as it can be, and the keys of a map stand in the order of their UTF-8 bytes.  ``body``
is the argument as it is sent, without ``signature`` and ``proof``; a number is an integer where
its JSON has neither a fraction nor an exponent, else a float of 64 bits.  A registration has no
epoch yet: its epoch is 0, and its sequence the number in its proof.  So nothing that was signed
counts for another host, in another epoch, or as another method.

The proof of a registration is text, its parts separated by a space:

    ed25519 NUMBER KEY SIGNATURE [OLDER-KEY ITS-SIGNATURE]...

with each older key's signature over the array ["gantt key 1", the key that came after it].
Keys and signatures are base64 for URLs without padding.  NUMBER grows with every registration.

The first key that a host registers with is its key from then on, until the host shows that it
has another one (a rotation) or an operator forgets or revokes it.

For hosts of Nova a report source speaks: its key is that of all its hosts.  What no report has
room for is signed like a message of epoch 0: a list of guests with sequence 0, as its times put
it in order; what an agent next to nova-compute tells with its own sequence, which is the number
of its proof.  The agent's key is another one than the source's, kept and replaced the same way.
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

MESSAGE, LINK = 'gantt message 1', 'gantt key 1'
ALGORITHM = 'ed25519'
KEY_BYTES, SIGNATURE_BYTES = 32, 64
#: Keys before the present one that a proof names.
OLDER_MOST = 5
#: Revoked keys that are remembered of a host, the newest.
REVOKED_MOST = 16
NUMBER_MOST = 2**53
#: Fields that hold a signature, and are not signed.
UNSIGNED = ('signature', 'proof')

_encode = msgspec.msgpack.Encoder(order='deterministic').encode
_replace = msgspec.structs.replace


class Mode(enum.StrEnum):
    """Which messages of a host are taken."""

    OFF = 'off'  # all; nothing is verified and no key is kept
    KNOWN = 'known'  # of a host that has a key only those that it has signed
    REQUIRED = 'required'  # only those that are signed


class Rules(msgspec.Struct, frozen=True):
    """The modes of hosts.

    :ivar of_hosts: patterns of names with their modes; the first that matches counts
    """

    mode: Mode = Mode.KNOWN
    of_hosts: tuple[tuple[str, Mode], ...] = ()

    def of(self, host: str) -> Mode:
        """The mode of one host."""
        for pattern, mode in self.of_hosts:
            if fnmatch.fnmatchcase(host, pattern):
                return mode
        return self.mode


class HostKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is kept of the key of a host.

    :ivar public: the key; '': there is none, or it was forgotten
    :ivar beside: the key of the agent next to nova-compute, '' where none has come
    :ivar number: of the last registration that it has signed
    :ivar since: when it was kept, by the database's clock
    :ivar is_revoked: nobody reports for the host until an operator forgets the key
    :ivar revoked: keys that are never taken for this host again
    """

    public: str = ''
    beside: str = ''
    number: int = 0
    since: float = 0.0
    is_revoked: bool = False
    revoked: tuple[str, ...] = ()


#: In place of a stored key that cannot be read: nobody reports until an operator forgets it.
UNREADABLE = HostKey(is_revoked=True)


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What a registration proves: its sender holds ``key``, which came after ``older``.

    :ivar older: keys that passed on to the next one, the newest first
    """

    number: int
    key: str
    older: tuple[str, ...] = ()


class Introduced(RegisterHost, frozen=True, kw_only=True):
    """A registration whose sender was looked at; never sent.

    :ivar proven: None: it proves nothing
    """

    mode: Mode
    proven: Proof | None = None


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """A proof as it is written, before anything in it is verified."""

    number: int
    key: bytes
    signature: bytes
    older: tuple[tuple[bytes, bytes], ...] = ()


def signed_bytes(
    method: str, host: str, epoch: int, sequence: int, body: Mapping[str, Any]
) -> bytes:
    """The bytes that the signature of a message covers.

    :raises ValueError: the body has what no agent sends: a number beyond 64 bits, half a
        character
    """
    signed = {key: value for key, value in body.items() if key not in UNSIGNED}
    return _encoded([MESSAGE, method, host, epoch, sequence, signed])


def link(newer: bytes) -> bytes:
    """The bytes that a key signs to pass on to a newer one."""
    return _encoded([LINK, text(newer)])


def _encoded(value: Any) -> bytes:
    try:
        return _encode(value)
    except (OverflowError, RecursionError) as e:
        raise ValueError(str(e)) from None


def text(value: bytes) -> str:
    """A key or a signature as it is sent."""
    return base64.urlsafe_b64encode(value).decode().rstrip('=')


def read(value: str, size: int) -> bytes | None:
    """A key or a signature out of its text, None where it is none of ``size`` bytes."""
    try:
        found = base64.b64decode(value + '=' * (-len(value) % 4), altchars=b'-_', validate=True)
    except (ValueError, TypeError):
        return None
    # One text for each value: nothing is hidden in the bits that the last character leaves over.
    return found if len(found) == size and text(found) == value else None


def fingerprint(public: str) -> str:
    """A key as people compare it: SHA256 and base64, as OpenSSH shows keys."""
    raw = read(public, KEY_BYTES) or b''
    digest = base64.b64encode(hashlib.sha256(raw).digest()).decode().rstrip('=')
    return f'SHA256:{digest}'


def written(parts: Parts) -> str:
    """The proof as it is sent."""
    pieces = [ALGORITHM, str(parts.number), text(parts.key), text(parts.signature)]
    for key, signature in parts.older:
        pieces += [text(key), text(signature)]
    return ' '.join(pieces)


def parse(proof: str) -> Parts | None:
    """The parts of a proof, None where it is none."""
    algorithm, *pieces = proof.split(' ')
    is_fit = algorithm == ALGORITHM and 3 <= len(pieces) <= 3 + 2 * OLDER_MOST and len(pieces) % 2
    if not is_fit or not (pieces[0].isascii() and pieces[0].isdigit() and len(pieces[0]) <= 16):
        return None
    number = int(pieces[0])
    keys = [read(one, KEY_BYTES) for one in pieces[1::2]]
    signatures = [read(one, SIGNATURE_BYTES) for one in pieces[2::2]]
    pairs = [
        (key, signature)
        for key, signature in zip(keys, signatures, strict=True)
        if key is not None and signature is not None
    ]
    if len(pairs) != len(keys) or not 1 <= number <= NUMBER_MOST:
        return None
    (key, signature), *older = pairs
    return Parts(number=number, key=key, signature=signature, older=tuple(older))


def admitted(
    known_key: HostKey | None, message: RegisterHost, *, is_repeat: bool, now: float
) -> HostKey | None:
    """The key to keep after a registration.

    :param known_key: None: the host has none
    :param is_repeat: it is the registration that was taken last
    :raises NotProven: it is not the host's; nothing may change
    """
    if not isinstance(message, Introduced) or message.mode is Mode.OFF:
        return known_key
    if known_key is not None and known_key.is_revoked:
        raise was_revoked(message.name)
    proven = message.proven
    if proven is None:
        if (known_key is not None and known_key.public) or message.mode is Mode.REQUIRED:
            raise unsigned(message.name, known_key)
        return known_key
    revoked = () if known_key is None else known_key.revoked
    if known_key is None or not known_key.public:
        if proven.key in revoked:
            raise exceptions.NotProven(
                host=message.name,
                problem='it comes with a key that was revoked',
                fix='Let the host make another one: remove the key file there, restart the agent',
            )
        also = '' if known_key is None else known_key.beside
        return HostKey(
            public=proven.key, beside=also, number=proven.number, since=now, revoked=revoked
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
    raise _another(message.name)


def admitted_agent(
    known_key: HostKey | None, host: str, mode: Mode, proven: Proof | None
) -> HostKey | None:
    """The keys to keep after a message of an agent next to nova-compute.

    :param known_key: None: the host has none
    :param proven: None: it proves nothing
    :raises NotProven: it is not that agent's; nothing may change
    """
    if mode is Mode.OFF:
        return known_key
    known = known_key or HostKey()
    if known.is_revoked:
        raise was_revoked(host)
    if proven is None:
        if known.beside or known.public or mode is Mode.REQUIRED:
            raise unsigned(host, known_key)
        return known_key
    is_fit = not known.beside or known.beside in (proven.key, *proven.older)
    if not is_fit or proven.key in known.revoked:
        raise _another(host)
    return _replace(known, beside=proven.key)


def _another(host: str) -> exceptions.NotProven:
    return exceptions.NotProven(
        host=host,
        problem='it comes with another key than it had',
        fix='Was the host installed anew, or its key file lost, run "gantt-manage host key '
        f'forget {host}"',
    )


def unsigned(host: str, known_key: HostKey | None) -> exceptions.NotProven:
    """Why a message without a signature is not taken."""
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


def was_revoked(host: str) -> exceptions.NotProven:
    """Why no message of a host whose key was revoked is taken."""
    return exceptions.NotProven(
        host=host,
        problem='its key was revoked',
        fix=f'Let the host make another one, then run "gantt-manage host key forget {host}"',
    )


def revoked(known_key: HostKey) -> HostKey:
    """Nobody reports for the host until the key is forgotten, and it is never taken again."""
    present = [key for key in (known_key.public, known_key.beside) if key]
    keys = tuple(dict.fromkeys((*known_key.revoked, *present)))[-REVOKED_MOST:]
    return _replace(known_key, is_revoked=True, revoked=keys)


def forgotten(known_key: HostKey) -> HostKey | None:
    """The next key that the host registers with is taken, but for those that were revoked."""
    return HostKey(revoked=known_key.revoked) if known_key.revoked else None
