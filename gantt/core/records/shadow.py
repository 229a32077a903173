# SPDX-License-Identifier: Apache-2.0
"""Shadow mode: another scheduler's choice for a guest, compared with the decision here.

Pure values: observations, comparisons, and verdicts.
"""

import enum

import msgspec

from gantt.core.messages.base import Name, Uuid
from gantt.core.messages.request import SelectDestinations


class ShadowVerdict(enum.StrEnum):
    """Verdicts of a comparison of two choices."""

    SAME = 'same'
    TIE = 'tie'
    OTHER = 'other'
    REMOVED = 'removed'
    NOT_KNOWN = 'not_known'
    NOVA_NONE = 'nova_none'
    NEITHER = 'neither'
    NOT_OBSERVED = 'not_observed'
    NOT_DECIDED = 'not_decided'


#: Texts of the verdicts.
VERDICT_TEXTS: dict[ShadowVerdict, str] = {
    ShadowVerdict.SAME: 'the same host',
    ShadowVerdict.TIE: "another host; Nova's is as good here",
    ShadowVerdict.OTHER: "another host; Nova's fits here, and is less good",
    ShadowVerdict.REMOVED: "Nova's host is removed by a filter here",
    ShadowVerdict.NOT_KNOWN: "Nova's host was not found",
    ShadowVerdict.NOVA_NONE: 'Nova found no host, here is one',
    ShadowVerdict.NEITHER: 'no host, by either',
    ShadowVerdict.NOT_OBSERVED: 'its outcome in Nova was not observed',
    ShadowVerdict.NOT_DECIDED: 'nothing was decided here',
}

#: Both have the same result: of equally good hosts either is right.
AGREEING_VERDICTS = frozenset({ShadowVerdict.SAME, ShadowVerdict.TIE, ShadowVerdict.NEITHER})
#: The results differ; the other verdicts compare nothing.
DIFFERING_VERDICTS = frozenset(
    {ShadowVerdict.OTHER, ShadowVerdict.REMOVED, ShadowVerdict.NOT_KNOWN, ShadowVerdict.NOVA_NONE}
)


# -- observations ---------------------------------------------------------------------------
class ObservedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that another scheduler receives as well.

    :ivar origin: its id there, of the API request
    :ivar source: the host that its guest is on and leaves; None: none, or not reported
    """

    request: SelectDestinations
    origin: str
    source: str | None = None


class ObservedBegin(msgspec.Struct, frozen=True, kw_only=True):
    """The other scheduler has begun a request; if no end follows, it found no host.

    :ivar origin: '' if not reported
    :ivar consumer: one of its guests; '' if not reported
    """

    origin: str = ''
    consumer: str = ''


class ObservedEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The other scheduler has placed a request, on a host that is not reported."""

    origin: str = ''
    consumer: str = ''


class ObservedGuests(msgspec.Struct, frozen=True, kw_only=True):
    """Guests that are on a host."""

    host: Name
    consumers: list[Uuid]


Observation = ObservedRequest | ObservedBegin | ObservedEnd | ObservedGuests


# -- comparisons ---------------------------------------------------------------------------
class ComparedChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Two choices for one guest.

    :ivar request_id: id of the dry run here, by which its decision is explained
    :ivar gantt_host: host chosen here, None: none; ``nova_host``: by Nova
    :ivar reason: one line
    :ivar created_at: seconds of the database's clock, set by the store
    """

    id: str
    request_id: str
    origin: str
    consumer: str
    purpose: str
    verdict: ShadowVerdict
    gantt_host: str | None = None
    nova_host: str | None = None
    reason: str = ''
    created_at: float = 0.0
