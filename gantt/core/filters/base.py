# SPDX-License-Identifier: Apache-2.0
"""Base classes of filters: a hard rule as one boolean mask over all hosts.

A filter is pure: it reads the table and the spec it is given and keeps nothing.  Its order among
others changes cost and counts, never the survivors.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeGuard

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.messages.request import Purpose, RequestSpec
from gantt.core.plugin import Plugin
from gantt.core.records.decision import Contradiction
from gantt.core.table.columns import PICK_DEPENDENT_COLUMNS, BoolArray, IntArray
from gantt.core.table.host_state import HostState
from gantt.core.table.host_table import HostTable

#: All but a rebuild, which stays where it is and claims nothing.
PLACING = frozenset(Purpose) - {Purpose.REBUILD}
EVERY_PURPOSE = frozenset(Purpose)
#: Kinds of hosts that one remedy distinguishes: the nearest ones.
_REMEDY_KINDS_MAX = 3


#: More members than any request has.
UNBOUNDED = 1 << 30


class Ceiling(NamedTuple):
    """Room that a rule leaves of a class on one host.

    :ivar room: largest amount for all members together
    :ivar piece: largest amount for one member
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

    :cvar reason: why a host was removed; ``{…}`` are the spec's fields under ``spec`` and the
        result of :meth:`detail`
    :cvar public_reason: the obstacle in the request, in words that reveal nothing of hosts or of
        other users, for callers that may not see reasons; '' reveals nothing
    :cvar purposes: the requests it applies to
    :cvar always: runs for forced hosts as well
    :cvar pairwise: depends on the other members of the request or its group
    :cvar fields: fields of the spec that its mask follows from, with its columns and nothing else,
        the clock included: then a mask is used again while neither has changed
    :cvar is_room: it removes hosts for amounts taken there: such a host is full, not unsuitable
    :cvar local: its result for a host follows from that host's own columns, and :meth:`passes`
        returns it for one; then the others are not evaluated again after a pick
    """

    reason: ClassVar[str] = 'removed by {name}'
    public_reason: ClassVar[str] = ''
    purposes: ClassVar[frozenset[Purpose]] = PLACING
    always: ClassVar[bool] = False
    pairwise: ClassVar[bool] = False
    is_room: ClassVar[bool] = False
    local: ClassVar[bool] = False
    fields: ClassVar[tuple[str, ...] | None] = None

    @classmethod
    def check_declarations(cls) -> None:
        """Check what the class declares of itself.

        :raises PluginError: a column that the host table does not have, or ``local`` alone
        """
        super().check_declarations()
        if cls.local and cls.passes is Filter.passes:
            raise exceptions.PluginError(
                plugin=cls.name or cls.__name__,
                problem='declares local = True and has no method passes(hosts, spec, row)',
                fix='Write it, or leave local out',
            )

    def check_request(self, spec: RequestSpec) -> None:
        """Check the settings of the request for this filter, before anything is placed.

        :raises InvalidMessage: names the field and the expected value
        """

    def concerns(self, spec: RequestSpec) -> bool:
        """Return whether the rule applies to the request; where not, every host passes.

        It follows from the spec alone, so that it is called once for all members.
        """
        return True

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        """Return the hosts that pass, one bool per row; None: all of them."""
        raise NotImplementedError

    def passes(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        """Return the value of :meth:`mask` for one row; only called where ``local``."""
        raise NotImplementedError

    def picks_left(self, hosts: HostTable, spec: RequestSpec, row: int) -> int | None:
        """Return how many members fit one after another on a host that passes; None: evaluate each.

        For hosts that passed :meth:`mask`, which may have picks since; for filters that are
        ``local``, and for members that take amounts alone, without cores or devices of their own.
        """
        return None

    def ceilings(self, hosts: HostTable, spec: RequestSpec, row: int) -> dict[str, Ceiling]:
        """Return class -> room that the rule leaves on a host that passes; {}: all that is free.

        Called for the chosen host where the request has ranges: :meth:`mask` sees the least.
        """
        return {}

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Return numbers that explain the removal of ``rows``; only called where some were.

        A key ``parts`` (text -> count, adding up to ``len(rows)``) splits the removal into several
        reasons; a key ``public_parts`` (text -> text) has other words for those of them that
        only operators may read.
        """
        return {}

    def facts(self, hosts: HostTable, spec: RequestSpec, row: int) -> list[str] | None:
        """Return the facts of one host that it reads, as text; None: the values of its columns."""
        return None

    def unknown(self, hosts: HostTable, spec: RequestSpec) -> Iterable[UnknownFacts]:
        """Return names in the request that no host has, each of which alone lets no host pass.

        Only called where no host was found, and for no more names than are reported.
        """
        return ()

    def of_host(self, hosts: HostTable, spec: RequestSpec, row: int) -> str | None:
        """Return the problem of the one requested host, to follow its name.

        None: the reason, with the numbers of that host.
        """
        return None

    def reason_for(self, spec: RequestSpec, detail: dict[str, Any]) -> str:
        """Return the reason as text."""
        return self.reason.format(name=self.name, spec=spec, **detail)

    def relaxed(self, spec: RequestSpec) -> RequestSpec | None:
        """Return the spec that its remedy would request; None: the present one.

        For filters whose remedy enables other filters, which apply then.
        """
        return None

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        """Return the smallest change that lets a host pass that only this filter removes.

        :param rows: rows of hosts that only this filter removes, at least one
        """
        return f'fits on {one_or_all(hosts, rows)} without {self.name}'

    def silent(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> list[str]:
        """Return names of hosts among ``rows`` that pass once they report again; a few suffice."""
        return []


#: The parts of a condition, as its filter reads them.
Condition = tuple[str, ...]
#: Each condition, and the hosts that meet it.
Conditions = Iterable[tuple[Condition, BoolArray]]
#: Texts, and for how many hosts each is true.
Parts = Iterable[tuple[str, int]]


class ConditionsFilter(Filter):
    """A rule of several conditions, each of which a host has to meet.

    :cvar shown: a condition in words, for the remedy; ``{0}`` and so on are its parts
    :cvar remedy_text: with ``{where}`` and ``{what}``
    """

    shown: ClassVar[str] = '{0}'
    remedy_text: ClassVar[str] = 'fits on {where} but for: {what}'

    def conditions(self, hosts: HostTable, spec: RequestSpec) -> Conditions:
        """Yield each condition with the hosts that meet it; masks are read-only."""
        raise NotImplementedError

    def parts(self, hosts: HostTable, condition: Condition, rows: IntArray) -> Parts:
        """Yield why ``rows`` break a condition: a text, and for how many it is true."""
        yield self.shown.format(*condition), len(rows)

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        return all_of(meets for _, meets in self.conditions(hosts, spec))

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Return parts that count each host for the first condition that it breaks."""
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
    """A rule about co-placed members, which knows which consumer is being placed."""

    pairwise = True

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        return self.mask_for(hosts, spec, '')

    def mask_for(self, hosts: HostTable, spec: RequestSpec, consumer: str) -> BoolArray | None:
        """Return the mask of :meth:`Filter.mask`, for one member."""
        return all_but(
            hosts, checked_rows(self.removed_for(hosts, spec, consumer), len(hosts)).tolist()
        )

    def removed_for(self, hosts: HostTable, spec: RequestSpec, consumer: str) -> list[int]:
        """Return the rows that do not pass, each once: of a rule without a mask of its own."""
        raise NotImplementedError


class PerHostFilter(Filter):
    """A rule evaluated for one host after the other: slow, simple, only for survivors.

    One that overrides :meth:`mask` itself is evaluated like any other filter.

    :cvar once: a host is evaluated once for each request, and not again after a pick
    """

    once: ClassVar[bool] = False

    def host_passes(self, host: HostState, spec: RequestSpec) -> bool:
        """Return whether the host passes."""
        raise NotImplementedError

    def mask_rows(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> BoolArray:
        """Return which of ``rows`` pass."""
        passes = (bool(self.host_passes(hosts.host_state(int(row)), spec)) for row in rows)
        return np.fromiter(passes, np.bool_, len(rows))

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        if not self.concerns(spec):
            return None
        return self.mask_rows(hosts, spec, np.arange(len(hosts)))


class RelaxableFilter(Filter):
    """A rule on the remaining hosts that may be given up; it runs after all other filters.

    It has no mask of its own: whether a host passes depends on whether any better one passes
    everything else.  Such filters run last, wherever they are listed, so that the order of
    filters still changes nothing.

    :meth:`mask` says which hosts could pass at all; :meth:`passes` says of a picked
    host that nothing has changed for any host, and may say no where it does not know.

    A ``pairwise`` one is a hard rule about co-placed members that looks at who could pass all
    else.  It comes before the others: nothing is given up for a host that it removes.
    """

    local = True

    def passes(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        """Return whether a pick on ``row`` changed nothing for any host; False: not known."""
        return False

    def mask_for(
        self, hosts: HostTable, spec: RequestSpec, could: BoolArray | None, consumer: str
    ) -> BoolArray | None:
        """Return which of the hosts that ``could`` pass do pass; values of others are ignored.

        :param could: hosts that all other filters let pass by themselves, and of
            :meth:`counted_if_full` those that are full; None: all
        :returns: None: all
        """
        return self.mask(hosts, spec)

    def counted_if_full(self, hosts: HostTable, spec: RequestSpec, consumer: str) -> IntArray:
        """Return rows of hosts that it counts though they have no room for the member."""
        return np.zeros(0, np.int64)

    def mask_among(self, hosts: HostTable, spec: RequestSpec, alive: BoolArray) -> BoolArray | None:
        """Return which hosts of ``alive`` pass; values of other hosts are ignored.

        :returns: None: all of them, and no rule is given up for any of them
        """
        raise NotImplementedError

    def mask_among_for(
        self, hosts: HostTable, spec: RequestSpec, alive: BoolArray, consumer: str
    ) -> BoolArray | None:
        """Return the mask of :meth:`mask_among`, for one member."""
        return self.mask_among(hosts, spec, alive)

    def given_up(self, hosts: HostTable, spec: RequestSpec, row: int) -> list[tuple[int, str]]:
        """Return unmet rules of a host that passed: (step, rule), first given up first."""
        return []

    def given_up_for(
        self, hosts: HostTable, spec: RequestSpec, row: int, alive: BoolArray, consumer: str
    ) -> list[tuple[int, str]]:
        """Return :meth:`given_up` with the arguments of :meth:`mask_among_for`."""
        return self.given_up(hosts, spec, row)

    def detail_for(
        self, hosts: HostTable, spec: RequestSpec, rows: IntArray, alive: BoolArray, consumer: str
    ) -> dict[str, Any]:
        """Return :meth:`Filter.detail` with the arguments of :meth:`mask_among_for`."""
        return self.detail(hosts, spec, rows)

    def steps(self, hosts: HostTable, spec: RequestSpec) -> list[tuple[tuple[int, int], BoolArray]]:
        """Return each step that may be given up, and the hosts that meet it.

        :returns: ((layer, order), mask): later layers are given up first, and the smaller order
        """
        return []

    def contradiction(
        self, hosts: HostTable, spec: RequestSpec, alive: BoolArray
    ) -> Contradiction | None:
        """Return rules that no host meets together, each of them needed; None: there are none.

        :param alive: hosts that pass all other filters
        """
        return None


def is_volatile(rule: Filter) -> bool:
    """Return whether a pick may change the mask of a filter; without columns it may."""
    return (
        rule.pairwise
        or is_per_host(rule)
        or not rule.columns
        or not PICK_DEPENDENT_COLUMNS.isdisjoint(rule.columns)
    )


def is_per_host(rule: Filter) -> TypeGuard[PerHostFilter]:
    """Return whether the filter runs host by host, and on survivors only."""
    return isinstance(rule, PerHostFilter) and type(rule).mask is PerHostFilter.mask


def removal_reason(
    rule: Filter, hosts: HostTable, spec: RequestSpec, row: int, is_public: bool = False
) -> str:
    """Return why a filter removes this one host: its reason with the numbers of this host.

    :param is_public: leave out what only operators may read
    """
    detail = rule.detail(hosts, spec, np.array([row]))
    parts = detail.get('parts')
    texts_by_part = detail.get('public_parts', {}) if is_public else {}
    sentence = ' and '.join(texts_by_part.get(part, part) for part in parts) if parts else ''
    return (sentence or rule.reason_for(spec, detail)).replace('best has', 'has')  # the best of one


def only(hosts: HostTable, rows: list[int]) -> BoolArray:
    """Return a mask that only ``rows`` pass."""
    mask = np.zeros(len(hosts), np.bool_)
    mask[rows] = True
    return mask


def checked_rows(rows: object, count: int) -> IntArray:
    """Return rows that a filter names, each once.

    :raises ValueError: they are no rows
    """
    checked = np.unique(np.asarray(rows))
    if not checked.size:
        return np.zeros(0, np.int64)
    is_whole = np.issubdtype(checked.dtype, np.integer)
    if not is_whole or checked[0] < 0 or checked[-1] >= count:
        raise ValueError(f'removed_for: expected rows, whole numbers below {count}')
    return checked.astype(np.int64)


def all_but(hosts: HostTable, rows: list[int]) -> BoolArray | None:
    """Return a mask that all but ``rows`` pass; None where there are none."""
    if not rows:
        return None
    mask = _all_pass(len(hosts)).copy()
    mask[np.array(rows)] = False
    return mask


@functools.lru_cache(maxsize=8)
def _all_pass(count: int) -> BoolArray:
    """Return a read-only mask that ``count`` hosts pass."""
    mask = np.ones(count, np.bool_)
    mask.flags.writeable = False
    return mask


def all_of(masks: Iterable[BoolArray]) -> BoolArray | None:
    """Return hosts that pass all of the masks, which are read-only; None where there is none."""
    combined: BoolArray | None = None
    for mask in masks:
        combined = mask if combined is None else np.logical_and(combined, mask)
    return combined


def has_any(bits: np.ndarray, words: dict[int, int]) -> BoolArray:
    """Return which rows have at least one of the bits."""
    mask: BoolArray | None = None
    for word, value in words.items():
        if word < bits.shape[0]:
            has_bit = (bits[word] & np.uint64(value)) != 0
            mask = has_bit if mask is None else np.logical_or(mask, has_bit, out=mask)
    return np.zeros(bits.shape[1], np.bool_) if mask is None else mask


def names_of(items: list[str]) -> str:
    """Return a list for people: the first few names."""
    and_more = f' and {len(items) - 4} more' if len(items) > 4 else ''
    return ', '.join(items[:4]) + and_more


def one_or_all(hosts: HostTable, rows: IntArray) -> str:
    """Return hosts as text: the name of the only one, or their number."""
    return hosts.names[int(rows[0])] if len(rows) == 1 else f'{len(rows)} hosts'


def grouped_by_problem(
    hosts: HostTable, rows: IntArray, wrong: Sequence[tuple[str, BoolArray]], template: str
) -> str:
    """Return a sentence for each kind of hosts, with the problems of that kind alone.

    :param wrong: each condition in words, and which of ``rows`` break it
    :param template: text with ``{where}`` and ``{what}``
    """
    broken = np.array([is_broken for _, is_broken in wrong], np.bool_).reshape(
        len(wrong), len(rows)
    )
    # Eight conditions in a byte: rows are distinguished by all conditions at once.
    packed = np.packbits(broken, axis=0)
    _, first, counts = np.unique(packed, axis=1, return_index=True, return_counts=True)
    kinds = broken.take(first, axis=1)
    order = sorted(range(len(first)), key=lambda k: (int(kinds[:, k].sum()), -int(counts[k])))
    sentences = []
    for kind in order[:_REMEDY_KINDS_MAX]:
        name, count = hosts.names[int(rows[first[kind]])], int(counts[kind])
        texts = [text for (text, _), yes in zip(wrong, kinds[:, kind], strict=True) if yes]
        where = name if count == 1 else f'{name} and {count - 1} more'
        sentences.append(template.format(where=where, what=names_of(texts)))
    return '; '.join(sentences)
