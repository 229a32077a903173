# SPDX-License-Identifier: Apache-2.0
"""Lists of guests: which are to be told in a pass, and in which words they fit one message."""

import json

import msgspec

from gantt.core.messages import base
from gantt.core.nova.source import GUESTS_MOST, GuestList
from gantt.nova_source.facts import HostPicture, HostPictures

#: A list of guests that changed is told in so many passes: what releases and confirms takes
#: that many.  After it, and what is told of aggregates, now and then again.
REPEATS, NOW_AND_THEN = 3, 10
#: Bytes that no guest takes in a message, and those of a message beside its guests.
GUEST_BYTES, OTHER_BYTES = 2048, 4096

_replace = msgspec.structs.replace


class Guests:
    """Which lists of guests are to be told in a pass: those that changed, for a while."""

    def __init__(self) -> None:
        self._sent: dict[str, tuple[list[str], int]] = {}

    def is_due(self, host: str, picture: HostPicture) -> bool:
        """Whether the list of a host is to be told."""
        before, times = self._sent.get(host, ([], 0))
        return before != _marks(picture) or times < REPEATS or times % NOW_AND_THEN == 0

    def done(self, host: str, picture: HostPicture, *, pictures: bool) -> None:
        """A pass over the host."""
        before, times = self._sent.get(host, ([], 0))
        now = _marks(picture)
        self._sent[host] = (now, times + 1 if before == now else int(pictures))

    def forget(self, host: str) -> None:
        self._sent.pop(host, None)


def _marks(picture: HostPicture) -> list[str]:
    """What of a list matters to claims."""
    return sorted(
        f'{guest.consumer} {sorted(guest.resources.items())} {guest.group}'
        for guest in picture.guests
    )


def listed(host: str, picture: HostPicture) -> GuestList:
    """The words for the guests of a host."""
    guests = picture.guests
    if picture.is_short:
        # What is only for people, and what a scheduler does not look at in a list.
        guests = [
            _replace(guest, node='', vm_state='', task_state='', user_id=None) for guest in guests
        ]
    return GuestList(host=host, asked_at=picture.asked_at, begun=picture.begun, guests=guests)


def fitting(pictures: HostPictures, most: int) -> HostPictures:
    """What is told, with lists of guests that fit a message; no part of one can be told.

    :param most: bytes that a scheduler takes
    """
    hosts, silent = dict(pictures.hosts), dict(pictures.silent)
    for host, picture in pictures.hosts.items():
        short = _replace(picture, is_short=True)
        if len(picture.guests) > GUESTS_MOST:
            problem = f'it has {len(picture.guests)} guests, and {GUESTS_MOST} can be told of'
        elif len(picture.guests) * GUEST_BYTES + OTHER_BYTES <= most or size(host, picture) <= most:
            continue
        elif size(host, short) <= most:
            hosts[host] = short
            continue
        else:
            problem = (
                f'the list of its {len(picture.guests)} guests has {size(host, short)} bytes, and '
                f'[rpc] payload_bytes_max is {most}: raise it on the schedulers and here'
            )
        silent[host] = problem
        del hosts[host]
    return _replace(pictures, hosts=hosts, silent=silent)


def size(host: str, picture: HostPicture) -> int:
    """Bytes of the message, which travels as text within text."""
    words = base.to_builtins(listed(host, picture))
    return len(json.dumps(json.dumps(words))) + OTHER_BYTES
