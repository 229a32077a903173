# SPDX-License-Identifier: Apache-2.0
"""Lists of guests: which are to be told in a pass, and in which words they fit one message."""

import json

import msgspec

from gantt.core.messages import base
from gantt.core.nova.source import GUESTS_MOST, GuestList
from gantt.nova_source.facts import Said, Told

#: A list of guests that changed is told in so many passes: what releases and confirms takes
#: that many.  After it, and what is told of aggregates, now and then again.
REPEATS, NOW_AND_THEN = 3, 10
#: Bytes that no guest takes in a message, and those of a message beside its guests.
GUEST_BYTES, OTHER_BYTES = 2048, 4096

_replace = msgspec.structs.replace


class Guests:
    """Which lists of guests are to be told in a pass: those that changed, for a while."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[list[str], int]] = {}

    def is_due(self, host: str, said: Said) -> bool:
        """Whether the list of a host is to be told."""
        before, times = self._told.get(host, ([], 0))
        return before != _marks(said) or times < REPEATS or times % NOW_AND_THEN == 0

    def done(self, host: str, said: Said, *, told: bool) -> None:
        """A pass over the host."""
        before, times = self._told.get(host, ([], 0))
        now = _marks(said)
        self._told[host] = (now, times + 1 if before == now else int(told))

    def forget(self, host: str) -> None:
        self._told.pop(host, None)


def _marks(said: Said) -> list[str]:
    """What of a list matters to claims."""
    return sorted(
        f'{guest.consumer} {sorted(guest.resources.items())} {guest.group}' for guest in said.guests
    )


def listed(host: str, said: Said) -> GuestList:
    """The words for the guests of a host."""
    guests = said.guests
    if said.is_short:
        # What is only for people, and what a scheduler does not look at in a list.
        guests = [
            _replace(guest, node='', vm_state='', task_state='', user_id=None) for guest in guests
        ]
    return GuestList(host=host, asked_at=said.asked_at, begun=said.begun, guests=guests)


def fitting(told: Told, most: int) -> Told:
    """What is told, with lists of guests that fit a message; no part of one can be told.

    :param most: bytes that a scheduler takes
    """
    hosts, silent = dict(told.hosts), dict(told.silent)
    for host, said in told.hosts.items():
        short = _replace(said, is_short=True)
        if len(said.guests) > GUESTS_MOST:
            problem = f'it has {len(said.guests)} guests, and {GUESTS_MOST} can be told of'
        elif len(said.guests) * GUEST_BYTES + OTHER_BYTES <= most or size(host, said) <= most:
            continue
        elif size(host, short) <= most:
            hosts[host] = short
            continue
        else:
            problem = (
                f'the list of its {len(said.guests)} guests has {size(host, short)} bytes, and '
                f'[rpc] payload_bytes_max is {most}: raise it on the schedulers and here'
            )
        silent[host] = problem
        del hosts[host]
    return _replace(told, hosts=hosts, silent=silent)


def size(host: str, said: Said) -> int:
    """Bytes of the message, which travels as text within text."""
    words = base.to_builtins(listed(host, said))
    return len(json.dumps(json.dumps(words))) + OTHER_BYTES
