# SPDX-License-Identifier: Apache-2.0
"""Hosts that are registered in two zones, found without their names going from zone to zone.

Whoever looks draws a salt, and every zone answers with digests under it: of what a host is known
by, and of its registration.  Equal digests are equal hosts; nothing else can be read from them.  A
journal has a random id, and so has a node that names its own uuid: who does not know one cannot
guess it.  A name can be guessed, and a guess be tried.

Two registrations are of one host where their agents have one journal or one uuid, or one name and
not both a journal: two agents with a journal each are two machines.  The digest of the registration
is another one in each zone, so that a host that is reached by two ways is found once.
"""

import base64
import binascii
import hashlib
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: Bytes of one digest, and of the salt.
DIGEST_BYTES, SALT_BYTES = 8, 32
_NOTHING = bytes(DIGEST_BYTES)
_FIELDS = 4


class RegisteredHost(NamedTuple):
    """A host as it is known in its zone.

    :ivar journal: of its agent; '': it has none
    """

    name: str
    uuid: str
    journal: str


class HostMarks(NamedTuple):
    """Digests of one host, those of nothing empty.

    :ivar registration: of the host in its zone; the order of marks
    :ivar uuid: empty where the zone made it up out of the name
    """

    registration: bytes
    name: bytes
    journal: bytes
    uuid: bytes


class Twice(NamedTuple):
    """Two registrations of one host, each by its place in the list of its zone.

    :ivar by: what is the same: ``journal``, ``uuid`` or ``name``
    """

    first: HostMarks
    second: HostMarks
    by: str


def marks_of(host: RegisteredHost, zone: str, salt: bytes) -> HostMarks:
    """The digests of a host.

    :param zone: uuid of the zone that it is registered in
    """
    own = host.uuid if _is_own(host.uuid) else ''
    return HostMarks(
        _digest(salt, 'registration', zone, host.name),
        _digest(salt, 'name', host.name),
        _digest(salt, 'journal', host.journal) if host.journal else b'',
        _digest(salt, 'uuid', own) if own else b'',
    )


def twice(first: Sequence[HostMarks], second: Sequence[HostMarks]) -> list[Twice]:
    """Hosts of one list that are in the other by another registration."""
    found: dict[tuple[bytes, bytes], Twice] = {}
    for by in ('journal', 'uuid', 'name'):
        known: dict[bytes, list[HostMarks]] = {}
        for one in second:
            if mark := getattr(one, by):
                known.setdefault(mark, []).append(one)
        for one in first:
            for other in known.get(getattr(one, by), ()):
                pair = one.registration, other.registration
                if pair[0] == pair[1] or pair in found:
                    continue
                if by == 'name' and one.journal and other.journal:
                    continue
                found[pair] = Twice(one, other, by)
    return list(found.values())


def page(
    own: Iterable[HostMarks],
    below: Sequence[tuple[Sequence[HostMarks], bool]],
    after: bytes,
    most: int,
) -> tuple[list[HostMarks], bool]:
    """Marks behind a registration, in their order, each once; and whether there are more.

    :param below: of each zone below its own page behind it, and whether that has more
    """
    found = {one for one in own if one.registration > after}
    found.update(one for of, _ in below for one in of)
    # Behind the end of a page that is not the last one nothing is complete.
    ends = [of[-1].registration for of, more in below if more and of]
    ordered = sorted(one for one in found if not ends or one.registration <= min(ends))
    return ordered[:most], bool(ends) or len(ordered) > most


def written(marks: Iterable[HostMarks]) -> str:
    """Marks as text."""
    raw = b''.join(field.ljust(DIGEST_BYTES, b'\0') for one in marks for field in one)
    return base64.b64encode(raw).decode()


def read(text: str) -> list[HostMarks]:
    """Marks out of text.  :raises ValueError: it is not what ``written`` makes"""
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error as e:
        raise ValueError(f'marks of hosts: {e}') from None
    if len(raw) % (DIGEST_BYTES * _FIELDS):
        raise ValueError('marks of hosts: some are cut off')
    fields = [_field(raw, at) for at in range(0, len(raw), DIGEST_BYTES)]
    return [HostMarks(*fields[at : at + _FIELDS]) for at in range(0, len(fields), _FIELDS)]


def _field(raw: bytes, at: int) -> bytes:
    one = raw[at : at + DIGEST_BYTES]
    return b'' if one == _NOTHING else one


def _is_own(text: str) -> bool:
    """Whether a uuid is of the host itself: a zone makes one of version 5 up out of the name."""
    try:
        return uuid.UUID(text).version != 5
    except ValueError:
        return bool(text)


def _digest(salt: bytes, *parts: str) -> bytes:
    whole = '\0'.join(parts).encode()
    found = hashlib.blake2b(whole, digest_size=DIGEST_BYTES, key=salt).digest()
    return found if found != _NOTHING else b'\1'.ljust(DIGEST_BYTES, b'\0')
