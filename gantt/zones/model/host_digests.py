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
_NO_DIGEST = bytes(DIGEST_BYTES)
_DIGESTS_PER_HOST = 4


class RegisteredHost(NamedTuple):
    """A host as it is known in its zone.

    :ivar journal: journal id of its agent; '': it has none
    """

    name: str
    uuid: str
    journal: str


class HostDigests(NamedTuple):
    """Digests of one host; missing identifiers are empty.

    :ivar registration: digest of the host's registration in its zone, by which lists are sorted
    :ivar uuid: empty if the zone derived it from the name
    """

    registration: bytes
    name: bytes
    journal: bytes
    uuid: bytes


class DoubleRegistration(NamedTuple):
    """Two registrations of one host, each by its digests.

    :ivar by: the equal identifier: ``journal``, ``uuid`` or ``name``
    """

    first: HostDigests
    second: HostDigests
    identifier: str


def digests_of(host: RegisteredHost, zone: str, salt: bytes) -> HostDigests:
    """Return the digests of a host.

    :param zone: uuid of the zone that it is registered in
    """
    own_uuid = host.uuid if _is_chosen_uuid(host.uuid) else ''
    return HostDigests(
        _digest(salt, 'registration', zone, host.name),
        _digest(salt, 'name', host.name),
        _digest(salt, 'journal', host.journal) if host.journal else b'',
        _digest(salt, 'uuid', own_uuid) if own_uuid else b'',
    )


def find_double_registrations(
    first: Sequence[HostDigests], second: Sequence[HostDigests]
) -> list[DoubleRegistration]:
    """Return the hosts of one list that are in the other with another registration."""
    pairs: dict[tuple[bytes, bytes], DoubleRegistration] = {}
    for identifier in ('journal', 'uuid', 'name'):
        hosts_by_digest: dict[bytes, list[HostDigests]] = {}
        for host_digests in second:
            if digest := getattr(host_digests, identifier):
                hosts_by_digest.setdefault(digest, []).append(host_digests)
        for host_digests in first:
            for same_host in hosts_by_digest.get(getattr(host_digests, identifier), ()):
                pair = host_digests.registration, same_host.registration
                if pair[0] == pair[1] or pair in pairs:
                    continue
                if identifier == 'name' and host_digests.journal and same_host.journal:
                    continue
                pairs[pair] = DoubleRegistration(host_digests, same_host, identifier)
    return list(pairs.values())


def digests_page(
    own: Iterable[HostDigests],
    below: Sequence[tuple[Sequence[HostDigests], bool]],
    after: bytes,
    most: int,
) -> tuple[list[HostDigests], bool]:
    """Return the digests after a registration, sorted and unique, and whether there are more.

    :param below: page of each child zone after the registration, and whether it has more
    """
    digests = {host_digests for host_digests in own if host_digests.registration > after}
    digests.update(host_digests for page, _ in below for host_digests in page)
    # Digests after the end of a page that is not the last one are incomplete.
    ends = [page[-1].registration for page, has_more in below if has_more and page]
    ordered = sorted(
        host_digests
        for host_digests in digests
        if not ends or host_digests.registration <= min(ends)
    )
    return ordered[:most], bool(ends) or len(ordered) > most


def digests_text(digests: Iterable[HostDigests]) -> str:
    """Return digests of hosts as text."""
    raw = b''.join(
        field.ljust(DIGEST_BYTES, b'\0') for host_digests in digests for field in host_digests
    )
    return base64.b64encode(raw).decode()


def parse_digests(text: str) -> list[HostDigests]:
    """Return digests of hosts from their text form.

    :raises ValueError: the text is not the output of ``digests_text``
    """
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error as e:
        raise ValueError(f'digests: expected base64: {e}') from None
    if len(raw) % (DIGEST_BYTES * _DIGESTS_PER_HOST):
        raise ValueError(
            f'digests: expected base64 of a multiple of {DIGEST_BYTES * _DIGESTS_PER_HOST} bytes, '
            f'got {len(raw)} bytes'
        )
    fields = [_read_digest(raw, start) for start in range(0, len(raw), DIGEST_BYTES)]
    return [
        HostDigests(*fields[start : start + _DIGESTS_PER_HOST])
        for start in range(0, len(fields), _DIGESTS_PER_HOST)
    ]


def _read_digest(raw: bytes, at: int) -> bytes:
    field = raw[at : at + DIGEST_BYTES]
    return b'' if field == _NO_DIGEST else field


def _is_chosen_uuid(text: str) -> bool:
    """Return whether a uuid is the host's own: zones derive uuids of version 5 from the name."""
    try:
        return uuid.UUID(text).version != 5
    except ValueError:
        return bool(text)


def _digest(salt: bytes, *parts: str) -> bytes:
    joined = '\0'.join(parts).encode()
    digest = hashlib.blake2b(joined, digest_size=DIGEST_BYTES, key=salt).digest()
    return digest if digest != _NO_DIGEST else b'\1'.ljust(DIGEST_BYTES, b'\0')
