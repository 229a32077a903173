# SPDX-License-Identifier: Apache-2.0
"""Detection of hosts registered in two zones, without disclosing names between zones.

The querying zone draws a salt, and every zone answers with digests under it: of a host's
identifiers, and of its registration.  Equal digests are equal hosts; nothing else can be read from
them.  A journal has a random id, and so has a node that names its own uuid: neither can be guessed.
A name can be guessed, and a guess be tried.

Two registrations are of one host if their agents have the same journal or uuid, or the same name
and not both a journal: two agents with a journal each are two machines.  The digest of the
registration differs by zone, so that a host that is reached by two paths is found once.
"""

import base64
import binascii
import hashlib
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: Length of one digest, and of the salt, in bytes.
DIGEST_BYTES, SALT_BYTES = 8, 32
_NOTHING = bytes(DIGEST_BYTES)
_FIELDS = 4


class RegisteredHost(NamedTuple):
    """A host as it is known in its zone.

    :ivar journal: journal id of its agent; '': it has none
    """

    name: str
    uuid: str
    journal: str


class HostDigests(NamedTuple):
    """Digests of one host; missing identifiers are empty.

    :ivar registration: of the host in its zone; marks are sorted by it
    :ivar uuid: empty if the zone derived it from the name
    """

    registration: bytes
    name: bytes
    journal: bytes
    uuid: bytes


class Twice(NamedTuple):
    """Two registrations of one host, each by its marks.

    :ivar by: the equal identifier: ``journal``, ``uuid`` or ``name``
    """

    first: HostDigests
    second: HostDigests
    by: str


def digests_of(host: RegisteredHost, zone: str, salt: bytes) -> HostDigests:
    """Return the digests of a host.

    :param zone: uuid of the zone that it is registered in
    """
    own_uuid = host.uuid if _is_own(host.uuid) else ''
    return HostDigests(
        _digest(salt, 'registration', zone, host.name),
        _digest(salt, 'name', host.name),
        _digest(salt, 'journal', host.journal) if host.journal else b'',
        _digest(salt, 'uuid', own_uuid) if own_uuid else b'',
    )


def twice(first: Sequence[HostDigests], second: Sequence[HostDigests]) -> list[Twice]:
    """Return the hosts of one list that are in the other with another registration."""
    pairs: dict[tuple[bytes, bytes], Twice] = {}
    for by in ('journal', 'uuid', 'name'):
        marks_by_digest: dict[bytes, list[HostDigests]] = {}
        for host_marks in second:
            if mark := getattr(host_marks, by):
                marks_by_digest.setdefault(mark, []).append(host_marks)
        for host_marks in first:
            for same_marks in marks_by_digest.get(getattr(host_marks, by), ()):
                pair = host_marks.registration, same_marks.registration
                if pair[0] == pair[1] or pair in pairs:
                    continue
                if by == 'name' and host_marks.journal and same_marks.journal:
                    continue
                pairs[pair] = Twice(host_marks, same_marks, by)
    return list(pairs.values())


def page(
    own: Iterable[HostDigests],
    below: Sequence[tuple[Sequence[HostDigests], bool]],
    after: bytes,
    most: int,
) -> tuple[list[HostDigests], bool]:
    """Return the marks after a registration, sorted and unique, and whether there are more.

    :param below: page of each child zone after the registration, and whether it has more
    """
    marks = {host_marks for host_marks in own if host_marks.registration > after}
    marks.update(host_marks for page_marks, _ in below for host_marks in page_marks)
    # Marks after the end of a page that is not the last one are incomplete.
    ends = [
        page_marks[-1].registration for page_marks, has_more in below if has_more and page_marks
    ]
    ordered = sorted(
        host_marks for host_marks in marks if not ends or host_marks.registration <= min(ends)
    )
    return ordered[:most], bool(ends) or len(ordered) > most


def written(marks: Iterable[HostDigests]) -> str:
    """Return marks as text."""
    raw = b''.join(field.ljust(DIGEST_BYTES, b'\0') for host_marks in marks for field in host_marks)
    return base64.b64encode(raw).decode()


def read(text: str) -> list[HostDigests]:
    """Return marks from text.

    :raises ValueError: the text is not the output of ``written``
    """
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error as e:
        raise ValueError(f'marks of hosts: {e}') from None
    if len(raw) % (DIGEST_BYTES * _FIELDS):
        raise ValueError('marks of hosts: some are cut off')
    fields = [_field(raw, start) for start in range(0, len(raw), DIGEST_BYTES)]
    return [
        HostDigests(*fields[start : start + _FIELDS]) for start in range(0, len(fields), _FIELDS)
    ]


def _field(raw: bytes, at: int) -> bytes:
    field = raw[at : at + DIGEST_BYTES]
    return b'' if field == _NOTHING else field


def _is_own(text: str) -> bool:
    """Return whether a uuid is the host's own: zones derive uuids of version 5 from the name."""
    try:
        return uuid.UUID(text).version != 5
    except ValueError:
        return bool(text)


def _digest(salt: bytes, *parts: str) -> bytes:
    joined = '\0'.join(parts).encode()
    digest = hashlib.blake2b(joined, digest_size=DIGEST_BYTES, key=salt).digest()
    return digest if digest != _NOTHING else b'\1'.ljust(DIGEST_BYTES, b'\0')
