# SPDX-License-Identifier: Apache-2.0
"""Shadow mode: what another scheduler chose for a guest, beside what is decided here.

Pure: what is heard, what a comparison says, and the verdict from an explanation.
"""

import enum

import msgspec

from gantt.core.messages.base import Name, Uuid
from gantt.core.messages.request import SelectDestinations


class Verdict(enum.StrEnum):
    """How two choices compare."""

    SAME = 'same'
    TIE = 'tie'
    OTHER = 'other'
    REMOVED = 'removed'
    NOT_KNOWN = 'not_known'
    NOVA_NONE = 'nova_none'
    NEITHER = 'neither'
    NOT_HEARD = 'not_heard'
    NOT_DECIDED = 'not_decided'


#: For people.
WORDS: dict[Verdict, str] = {
    Verdict.SAME: 'the same host',
    Verdict.TIE: "another host; Nova's is as good here",
    Verdict.OTHER: "another host; Nova's fits here, and is less good",
    Verdict.REMOVED: "Nova's host is removed by a filter here",
    Verdict.NOT_KNOWN: "Nova's host is not known here",
    Verdict.NOVA_NONE: 'Nova found no host, here is one',
    Verdict.NEITHER: 'no host, by either',
    Verdict.NOT_HEARD: 'what became of it in Nova was not heard',
    Verdict.NOT_DECIDED: 'nothing was decided here',
}

#: Both came to the same end: of hosts that are as good either is right.
AGREE = frozenset({Verdict.SAME, Verdict.TIE, Verdict.NEITHER})
#: They came to different ones; the others tell nothing of either.
DIFFER = frozenset({Verdict.OTHER, Verdict.REMOVED, Verdict.NOT_KNOWN, Verdict.NOVA_NONE})


# -- what is heard --------------------------------------------------------------------------
class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request that another scheduler is asked as well.

    :ivar origin: its id there, of the API request
    :ivar source: the host that its guest is on and leaves; None: nowhere, or not said
    """

    request: SelectDestinations
    origin: str
    source: str | None = None


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """The other scheduler has taken a request up; where no end follows it found no host.

    :ivar origin: '' where it is not said
    :ivar consumer: one of its guests; '' where it is not said
    """

    origin: str = ''
    consumer: str = ''


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The other scheduler has placed a request; where is not said."""

    origin: str = ''
    consumer: str = ''


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Guests that are on a host."""

    host: Name
    consumers: list[Uuid]


Heard = Asked | Begun | Ended | Seen


# -- what is kept --------------------------------------------------------------------------
class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Two choices for one guest.

    :ivar request_id: of the dry run here: its decision is explained by it
    :ivar why: one line
    :ivar created_at: seconds of the database's clock, set by the store
    """

    id: str
    request_id: str
    origin: str
    consumer: str
    purpose: str
    verdict: Verdict
    ours: str | None = None
    theirs: str | None = None
    why: str = ''
    created_at: float = 0.0
