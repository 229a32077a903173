# SPDX-License-Identifier: Apache-2.0
"""The shape of a filter: a hard rule as one boolean mask over all hosts.

A filter is pure: it reads the table and the spec it is given and keeps nothing.
Its order among others changes cost and counts, never who survives.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeGuard

import msgspec
import numpy as np

from gantt.core.messages.request import Purpose, RequestSpec
from gantt.core.plugin import Plugin
from gantt.core.records.decision import Contradiction
from gantt.core.table.columns import TAKEN, BoolArray, IntArray
from gantt.core.table.host_state import HostState
from gantt.core.table.host_table import HostTable

#: All but a rebuild, which stays where it is and claims nothing.
PLACING = frozenset(Purpose) - {Purpose.REBUILD}
EVERY_PURPOSE = frozenset(Purpose)
#: Kinds of hosts that one remedy tells apart: the nearest ones.
_KINDS_MAX = 3


#: More members than any request has.
UNBOUNDED = 1 << 30


class Ceiling(NamedTuple):
    """What a rule leaves of a class of one host.

    :ivar room: for all members together
    :ivar piece: for any one of them
    """

    room: int
    piece: int


class UnknownFacts(msgspec.Struct, frozen=True):
    """Something that a request names and no host has, as a mistyped word would be.

    :ivar kind: what it would be, e.g. ``trait``
    :ivar known: the names that it could be mistaken for
    """

    kind: str
    name: str
    known: Sequence[str] = ()


class Filter(Plugin):
    """A hard rule.

    :cvar reason: why a host was removed; ``{…}`` are the spec's fields under
        ``spec`` and what :meth:`detail` returns
    :cvar public_reason: what in the request was in the way, in words that tell nothing of
        hosts or of other users: those who may not see reasons read this; '' tells nothing
    :cvar purposes: the requests it applies to
    :cvar always: runs for forced hosts as well
    :cvar pairwise: depends on the other members of the request or its group
    :cvar fields: fields of the spec that its mask follows from, with its columns and nothing
        else, the clock included: then a mask is used again while neither has changed
    :cvar is_room: it removes hosts for what is taken there: such a one is full, and no stranger
    :cvar local: what it says of a host follows from that host's own columns, and
        :meth:`passes` says it of one; then the others are not asked again after a pick
    """

    reason: ClassVar[str] = 'removed by {name}'
    public_reason: ClassVar[str] = ''
    purposes: ClassVar[frozenset[Purpose]] = PLACING
    always: ClassVar[bool] = False
    pairwise: ClassVar[bool] = False
    is_room: ClassVar[bool] = False
    local: ClassVar[bool] = False
    fields: ClassVar[tuple[str, ...] | None] = None

    def check_request(self, spec: RequestSpec) -> None:
        """Look at what the request asks of this filter, before anything is placed.

        :raises InvalidMessage: names the field and what was expected
        """

    def concerns(self, spec: RequestSpec) -> bool:
        """Whether the request asks for the rule at all; where not, every host passes.

        It follows from the spec alone, so that it is asked once for all members.
        """
        return True

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        """Which hosts pass, one bool per row; None: all of them."""
        raise NotImplementedError

    def passes(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        """What :meth:`mask` says of one row; of filters that are ``local``."""
        raise NotImplementedError

    def picks_left(self, hosts: HostTable, spec: RequestSpec, row: int) -> int | None:
        """How many members in a row are let on a host that passes; None: it is asked for each.

        Of hosts that passed :meth:`mask`, on which picks may lie since; of filters that are
        ``local``, and of members that take amounts alone, without cores or devices of their
        own.
        """
        return None

    def ceilings(self, hosts: HostTable, spec: RequestSpec, row: int) -> dict[str, Ceiling]:
        """Class -> what the rule leaves of it on a host that passes; {}: all that is free.

        Asked of the host that was chosen where the request has ranges: :meth:`mask` sees the least.
        """
        return {}

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Numbers that help to read the removal of ``rows``; asked only where some were.

        A key ``parts`` (text -> count, adding up to ``len(rows)``) splits the
        removal into several reasons; a key ``told`` (text -> text) has other words for
        those of them that only operators may read.
        """
        return {}

    def facts(self, hosts: HostTable, spec: RequestSpec, row: int) -> list[str] | None:
        """What of one host it looks at, in words; None: what stands in its columns."""
        return None

    def unknown(self, hosts: HostTable, spec: RequestSpec) -> Iterable[UnknownFacts]:
        """Names in the request that no host has, each of which alone lets no host pass.

        Asked only where no host was found, and of no more names than are told.
        """
        return ()

    def of_host(self, hosts: HostTable, spec: RequestSpec, row: int) -> str | None:
        """What is wrong with the one host that was asked for, to be read after its name.

        None: the reason, with the numbers of that host.
        """
        return None

    def reason_for(self, spec: RequestSpec, detail: dict[str, Any]) -> str:
        """The reason as text."""
        return self.reason.format(name=self.name, spec=spec, **detail)

    def relaxed(self, spec: RequestSpec) -> RequestSpec | None:
        """What would be asked for, were its remedy followed; None: what is asked for now.

        Of filters whose remedy lets other filters in, which have a say about it then.
        """
        return None

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        """The smallest change that lets a host in which only this filter keeps out.

        :param rows: those hosts, at least one
        """
        return f'fits on {one_or_all(hosts, rows)} without {self.name}'

    def silent(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> list[str]:
        """Hosts among these that are in as soon as they report again; some of them will do."""
        return []


#: The parts of a condition, as its filter knows it.
Condition = tuple[str, ...]
#: Each condition, and the hosts that meet it.
Conditions = Iterable[tuple[Condition, BoolArray]]
#: Texts, and of how many hosts each is true.
Parts = Iterable[tuple[str, int]]


class ConditionsFilter(Filter):
    """A rule of several conditions, each of which a host has to meet.

    :cvar shown: a condition in words, for the remedy; ``{0}`` and so on are its parts
    :cvar remedy_text: with ``{where}`` and ``{what}``
    """

    shown: ClassVar[str] = '{0}'
    remedy_text: ClassVar[str] = 'fits on {where} but for: {what}'

    def conditions(self, hosts: HostTable, spec: RequestSpec) -> Conditions:
        """Each condition, and the hosts that meet it; not to be written to."""
        raise NotImplementedError

    def parts(self, hosts: HostTable, condition: Condition, rows: IntArray) -> Parts:
        """Why ``rows``, which break a condition, do: a text, and of how many it is true."""
        yield self.shown.format(*condition), len(rows)

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        return all_of(meets for _, meets in self.conditions(hosts, spec))

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Each host is counted for the first condition that it breaks."""
        parts: dict[str, int] = {}
        for condition, meets in self.conditions(hosts, spec):
            met = meets.take(rows)
            if not met.all():
                for text, count in self.parts(hosts, condition, rows[~met]):
                    parts[text] = parts.get(text, 0) + count
                rows = rows[met]
            if not len(rows):
                break
        return {'parts': {text: count for text, count in parts.items() if count}}

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        wrong = [
            (self.shown.format(*condition), ~meets.take(rows))
            for condition, meets in self.conditions(hosts, spec)
        ]
        return grouped_by_problem(hosts, rows, wrong, self.remedy_text)


class PairwiseFilter(Filter):
    """A rule about co-placed members: told which consumer is being placed."""

    pairwise = True

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        return self.mask_for(hosts, spec, '')

    def mask_for(self, hosts: HostTable, spec: RequestSpec, consumer: str) -> BoolArray | None:
        """As :meth:`Filter.mask`, for one member."""
        raise NotImplementedError


class PerHostFilter(Filter):
    """A rule asked of one host after the other: slow, simple, only for survivors.

    One that overrides :meth:`mask` itself is asked like any other filter.

    :cvar once: a host is asked about once for each request, and not again after a pick
    """

    once: ClassVar[bool] = False

    def host_passes(self, host: HostState, spec: RequestSpec) -> bool:
        """Whether the host passes."""
        raise NotImplementedError

    def mask_rows(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> BoolArray:
        """Which of ``rows`` pass."""
        passes = (bool(self.host_passes(hosts.host_state(int(row)), spec)) for row in rows)
        return np.fromiter(passes, np.bool_, len(rows))

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        if not self.concerns(spec):
            return None
        return self.mask_rows(hosts, spec, np.arange(len(hosts)))


class ClosingFilter(Filter):
    """A rule about who is left, which comes after all others.

    A rule that may be given up cannot be told from a mask of its own: whether a host
    passes depends on whether any better one passes everything else.  Such filters run
    last, wherever they are listed, so that the order of filters still changes nothing.

    :meth:`mask` says which hosts could pass at all; :meth:`passes` says of a picked
    host that nothing has changed for any host, and may say no where it does not know.
    """

    local = True

    def mask_among(self, hosts: HostTable, spec: RequestSpec, alive: BoolArray) -> BoolArray | None:
        """Which of those ``alive`` pass; of the others it may say anything.

        :returns: None: all of them, and nothing is given up for any of them
        """
        raise NotImplementedError

    def mask_among_for(
        self, hosts: HostTable, spec: RequestSpec, alive: BoolArray, consumer: str
    ) -> BoolArray | None:
        """As :meth:`mask_among`, told who is placed."""
        return self.mask_among(hosts, spec, alive)

    def given_up(self, hosts: HostTable, spec: RequestSpec, row: int) -> list[tuple[int, str]]:
        """What a host that passed does not meet: (step, rule), those given up first first."""
        return []

    def given_up_for(
        self, hosts: HostTable, spec: RequestSpec, row: int, alive: BoolArray, consumer: str
    ) -> list[tuple[int, str]]:
        """As :meth:`given_up`, told what :meth:`mask_among_for` was."""
        return self.given_up(hosts, spec, row)

    def detail_for(
        self, hosts: HostTable, spec: RequestSpec, rows: IntArray, alive: BoolArray, consumer: str
    ) -> dict[str, Any]:
        """As :meth:`Filter.detail`, told what :meth:`mask_among_for` was."""
        return self.detail(hosts, spec, rows)

    def steps(self, hosts: HostTable, spec: RequestSpec) -> list[tuple[tuple[int, int], BoolArray]]:
        """Each step that may be given up, and the hosts that meet it.

        :returns: ((layer, order), mask): later layers are given up first, and the smaller order
        """
        return []

    def contradiction(
        self, hosts: HostTable, spec: RequestSpec, alive: BoolArray
    ) -> Contradiction | None:
        """Rules that no host meets together, none of them in vain; None: they are not it.

        :param alive: those that all other filters let pass
        """
        return None


class ClosingPairwiseFilter(ClosingFilter):
    """A hard rule about co-placed members that looks at who could pass all else.

    It comes before other closing rules: nothing is given up for a host that it removes.
    """

    pairwise = True
    local = False

    def mask_for(
        self, hosts: HostTable, spec: RequestSpec, could: BoolArray | None, consumer: str
    ) -> BoolArray | None:
        """Which of the hosts that ``could`` pass do; of the others it may say anything.

        :param could: those that all other filters let pass by themselves, and of
            :meth:`counted_if_full` those that are full; None: all
        :returns: None: all
        """
        raise NotImplementedError

    def counted_if_full(self, hosts: HostTable, spec: RequestSpec, consumer: str) -> IntArray:
        """Rows of hosts that it looks at though there is no room left for the member."""
        return np.zeros(0, np.int64)

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        return self.mask_for(hosts, spec, None, '')

    def mask_among(self, hosts: HostTable, spec: RequestSpec, alive: BoolArray) -> BoolArray | None:
        return self.mask_for(hosts, spec, alive, '')

    def mask_among_for(
        self, hosts: HostTable, spec: RequestSpec, alive: BoolArray, consumer: str
    ) -> BoolArray | None:
        return self.mask_for(hosts, spec, alive, consumer)


def is_volatile(rule: Filter) -> bool:
    """Whether a pick may change what the filter says; one that declares nothing may be anything."""
    return rule.pairwise or walks(rule) or not rule.columns or not TAKEN.isdisjoint(rule.columns)


def walks(rule: Filter) -> TypeGuard[PerHostFilter]:
    """Whether the filter is asked host by host, and of survivors only."""
    return isinstance(rule, PerHostFilter) and type(rule).mask is PerHostFilter.mask


def why_one(
    rule: Filter, hosts: HostTable, spec: RequestSpec, row: int, for_asker: bool = False
) -> str:
    """Why a filter removes this one host: its reason with the numbers of this host.

    :param for_asker: without what only operators may read
    """
    detail = rule.detail(hosts, spec, np.array([row]))
    parts = detail.get('parts')
    texts_by_part = detail.get('told', {}) if for_asker else {}
    sentence = ' and '.join(texts_by_part.get(part, part) for part in parts) if parts else ''
    return (sentence or rule.reason_for(spec, detail)).replace('best has', 'has')  # the best of one


def only(hosts: HostTable, rows: list[int]) -> BoolArray:
    """A mask that only ``rows`` pass."""
    mask = np.zeros(len(hosts), np.bool_)
    mask[rows] = True
    return mask


def all_but(hosts: HostTable, rows: list[int]) -> BoolArray | None:
    """A mask that all but ``rows`` pass; None where there are none."""
    if not rows:
        return None
    mask = _every(len(hosts)).copy()
    mask[rows] = False
    return mask


@functools.lru_cache(maxsize=8)
def _every(count: int) -> BoolArray:
    """A mask that so many hosts pass; not to be written to."""
    mask = np.ones(count, np.bool_)
    mask.flags.writeable = False
    return mask


def all_of(masks: Iterable[BoolArray]) -> BoolArray | None:
    """Hosts that pass all of the masks, which are not written to; None where there is none."""
    found: BoolArray | None = None
    for mask in masks:
        found = mask if found is None else np.logical_and(found, mask)
    return found


def has_any(bits: np.ndarray, words: dict[int, int]) -> BoolArray:
    """Which rows have at least one of the bits."""
    mask: BoolArray | None = None
    for word, value in words.items():
        if word < bits.shape[0]:
            some = (bits[word] & np.uint64(value)) != 0
            mask = some if mask is None else np.logical_or(mask, some, out=mask)
    return np.zeros(bits.shape[1], np.bool_) if mask is None else mask


def names_of(items: list[str]) -> str:
    """A list for people: the first few names."""
    more = f' and {len(items) - 4} more' if len(items) > 4 else ''
    return ', '.join(items[:4]) + more


def one_or_all(hosts: HostTable, rows: IntArray) -> str:
    """Hosts for people: the name of the only one, or how many they are."""
    return hosts.names[int(rows[0])] if len(rows) == 1 else f'{len(rows)} hosts'


def grouped_by_problem(
    hosts: HostTable, rows: IntArray, wrong: Sequence[tuple[str, BoolArray]], template: str
) -> str:
    """A sentence for each kind of hosts: what is wrong with one is not said of another.

    :param wrong: each condition in words, and which of ``rows`` break it
    :param template: with ``{where}`` and ``{what}``
    """
    broken = np.array([found for _, found in wrong], np.bool_).reshape(len(wrong), len(rows))
    # Eight conditions in a byte: what tells hosts apart is sorted by all of it.
    packed = np.packbits(broken, axis=0)
    _, first, counts = np.unique(packed, axis=1, return_index=True, return_counts=True)
    kinds = broken.take(first, axis=1)
    order = sorted(range(len(first)), key=lambda k: (int(kinds[:, k].sum()), -int(counts[k])))
    sentences = []
    for kind in order[:_KINDS_MAX]:
        name, count = hosts.names[int(rows[first[kind]])], int(counts[kind])
        what = [text for (text, _), yes in zip(wrong, kinds[:, kind], strict=True) if yes]
        where = name if count == 1 else f'{name} and {count - 1} more'
        sentences.append(template.format(where=where, what=names_of(what)))
    return '; '.join(sentences)
