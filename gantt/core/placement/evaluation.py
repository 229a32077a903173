# SPDX-License-Identifier: Apache-2.0
"""Evaluation of one request on one table: masks, verdicts, counts and scores.

The verdict of a host is the number of filters that it passed, kept as a byte by adding ``alive``
after each.  Members after the first start from the state after the last filter that no pick can
change; every filter that reads columns that a pick changes runs again.  Where all of these are
``local`` only the picked row is evaluated, and only its score is recomputed: the outcome is the
same, bit for bit.
"""

import contextlib
from itertools import islice

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.filters import tree_room
from gantt.core.filters.base import (
    UNBOUNDED,
    Ceiling,
    Filter,
    PairwiseFilter,
    PerHostFilter,
    RelaxableFilter,
    UnknownFacts,
    checked_rows,
    removal_reason,
)
from gantt.core.messages.request import Purpose, RequestSpec
from gantt.core.placement import prefilters
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.ranking import Ranking, weigh
from gantt.core.records.decision import PASSED_VERDICT, Contradiction, FilterCount
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

#: Columns that count the members of a host, whatever amounts these take.
_COUNT_COLUMNS = frozenset({'instances', 'io_ops'})
#: One in so many cached masks is compared with a new one; prime, so that each filter has its turn.
CHECK_MASKS_EVERY = 61
_encode = msgspec.msgpack.Encoder().encode


class FilterRun:
    """State of the filters for one request on one table, followed from pick to pick.

    :ivar alive: after :meth:`evaluate`, mask of the survivors
    :ivar left: number of survivors
    :ivar verdict: after :meth:`evaluate`, the verdict bytes
    :ivar weighing: the weighers in use
    :ivar spec: the requested spec, with the additions of the pre-filters
    :ivar added: additions of the pre-filters, one line each
    :ivar skipped: plugins that raised and were left out, with their error
    """

    def __init__(self, table: HostTable, spec: RequestSpec, pipeline: Pipeline) -> None:
        self.table = table
        self.pipeline = pipeline
        if pipeline.indexed_distrusted < len(pipeline.distrusted):
            pipeline.index_filters()
        self.spec, self.added = prefilters.rewrite_spec(spec, table, pipeline.settings.prefilters)
        forced = bool(spec.force_hosts or spec.force_nodes)
        # A rebuild names its host by force and is checked all the same.
        forced = forced and spec.purpose is not Purpose.REBUILD
        self.weighing = pipeline.weighing(table)
        self._applies = self._applicable_filters(pipeline.applying(spec.purpose, forced))
        count = table.count
        self.alive = np.ones(count, np.bool_)
        self.verdict = np.zeros(count, np.uint8)
        self.skipped: list[str] = []
        self._alive_bytes = self.alive.view(np.uint8)
        self._level = 0  # verdict of those still alive
        self.left = count
        self._masks: dict[int, BoolArray | None] = {}
        self._masks_per_host: dict[
            int, tuple[BoolArray, BoolArray]
        ] = {}  # per host: (evaluated, passes)
        self._prefix_counts: (
            tuple[int, BoolArray, np.ndarray, int, int, list[FilterCount]] | None
        ) = None
        #: Of the last evaluation: its consumer, and the survivors before each relaxable filter.
        self._consumer = ''
        self._masks_before_relaxable = dict[int, BoolArray]()
        self._changed_rows: list[int] = []
        #: True where no further evaluation is possible: no state was kept for one.
        self.is_last = False
        #: Counts of the last evaluation, with hosts excluded since; and whether any were.
        self.counts: list[FilterCount] = []
        self._has_excluded = False
        self._excluded: tuple[int, IntArray] = (-1, np.zeros(0, np.int64))
        self._prefix_mask: tuple[int, BoolArray] | None = None
        #: True where all effects of a pick follow from the picked row.
        self._is_local = not (
            pipeline.settings.detailed
            # The nodes of one service are one host to the rule of a group.
            or (spec.group is not None and table.rows_of_services)
        )
        #: True where pools may give some amounts: these are then missing on many hosts.
        pools = table.pools
        #: True where it takes of trees: of providers nested below hosts, or by groups.
        self.is_of_trees = self.spec.tree is not None or (
            bool(pools.nested.of_class) and tree_room.needs_tree(table, self.spec)
        )
        self.is_pooled = self.is_of_trees or (
            bool(pools.of_class) and pools.have_any(self.spec.resources)
        )
        if forced and (passed_over := pipeline.skipped_when_forced(spec.purpose)):
            line = f'hosts are forced, and not asked of {", ".join(passed_over)}'
            self.added = [*self.added, line]
        #: Filters that apply and whose result a pick may change.
        self._pick_dependent_filters = [k for k in pipeline.claim_dependent if self._applies[k]]

    def exclude(self, k: int, rows: IntArray) -> None:
        """Mark survivors as removed by filter ``k`` though they pass its mask, now and later."""
        self._excluded = (k, np.concatenate([self._excluded[1], rows]))
        self._has_excluded = True
        self.alive[rows] = False
        self.verdict[rows] = k
        self.left -= len(rows)
        counts = list(self.counts)
        counts[k] = self._record_removed(k, counts[k].removed + len(rows))
        # Where rules are given up, another evaluation follows that explains.
        if self.pipeline.settings.detailed or not (self.left or self.may_relax):
            counts = [self._count_with_detail(i, count) for i, count in enumerate(counts)]
        self.counts = counts

    @property
    def may_relax(self) -> bool:
        """Whether hosts removed by the last evaluation may pass once its survivors are excluded."""
        # Of trees, hosts may have been excluded by two filters: only the later one is stored.
        return bool(self._masks_before_relaxable or (self.is_of_trees and self.pipeline.relaxable))

    @property
    def has_passed(self) -> bool:
        """Whether hosts are known to pass every filter by itself: they were excluded afterwards."""
        # Pools may have counted what the member holds; a per-host filter is asked of some alone.
        is_unknown = self.is_pooled or self.pipeline.per_host_filters
        return self._has_excluded and not (self.may_relax or is_unknown)

    @property
    def is_distrusting(self) -> bool:
        """True where a plugin is distrusted since this run began: it needs a new one."""
        return self.pipeline.indexed_distrusted < len(self.pipeline.distrusted)

    def keep_to(self, kind: type[Filter], mask: BoolArray) -> None:
        """Restrict the mask of the filter of a kind to these hosts, before the first evaluation."""
        for k, rule in enumerate(self.pipeline.filters):
            if isinstance(rule, kind):
                self._prefix_mask = (k, mask)

    def anew(self, spec: RequestSpec) -> 'FilterRun':
        """Return a run of the same pipeline and table without any evaluation.

        :param spec: the requested spec, without additions of pre-filters
        """
        fresh = FilterRun(self.table, spec, self.pipeline)
        fresh._prefix_mask = self._prefix_mask
        return fresh

    def evaluate(self, consumer: str, last: bool = True) -> list[FilterCount]:
        """Run all filters for one member.

        :param last: no other member follows: no state need be kept for it
        :returns: one count per filter, in order
        """
        pipeline, start, counts = self.pipeline, 0, []
        if self._prefix_counts is not None:
            start, alive, verdict, self._level, self.left, prefix_mask = self._prefix_counts
            np.copyto(self.alive, alive)
            np.copyto(self.verdict, verdict)
            counts = list(prefix_mask)
        self.is_last = last and self._prefix_counts is None
        volatile, applies, zero_counts = pipeline.is_volatile, self._applies, pipeline.zero_counts
        masks = self._masks
        self._consumer = consumer
        self._has_excluded = False
        for k in range(start, len(applies)):
            if not last and self._prefix_counts is None and volatile[k]:
                self._store_prefix(k, counts)
            if not self.left or not (applies[k] or k == self._excluded[0]):
                counts.append(zero_counts[k])
                continue
            if k in pipeline.named_removals and k != self._excluded[0]:
                counts.append(self._remove_named(k, consumer))
                continue
            mask = masks[k] if k in masks else self._evaluate_for(k, consumer)
            if mask is None:
                self._masks_before_relaxable.pop(k, None)
                counts.append(zero_counts[k])
                continue
            counts.append(self._remove_by_mask(k, mask))
        if not last and self._prefix_counts is None:
            self._store_prefix(len(applies), counts)
        self._raise_verdict(PASSED_VERDICT)
        if pipeline.settings.detailed or not self.left:
            counts = [self._count_with_detail(k, count) for k, count in enumerate(counts)]
        self.counts = counts
        return counts

    def reevaluate(self, consumer: str) -> list[FilterCount] | None:
        """Return the counts for the next member, derived from the last evaluation.

        None where more than the picked row may have changed, or where that row is removed now: then
        :meth:`evaluate` is needed.
        """
        if self.is_pooled or not (self._is_local and self._changed_rows):
            return None
        row, pipeline = self._changed_rows[-1], self.pipeline
        for k in self._pick_dependent_filters:
            if pipeline.local[k]:
                if not pipeline.filters[k].passes(self.table, self.spec, row):
                    return None
            elif self._evaluate_for(k, consumer) is not None:
                self._is_local = False
                return None
        self.verdict[row] = PASSED_VERDICT
        return self.counts

    def rank_again(self, ranking: Ranking) -> bool:
        """Update the ranking of the last member after :meth:`reevaluate`.

        :returns: False where a new ranking is needed
        """
        weighing, distrusted = self.weighing, self.pipeline.distrusted
        if not weighing.has_local_multipliers or not distrusted.isdisjoint(weighing.names):
            return False
        try:
            for k in weighing.whole:
                weigher = weighing.weighers[k]
                if ranking.parts[k] is not None or (
                    weigher.concerns(self.spec)
                    and weigher.raw(self.table, self.spec, ranking.rows) is not None
                ):
                    return False
            ranking.follow(self.table, self.spec, self._changed_rows[-1])
        except Exception:
            return False  # a new ranking finds the failing weigher and handles it
        return True

    # -- by steps ------------------------------------------------------------------
    def may_step(self, ranking: Ranking) -> bool:
        """Return whether the effect of picks on scores is known without running weighers."""
        weighing = self.weighing
        if not (self._is_local and weighing.has_local_multipliers):
            return False
        if any(weighing.weighers[k].concerns(self.spec) for k in weighing.whole):
            return False
        spec = self._spec_of_hosts_alone(ranking.rows) if self.is_pooled else self.spec
        try:
            return spec is not None and ranking.store_steps(
                self.table, spec, self.pipeline.distrusted
            )
        except Exception:
            return False  # the usual way of weighing may succeed

    def _spec_of_hosts_alone(self, rows: IntArray) -> RequestSpec | None:
        """Return the spec with what picks take of hosts alone; None: one has a pooled class."""
        table, host_amounts = self.table, dict[str, int]()
        for name, amount in self.spec.resources.items():
            code = table.class_code(name)
            if name not in table.pools.of_class:
                host_amounts[name] = amount
            elif code is not None and (table.free[code].take(rows) >= amount).any():
                return None
        return self.spec.taking(host_amounts)

    def picks_left(self, row: int) -> int:
        """Return how many more members equal to the last all filters allow; 0: evaluate anew."""
        pipeline, least = self.pipeline, UNBOUNDED
        try:
            for k in self._pick_dependent_filters:
                allowed = None
                if pipeline.local[k]:
                    allowed = pipeline.filters[k].picks_left(self.table, self.spec, row)
                if allowed is None or allowed <= 0:
                    return 0
                if allowed < least:
                    least = allowed
        except Exception:
            return 0  # the next evaluation finds the failing filter and handles it
        return least

    def stepped(self, rows: list[int]) -> None:
        """Note rows whose picks were applied to the table by steps."""
        self._changed_rows += rows

    def is_consistent(self, ranking: Ranking, row: int | None) -> bool:
        """Compare what members reuse of the last evaluation with a whole one.

        A plugin that disagrees has read what it does not declare, or declares a wrong step; it is
        evaluated whole for each member from now on.  Rules that look at hosts one by one, or at
        the other survivors, reuse nothing.

        :param row: row of a pick that the ranking does not follow yet
        :returns: whether all agree
        """
        pipeline = self.pipeline
        ignored = [*self._excluded[1], *([] if row is None else [row])]
        wrong = set(ranking.disagreeing(self.table, self.spec, row, self._skip_failed_plugin))
        for k, rule in enumerate(pipeline.filters):
            restricted = self._prefix_mask is not None and k == self._prefix_mask[0]
            reuses = not (isinstance(rule, RelaxableFilter) or rule.pairwise)
            if restricted or not reuses or k in pipeline.per_host_filters:
                continue
            mask = self.mask_of(k, '')
            differs = self.verdict == k  # removed by this filter
            if mask is not None:
                differs = np.where(mask, differs, self.verdict > k)
            differs[ignored] = False
            if differs.any():
                wrong.add(rule.name)
        pipeline.distrusted.update(wrong)
        return not wrong

    def rank(self) -> Ranking:
        """Return the ranking of the survivors of the last evaluation."""
        rows = np.flatnonzero(self.alive)
        return weigh(self.table, self.spec, self.weighing, rows, self._skip_failed_plugin)

    def mask_of(self, k: int, consumer: str, rows: IntArray | None = None) -> BoolArray | None:
        """Return the mask of filter ``k`` alone: of all hosts, or at ``rows`` where per-host.

        None where it does not apply, lets all pass, or raised and is to be skipped.
        """
        rule = self.pipeline.filters[k]
        if not self._applies[k]:
            return None
        try:
            walked = self.pipeline.per_host_filters.get(k)
            if walked is not None and rows is not None:
                return (
                    walked.mask_rows(self.table, self.spec, rows)
                    if walked.concerns(self.spec)
                    else None
                )
            if isinstance(rule, PairwiseFilter):
                return rule.mask_for(self.table, self.spec, consumer)
            if isinstance(rule, RelaxableFilter):
                return rule.mask_for(self.table, self.spec, None, consumer)
            return rule.mask(self.table, self.spec)
        except Exception as e:
            self._skip_failed_plugin(rule.name, e)
            return None

    def picked(self, row: int, claims: bool = True) -> list[tuple[int, str]]:
        """Note a pick that is about to be applied to this row: per-host filters evaluate it again.

        :param claims: the pick takes amounts from its host
        :returns: rules given up for it that the host did not meet before: (step, rule)
        """
        if claims:
            self._changed_rows.append(row)
        given_up: list[tuple[int, str]] = []
        for k in sorted(self._masks_before_relaxable):
            rule, could = self.pipeline.relaxable[k], self._masks_before_relaxable[k]
            try:
                given_up += rule.given_up_for(self.table, self.spec, row, could, self._consumer)
            except Exception as e:
                self._skip_failed_plugin(rule.name, e)
        return given_up

    def steps(self) -> list[tuple[tuple[int, int], BoolArray]]:
        """Return steps that may be given up, with the hosts that meet each."""
        steps_met: list[tuple[tuple[int, int], BoolArray]] = []
        for k, rule in self.pipeline.relaxable.items():
            if not self._applies[k]:
                continue
            try:
                steps_met += rule.steps(self.table, self.spec)
            except Exception as e:
                self._skip_failed_plugin(rule.name, e)
        return steps_met

    def counted(self, rows: IntArray) -> IntArray:
        """Return by row how many members of any kind fit, by the filters that count members."""
        bounds = np.full(len(rows), UNBOUNDED, np.int64)
        for k, rule in enumerate(self.pipeline.filters):
            if not (self._applies[k] and self.pipeline.local[k] and self.pipeline.is_volatile[k]):
                continue
            if not _COUNT_COLUMNS.isdisjoint(rule.columns) and 'free' not in rule.columns:
                allowed = (rule.picks_left(self.table, self.spec, row) for row in rows.tolist())
                bounds = np.minimum(bounds, [UNBOUNDED if n is None else n for n in allowed])
        return bounds

    def ceilings(self, row: int) -> dict[str, Ceiling]:
        """Return the least room that the filters leave on the chosen host, by class."""
        by_class: dict[str, Ceiling] = {}
        for k, rule in enumerate(self.pipeline.filters):
            if not self._applies[k]:
                continue
            try:
                rule_ceilings = rule.ceilings(self.table, self.spec, row)
            except Exception as e:
                self._skip_failed_plugin(rule.name, e)
                continue
            for name, ceiling in rule_ceilings.items():
                lowest = by_class.get(name, ceiling)
                by_class[name] = Ceiling(
                    min(lowest.room, ceiling.room), min(lowest.piece, ceiling.piece)
                )
        return by_class

    def contradiction(self) -> Contradiction | None:
        """Return rules that contradict each other, after an evaluation without survivors."""
        for k, rule in self.pipeline.relaxable.items():
            if not self._applies[k]:
                continue
            try:
                conflict = rule.contradiction(self.table, self.spec, self.verdict >= k)
            except Exception as e:
                self._skip_failed_plugin(rule.name, e)
                continue
            if conflict is not None:
                return conflict
        return None

    def unknown(self, most: int) -> list[UnknownFacts]:
        """Return names in the request that no host has, ``most`` at most."""
        unknown_facts: list[UnknownFacts] = []
        for k, rule in enumerate(self.pipeline.filters):
            if not self._applies[k]:
                continue
            try:
                unknown_facts += islice(
                    rule.unknown(self.table, self.spec), most - len(unknown_facts)
                )
            except Exception as e:
                self._skip_failed_plugin(rule.name, e)
        return unknown_facts

    def of_host(self, row: int) -> str:
        """Return why a host was removed, to follow its name, in words for the caller."""
        k = int(self.verdict[row])
        if k >= len(self.pipeline.filters):
            return ''
        rule = self.pipeline.filters[k]
        try:
            problem = rule.of_host(self.table, self.spec, row)
            return (
                f' {problem}'
                if problem
                else f': {removal_reason(rule, self.table, self.spec, row, True)}'
            )
        except Exception as e:
            self._skip_failed_plugin(rule.name, e)
            return ''

    # -- inside ------------------------------------------------------------------

    def _applicable_filters(self, applies: list[bool]) -> list[bool]:
        """Return per filter whether it applies to the request."""
        filters, concerned = self.pipeline.filters, list(applies)
        for k in self.pipeline.conditional_filters:
            # A filter that raises here reports its problem when it runs.
            with contextlib.suppress(Exception):
                concerned[k] = applies[k] and filters[k].concerns(self.spec)
        return concerned

    def _store_prefix(self, k: int, counts: list[FilterCount]) -> None:
        self._prefix_counts = (
            k,
            self.alive.copy(),
            self.verdict.copy(),
            self._level,
            self.left,
            list(counts),
        )

    def _raise_verdict(self, level: int) -> None:
        """Raise the verdict of the survivors to ``level``."""
        lag = level - self._level
        if lag == 1:
            np.add(self.verdict, self._alive_bytes, out=self.verdict)
        elif lag:
            np.add(self.verdict, self._alive_bytes * np.uint8(lag), out=self.verdict)
        self._level = level

    def _record_removed(self, k: int, removed: int) -> FilterCount:
        rule = self.pipeline.filters[k]
        if not self._applies[k]:  # hosts are excluded under its name all the same
            return FilterCount(rule.name, removed, 'no place for groups or layout')
        if self.pipeline.has_detail[k]:
            return FilterCount(rule.name, removed, self.pipeline.general_reasons[k])
        try:
            return FilterCount(rule.name, removed, rule.reason_for(self.spec, {}))
        except Exception as e:
            self._skip_failed_plugin(rule.name, e)
            return FilterCount(rule.name, removed, '')

    def _count_with_detail(self, k: int, count: FilterCount) -> FilterCount:
        """Return the count with the numbers that only the filter itself can compute."""
        if not (count.removed and self.pipeline.has_detail[k] and self._applies[k]):
            return count
        rule = self.pipeline.filters[k]
        try:
            rows = np.flatnonzero(self.verdict == k)
            if isinstance(rule, RelaxableFilter):
                could = self._masks_before_relaxable.get(k, self.alive)
                detail = rule.detail_for(self.table, self.spec, rows, could, self._consumer)
            else:
                detail = rule.detail(self.table, self.spec, rows)
            return FilterCount(
                count.name, count.removed, rule.reason_for(self.spec, detail), detail
            )
        except Exception as e:
            self._skip_failed_plugin(rule.name, e)
            return count

    def _remove_by_mask(self, k: int, mask: BoolArray) -> FilterCount:
        """Remove the hosts that do not pass the mask of a filter; return its count."""
        pipeline = self.pipeline
        if pipeline.is_volatile[k] and not pipeline.local[k]:
            self._is_local = False
        after = np.logical_and(self.alive, mask)
        survivors = int(np.count_nonzero(after))
        removed, self.left = self.left - survivors, survivors
        if not removed:
            return pipeline.zero_counts[k]
        self._raise_verdict(k)
        self.alive = after
        self._alive_bytes = after.view(np.uint8)
        return self._record_removed(k, removed)

    def _remove_named(self, k: int, consumer: str) -> FilterCount:
        """Remove the few rows that a filter names, without a mask; return its count."""
        rule = self.pipeline.named_removals[k]
        try:
            named = checked_rows(rule.removed_for(self.table, self.spec, consumer), len(self.alive))
        except Exception as e:
            self._skip_failed_plugin(rule.name, e)
            return self.pipeline.zero_counts[k]
        rows = named[self.alive[named]]
        if len(named):
            self._is_local = False
        if not len(rows):
            return self.pipeline.zero_counts[k]
        self.alive[rows] = False
        self.verdict[rows] = k
        self.left -= len(rows)
        return self._record_removed(k, len(rows))

    def _evaluate_for(self, k: int, consumer: str) -> BoolArray | None:
        rule = self.pipeline.filters[k]
        walked = self.pipeline.per_host_filters.get(k)
        mask = None
        try:
            if not self._applies[k]:
                pass  # hosts are excluded under its name all the same
            elif walked is not None:
                mask = self._mask_per_host(k, walked)
            else:
                mask = self._mask_for(k, consumer)
                if mask is not None:
                    _check_mask(mask, self.alive.shape)
        except Exception as e:
            # A plugin may raise anything: each error counts as its failure.
            self._skip_failed_plugin(rule.name, e)
            mask = None
        if k == self._excluded[0]:
            mask = np.ones(len(self.alive), np.bool_) if mask is None else mask.copy()
            mask[self._excluded[1]] = False
        elif walked is not None:
            return mask
        if self._prefix_mask is not None and k == self._prefix_mask[0]:
            mask = self._prefix_mask[1] if mask is None else mask & self._prefix_mask[1]
        if not self.pipeline.is_volatile[k]:
            self._masks[k] = mask
        return mask

    def _mask_for(self, k: int, consumer: str) -> BoolArray | None:
        """Return the mask of a filter that evaluates all hosts at once."""
        rule = self.pipeline.filters[k]
        if isinstance(rule, RelaxableFilter):
            could = self._masks_before_relaxable[k] = self._mask_for_hard_rule(k, rule)
            return rule.mask_among_for(self.table, self.spec, could, consumer)
        if isinstance(rule, PairwiseFilter):
            return rule.mask_for(self.table, self.spec, consumer)
        if self.pipeline.is_mask_cacheable[k]:
            return self._cached_mask(rule)
        return rule.mask(self.table, self.spec)

    def _mask_for_hard_rule(self, k: int, rule: RelaxableFilter) -> BoolArray:
        """Return the survivors for a hard rule: those that pass later relaxable filters.

        Hosts that the rule counts though they are full are included.
        """
        if not rule.pairwise:
            return self.alive
        could = self.alive
        for j in self.pipeline.relaxable:
            if j > k and self._applies[j]:
                relaxable_mask = self.mask_of(j, '')
                could = could if relaxable_mask is None else could & relaxable_mask
        full = self.only_full(rule.counted_if_full(self.table, self.spec, self._consumer))
        if len(full):
            could = could.copy()
            could[full] = True
        return could

    def only_full(self, rows: IntArray) -> IntArray:
        """Return which of ``rows`` would take a member if nothing were taken there."""
        table = self.table
        for name, amount in self.spec.resources.items():
            code = table.class_code(name)
            if code is not None and name not in table.pools.of_class:
                rows = rows[table.cap_of(code).take(rows) >= amount]
        for k, rule in enumerate(self.pipeline.filters):
            if not len(rows):
                break
            if rule.is_room or rule.pairwise or not self._applies[k]:
                continue
            mask = self._masks[k] if k in self._masks else self.mask_of(k, '', rows)
            if mask is not None:
                rows = rows[mask.take(rows) if len(mask) == len(table) else mask]
        return rows

    def _cached_mask(self, rule: Filter) -> BoolArray | None:
        """Return the mask of an earlier request with the same signature, else a new one."""
        table, spec = self.table, self.spec
        request_fields = [getattr(spec, field) for field in rule.fields or ()]
        if not any(request_fields):
            return rule.mask(table, spec)  # the rule is not concerned: no need to read the cache
        signature = _encode(request_fields)
        stamp = (table.default_zone, table.versions.of_columns(rule.columns))
        cache = table.mask_cache
        try:
            cached = cache.get(rule, signature, stamp)
            if cache.hits % CHECK_MASKS_EVERY:
                return cached
        except KeyError:
            mask = rule.mask(table, spec)
        else:
            mask = rule.mask(table, spec)
            if not _is_same(mask, cached):
                self.pipeline.distrusted.add(rule.name)
        cache.put(rule, signature, stamp, mask, len(table))
        return mask

    def _mask_per_host(self, k: int, rule: PerHostFilter) -> BoolArray | None:
        if not rule.concerns(self.spec):
            return None
        if k not in self._masks_per_host:
            blank = np.zeros(len(self.alive), np.bool_)
            self._masks_per_host[k] = (blank, blank.copy())
        evaluated, passes = self._masks_per_host[k]
        if not rule.once:
            evaluated[self._changed_rows] = False
        rows = np.flatnonzero(self.alive & ~evaluated)
        if len(rows):
            results = rule.mask_rows(self.table, self.spec, rows)
            _check_mask(results, rows.shape)
            passes[rows] = results
            evaluated[rows] = True
        return passes

    def _skip_failed_plugin(self, name: str, error: Exception) -> None:
        problem = f'{type(error).__name__}: {error}'
        if not self.pipeline.settings.skip_failing:
            raise exceptions.PluginError(
                plugin=name,
                problem=f'failed on this request with {problem}',
                fix='Disable or mend it',
            ) from error
        line = f'skipped {name}, which failed with {problem}'
        if line not in self.skipped:
            self.skipped.append(line)


def _is_same(mask: BoolArray | None, other: BoolArray | None) -> bool:
    """Return whether the same hosts pass; None: all of them."""
    if mask is None:
        return other is None or bool(other.all())
    return bool(mask.all()) if other is None else np.array_equal(mask, other)


def _check_mask(mask: object, shape: tuple[int, ...]) -> None:
    if not isinstance(mask, np.ndarray) or mask.shape != shape:
        raise ValueError(f'mask: expected one value per host, {shape[0]} of them')
    if mask.dtype != np.bool_:
        raise ValueError(f'mask: expected {np.dtype(np.bool_)}, got {mask.dtype}')
