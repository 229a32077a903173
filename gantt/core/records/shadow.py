# SPDX-License-Identifier: Apache-2.0
"""Shadow mode: what another scheduler chose for a guest, beside what is decided here.

Pure: what is heard, what a comparison says, and the verdict from an explanation.
"""

import enum

import msgspec

from gantt.core.messages.base import Name, Uuid
from gantt.core.messages.request import SelectDestinations


class ShadowVerdict(enum.StrEnum):
    """How two choices compare."""

    SAME = 'same'
    TIE = 'tie'
    OTHER = 'other'
    REMOVED = 'removed'
    NOT_KNOWN = 'not_known'
    NOVA_NONE = 'nova_none'
    NEITHER = 'neither'
    NOT_OBSERVED = 'not_heard'
    NOT_DECIDED = 'not_decided'


#: For people.
WORDS: dict[ShadowVerdict, str] = {
    ShadowVerdict.SAME: 'the same host',
    ShadowVerdict.TIE: "another host; Nova's is as good here",
    ShadowVerdict.OTHER: "another host; Nova's fits here, and is less good",
    ShadowVerdict.REMOVED: "Nova's host is removed by a filter here",
    ShadowVerdict.NOT_KNOWN: "Nova's host is not known here",
    ShadowVerdict.NOVA_NONE: 'Nova found no host, here is one',
    ShadowVerdict.NEITHER: 'no host, by either',
    ShadowVerdict.NOT_OBSERVED: 'what became of it in Nova was not heard',
    ShadowVerdict.NOT_DECIDED: 'nothing was decided here',
}

#: Both came to the same end: of hosts that are as good either is right.
AGREE = frozenset({ShadowVerdict.SAME, ShadowVerdict.TIE, ShadowVerdict.NEITHER})
#: They came to different ones; the others tell nothing of either.
DIFFER = frozenset(
    {ShadowVerdict.OTHER, ShadowVerdict.REMOVED, ShadowVerdict.NOT_KNOWN, ShadowVerdict.NOVA_NONE}
)


# -- what is heard --------------------------------------------------------------------------
class ObservedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that another scheduler is asked as well.

    :ivar origin: its id there, of the API request
    :ivar source: the host that its guest is on and leaves; None: nowhere, or not said
    """

    request: SelectDestinations
    origin: str
    source: str | None = None


class ObservedBegin(msgspec.Struct, frozen=True, kw_only=True):
    """The other scheduler has taken a request up; where no end follows it found no host.

    :ivar origin: '' where it is not said
    :ivar consumer: one of its guests; '' where it is not said
    """

    origin: str = ''
    consumer: str = ''


class ObservedEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The other scheduler has placed a request; where is not said."""

    origin: str = ''
    consumer: str = ''


class ObservedGuests(msgspec.Struct, frozen=True, kw_only=True):
    """Guests that are on a host."""

    host: Name
    consumers: list[Uuid]


Observation = ObservedRequest | ObservedBegin | ObservedEnd | ObservedGuests


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
    verdict: ShadowVerdict
    ours: str | None = None
    theirs: str | None = None
    why: str = ''
    created_at: float = 0.0
