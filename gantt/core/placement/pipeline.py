# SPDX-License-Identifier: Apache-2.0
"""The pipeline: filters in their order, weighers, and the rules of the pick; data alone."""

import copy
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gantt import exceptions
from gantt.core.filters.base import (
    Filter,
    PairwiseFilter,
    RelaxableFilter,
    is_per_host,
    is_volatile,
)
from gantt.core.filters.topology import layout_settings_of
from gantt.core.messages.policy_set import HOST_LEVEL
from gantt.core.messages.request import Purpose, RequestKind
from gantt.core.placement.prefilters import Prefilters
from gantt.core.records.decision import PASSED_VERDICT, FilterCount
from gantt.core.table.columns import VERSIONED_COLUMNS
from gantt.core.weighers.base import Weigher, check_multiplier

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: Methods of filters that return which hosts pass.
_METHODS_CALLED = frozenset(
    {'mask', 'mask_among', 'mask_among_for', 'mask_for', 'mask_rows', 'host_passes', 'passes'}
)


class Weighing:
    """Weighers in order.

    :ivar normalizations: per weigher, the kind of scale of its raw values
    :ivar of_aggregates: True where multipliers set by aggregates count for their hosts
    :ivar has_local_multipliers: True where no pick changes a multiplier
    :ivar whole: weighers of which a pick may change the raw values of all hosts
    """

    def __init__(
        self, weighers: Sequence[Weigher], normalization: str, *, comparable: bool = False
    ) -> None:
        self.weighers = list(weighers)
        self.names = [w.name for w in self.weighers]
        self.normalizations = [
            'absolute' if comparable else w.normalized_by(normalization) for w in self.weighers
        ]
        self.of_aggregates = not comparable
        self.has_local_multipliers = comparable or all(
            type(w).multipliers is Weigher.multipliers for w in self.weighers
        )
        self.whole = [k for k, w in enumerate(self.weighers) if not w.local and not w.is_steady]


class Weighings:
    """The weighers in use by table: a weigher without a multiplier has no effect.

    A weigher whose option is 0 is used where an aggregate sets its multiplier.

    :ivar default: the weighing where no aggregate sets any of these
    """

    def __init__(
        self, weighers: Sequence[Weigher], normalization: str, *, comparable: bool = False
    ) -> None:
        for weigher in weighers:
            check_multiplier(weigher)
        self._weighers = list(weighers)
        self._normalization = normalization
        self._comparable = comparable
        self._zero_multiplier_options = [
            w.multiplier_option
            for w in weighers
            if not w.multiplier and (comparable or type(w).multipliers is Weigher.multipliers)
        ]
        self._weighing_by_options: dict[tuple[str, ...], Weighing] = {}
        self.default = self._weighing_with(())

    def for_table(self, table: 'HostTable') -> Weighing:
        """Return the weighers in use on this table."""
        if self._comparable:
            return self.default
        metadata = table.aggregate_metadata
        woken = tuple(option for option in self._zero_multiplier_options if option in metadata)
        return self._weighing_with(woken) if woken else self.default

    def _weighing_with(self, woken: tuple[str, ...]) -> Weighing:
        weighing = self._weighing_by_options.get(woken)
        if weighing is None:
            silent = set(self._zero_multiplier_options) - set(woken)
            requested = [
                w for w in self._weighers if w.multiplier_option not in silent or w.multiplier
            ]
            weighing = self._weighing_by_options[woken] = Weighing(
                requested, self._normalization, comparable=self._comparable
            )
        return weighing


class PipelineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a pipeline beside its plugins: names of the site, and the rules of the pick.

    :ivar subset_size: pick at random, by the seed, among so many best; at least 1
    :ivar shuffle_best: pick by the seed among hosts of the very same best weight, instead of the
        first of them in table order
    :ivar default_zone: name of the zone of a host in no zone; None: that of the table
    :ivar location_parts: names of the parts of ``location`` of hosts; None: those of the table
    :ivar skip_failing: leave out a plugin that raises, and report it in the decision, instead of
        failing the decision
    :ivar detailed: query filters for the numbers behind their removals where a host was found as
        well; where none was they are always queried
    :ivar normalization: of weighers that name none of their own; '': each has its usual one
    :ivar prefilters: additions to requests before hosts are evaluated
    """

    subset_size: int = 1
    shuffle_best: bool = False
    default_zone: str | None = None
    location_parts: tuple[str, ...] | None = None
    skip_failing: bool = False
    detailed: bool = False
    normalization: str = ''
    prefilters: Prefilters = Prefilters()

    def __post_init__(self) -> None:
        parts = list(self.location_parts or ())
        if len(set(parts)) < len(parts) or not all(parts) or HOST_LEVEL in parts:
            raise exceptions.Misconfigured(
                option='location_parts',
                problem=f'expected different names, and none of them {HOST_LEVEL!r}; got {parts}',
                fix='Name each part of the location of hosts',
            )


#: Settings of a pipeline for which none are given.
DEFAULT_SETTINGS = PipelineSettings()


class Pipeline:
    """Filters in order, and weighers, with their settings."""

    def __init__(
        self,
        filters: Sequence[Filter],
        weighers: Sequence[Weigher],
        settings: PipelineSettings = DEFAULT_SETTINGS,
    ) -> None:
        if len(filters) >= PASSED_VERDICT:
            raise exceptions.Misconfigured(
                option='enabled_filters', problem=f'{len(filters)} filters', fix='Use at most 253'
            )
        for plugin in (*filters, *weighers):
            plugin.check_declarations()
        self._given_plugins = (list(filters), list(weighers))
        #: Names of plugins that disagreed with a whole evaluation; the copies share them.
        self.distrusted: set[str] = set()
        self.settings = settings
        self._is_comparable = False
        self._comparable: Pipeline | None = None
        self._pipeline_without_relaxable: Pipeline | None = None
        self._shuffling: Pipeline | None = None
        self._keep_to(RequestKind.HOST)
        self._of_kind: dict[RequestKind, Pipeline] = {}
        #: Hosts by result where a layout was requested; the reader of the counts removes them.
        self.layout_hosts: Counter[str] = Counter()
        self.digest = self._digest()

    def _keep_to(self, kind: RequestKind) -> None:
        """Keep the filters and weighers that concern such requests."""
        filters, weighers = self._given_plugins
        self._order([f for f in filters if kind in f.kinds])
        self._weighings = Weighings(
            [w for w in weighers if kind in w.kinds],
            self.settings.normalization,
            comparable=self._is_comparable,
        )
        self.weighers = self._weighings.default.weighers

    def _order(self, filters: Sequence[Filter]) -> None:
        # A hard rule that leaves no host comes first: then no rule is given up.
        relaxable = sorted(
            (f for f in filters if isinstance(f, RelaxableFilter)),
            key=lambda f: not f.pairwise,
        )
        self.filters = [*(f for f in filters if not isinstance(f, RelaxableFilter)), *relaxable]
        self.index_filters()

    def of_kind(self, kind: RequestKind) -> 'Pipeline':
        """Return the filters and weighers that concern such requests, with the same digest."""
        if kind is RequestKind.HOST:
            return self
        pipeline = self._of_kind.get(kind)
        if pipeline is None:
            pipeline = copy.copy(self)
            pipeline._pipeline_without_relaxable = None
            pipeline._keep_to(kind)
            self._of_kind[kind] = pipeline
        return pipeline

    def without_relaxable(self) -> 'Pipeline':
        """Return the pipeline without filters that evaluate the survivors: each host by itself."""
        if not self.relaxable:
            return self
        if self._pipeline_without_relaxable is None:
            pipeline = copy.copy(self)
            pipeline._order([f for f in self.filters if not isinstance(f, RelaxableFilter)])
            self._pipeline_without_relaxable = pipeline
        return self._pipeline_without_relaxable

    def comparable(self) -> 'Pipeline':
        """Return the filters and weighers with scores comparable to those of other zones.

        Every weigher is on its absolute scale and counts as it is configured, whatever aggregates
        set; the best is picked, never one of several, and where hosts are equal any of them.
        """
        if self._comparable is None:
            pipeline = copy.copy(self)
            pipeline._pipeline_without_relaxable = None
            pipeline._is_comparable = True
            pipeline.settings = msgspec.structs.replace(
                self.settings, subset_size=1, shuffle_best=True
            )
            pipeline._of_kind = {}
            pipeline._keep_to(RequestKind.HOST)
            self._comparable = pipeline._comparable = pipeline
        return self._comparable

    def shuffling(self) -> 'Pipeline':
        """Return the pipeline with a pick of any of equal hosts, by the seed."""
        if self.settings.shuffle_best:
            return self
        if self._shuffling is None:
            pipeline = copy.copy(self)
            pipeline._of_kind = {}
            pipeline._pipeline_without_relaxable = None
            pipeline.settings = msgspec.structs.replace(self.settings, shuffle_best=True)
            self._shuffling = pipeline
        return self._shuffling

    def index_filters(self) -> None:
        """Index properties of the filters by their position in the order.

        Those that are distrusted are evaluated whole, for each member.
        """
        distrusted = frozenset(self.distrusted)
        self.indexed_distrusted = len(distrusted)
        self.is_volatile = [is_volatile(f) or f.name in distrusted for f in self.filters]
        self.local = [f.local and not f.pairwise and f.name not in distrusted for f in self.filters]
        #: Filters that evaluate host by host.
        self.per_host_filters = {k: f for k, f in enumerate(self.filters) if is_per_host(f)}
        self.relaxable = {
            k: f for k, f in enumerate(self.filters) if isinstance(f, RelaxableFilter)
        }
        self.is_mask_cacheable = [
            f.fields is not None
            and VERSIONED_COLUMNS.issuperset(f.columns)
            and f.name not in distrusted
            for f in self.filters
        ]
        self.request_checkers = [
            f for f in self.filters if type(f).check_request is not Filter.check_request
        ]
        self.claim_dependent = [k for k, changes in enumerate(self.is_volatile) if changes]
        #: Filters that may not apply to a request.
        self.conditional_filters = [
            k for k, f in enumerate(self.filters) if _is_conditional(type(f))
        ]
        #: Filters that name the rows that they remove.
        self.named_removals = {
            k: f
            for k, f in enumerate(self.filters)
            if isinstance(f, PairwiseFilter) and type(f).mask_for is PairwiseFilter.mask_for
        }
        self.has_detail = [type(f).detail is not Filter.detail for f in self.filters]
        self.general_reasons = [_general_reason(f) for f in self.filters]
        self.zero_counts = [FilterCount(f.name, 0, '') for f in self.filters]
        self.inside = layout_settings_of(self.filters)
        self._applying: dict[tuple[Purpose, bool], list[bool]] = {}

    def in_order(self, names: Sequence[str]) -> 'Pipeline':
        """Return the filters in another order; the pipeline itself where equal or names differ.

        The digest is the same, and so are the survivors and the chosen host.  Only the counts
        differ, and a decision names its filters as they ran.
        """
        by_name = {f.name: f for f in self.filters}
        if list(names) == list(by_name) or sorted(names) != sorted(by_name):
            return self
        pipeline = copy.copy(self)
        pipeline._pipeline_without_relaxable = None
        pipeline._order([by_name[name] for name in names])
        return pipeline

    def applying(self, purpose: Purpose, forced: bool) -> list[bool]:
        """Return per filter whether it runs for such requests."""
        flags = self._applying.get((purpose, forced))
        if flags is None:
            flags = [purpose in f.purposes and (f.always or not forced) for f in self.filters]
            self._applying[purpose, forced] = flags
        return flags

    def skipped_when_forced(self, purpose: Purpose) -> list[str]:
        """Return names of the filters that do not run for forced hosts."""
        plain, forced = self.applying(purpose, False), self.applying(purpose, True)
        pairs = zip(self.filters, plain, forced, strict=True)
        return [f.name for f, usually, now in pairs if usually and not now]

    def set_site_names(self, table: 'HostTable') -> None:
        """Set the names of the default zone and of location parts of this site on a table."""
        table.default_zone = self.settings.default_zone or table.default_zone
        table.location_parts = self.settings.location_parts or table.location_parts

    def weighing(self, table: 'HostTable') -> Weighing:
        """Return the weighers in use on this table."""
        return self._weighings.for_table(table)

    def described(self) -> dict[str, Any]:
        """Return everything that decides an outcome besides table and request."""
        filters, weighers = self._given_plugins
        return {
            'filters': {f.name: f.settings() for f in filters},
            'weighers': {w.name: w.settings() for w in weighers},
            **msgspec.structs.asdict(self.settings),
            'prefilters': msgspec.structs.asdict(self.settings.prefilters),
        }

    def _digest(self) -> str:
        body = {
            k: list(v.items()) if isinstance(v, dict) else v for k, v in self.described().items()
        }
        return hashlib.blake2b(repr(body).encode(), digest_size=8).hexdigest()


def _is_conditional(kind: type[Filter]) -> bool:
    """Return whether ``concerns`` belongs to the rule as it is.

    A plugin may derive from a filter of ours and check more than that one does.
    """
    classes = kind.__mro__
    declared_at = next(at for at, base in enumerate(classes) if 'concerns' in vars(base))
    evaluated_at = next(
        at for at, base in enumerate(classes) if not _METHODS_CALLED.isdisjoint(vars(base))
    )
    return kind.concerns is not Filter.concerns and declared_at <= evaluated_at


def _general_reason(rule: Filter) -> str:
    """Return the reason of a filter without the numbers that only its ``detail`` has."""
    reason = re.sub(r'\s*\([^()]*{[^()]*\)', '', rule.reason)
    return rule.name if '{' in reason else reason
