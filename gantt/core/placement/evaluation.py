# SPDX-License-Identifier: Apache-2.0
"""One request looked at on one table: masks, verdicts, counts and scores.

The verdict of a host is the number of filters that it passed, kept as a byte
by adding ``alive`` after each.  Members after the first start from where the
last filter that no pick can change has left the hosts; every filter that reads
something a pick changes is asked again.  Where all of these are ``local`` only
the picked row is looked at, and only its score is made anew: the outcome is
the same, bit for bit.
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
    ClosingFilter,
    ClosingPairwiseFilter,
    Filter,
    PairwiseFilter,
    PerHostFilter,
    UnknownFacts,
    why_one,
)
from gantt.core.messages.request import Purpose, RequestSpec
from gantt.core.placement import prefilters
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.ranking import Ranking, weigh
from gantt.core.records.decision import PASSED, Contradiction, FilterCount
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

#: Columns that count the members of a host, whatever these take.
_COUNTS = frozenset({'instances', 'io_ops'})
_encode = msgspec.msgpack.Encoder().encode


class FilterRun:
    """See the module docstring.

    :ivar alive: after :meth:`look`, who survived
    :ivar left: how many survived
    :ivar verdict: after :meth:`look`, the verdict bytes
    :ivar weighing: the weighers that are asked
    :ivar spec: what was asked for, with what the pre-filters added
    :ivar added: what they added, one line each
    :ivar skipped: plugins that raised and were left out, with what they said
    """

    def __init__(self, table: HostTable, spec: RequestSpec, pipeline: Pipeline) -> None:
        self.table, self.pipeline = table, pipeline
        rewritten = prefilters.rewrite(spec, table, pipeline.prefilters)
        self.spec, self.added = rewritten.spec, rewritten.added
        forced = bool(spec.force_hosts or spec.force_nodes)
        # A rebuild names its host by force and is checked all the same.
        forced = forced and spec.purpose is not Purpose.REBUILD
        self.weighing = pipeline.weighing(table)
        self._applies = self._concerned(pipeline.applying(spec.purpose, forced))
        count = len(table)
        self.alive = np.ones(count, np.bool_)
        self.verdict = np.zeros(count, np.uint8)
        self.skipped: list[str] = []
        self._bytes = self.alive.view(np.uint8)
        self._level = 0  # verdict of those still alive
        self.left = count
        self._masks: dict[int, BoolArray | None] = {}
        self._masks_per_host: dict[
            int, tuple[BoolArray, BoolArray]
        ] = {}  # per host: (evaluated, passes)
        self._prefix: tuple[int, BoolArray, np.ndarray, int, int, list[FilterCount]] | None = None
        #: Of the last look: for whom, and who was left, by closing filter that keeps some out.
        self._consumer, self._could = '', dict[int, BoolArray]()
        self._changed: list[int] = []
        #: Whether a look was the last that can be taken: nothing was kept for another.
        self.is_last = False
        #: Of the last look, with those barred since.
        self.counts: list[FilterCount] = []
        self._barred: tuple[int, list[int]] = (-1, [])
        self._prefix_mask: tuple[int, BoolArray] | None = None
        #: Whether all that a pick may change is known to follow from the picked row.
        self._is_local = not (
            pipeline.detailed
            # To the rule of a group the nodes of one service are one host.
            or (spec.group is not None and table.rows_of_services)
        )
        #: Whether pools may give something of it: what is taken there is gone for many hosts.
        pools = table.pools
        #: Whether it takes of trees: of what is nested below hosts, or by groups.
        self.is_of_trees = self.spec.tree is not None or (
            bool(pools.nested.of_class) and tree_room.concerns(table, self.spec)
        )
        self.is_pooled = self.is_of_trees or (
            bool(pools.of_class) and pools.have_any(self.spec.resources)
        )
        if forced and (passed_over := pipeline.passed_over(spec.purpose)):
            line = f'hosts are forced, and not asked of {", ".join(passed_over)}'
            self.added = [*self.added, line]
        #: Those that a pick may change, of those that have a say.
        self._again = [k for k in pipeline.claim_dependent if self._applies[k]]

    def bar(self, k: int, rows: list[int]) -> None:
        """Let filter ``k`` remove survivors that its mask lets pass, now and in later looks."""
        self._barred = (k, self._barred[1] + rows)
        at = np.array(rows)
        self.alive[at] = False
        self.verdict[at] = k
        self.left -= len(rows)
        counts = list(self.counts)
        counts[k] = self._removed(k, counts[k].removed + len(rows))
        # Where a rule that may be given up has a say, another look follows that explains.
        if self.pipeline.detailed or not (self.left or self.pipeline.closing):
            counts = [self._explain(i, count) for i, count in enumerate(counts)]
        self.counts = counts

    def keep_to(self, kind: type[Filter], mask: BoolArray) -> None:
        """Let the filter of a kind remove all hosts but these, before the first look."""
        for k, rule in enumerate(self.pipeline.filters):
            if isinstance(rule, kind):
                self._prefix_mask = (k, mask)

    def anew(self, spec: RequestSpec) -> 'FilterRun':
        """The same, of which nothing was looked at.

        :param spec: as it was asked
        """
        fresh = FilterRun(self.table, spec, self.pipeline)
        fresh._prefix_mask = self._prefix_mask
        return fresh

    def look(self, consumer: str, last: bool = True) -> list[FilterCount]:
        """Run all filters for one member.

        :param last: no other member follows: nothing need be kept for it
        :returns: one count per filter, in order
        """
        pipeline, start, counts = self.pipeline, 0, []
        if self._prefix is not None:
            start, alive, verdict, self._level, self.left, prefix_mask = self._prefix
            np.copyto(self.alive, alive)
            np.copyto(self.verdict, verdict)
            counts = list(prefix_mask)
        self.is_last = last and self._prefix is None
        volatile, applies, zero_counts = pipeline.volatile, self._applies, pipeline.zero_counts
        local = pipeline.local
        self._consumer = consumer
        alive, masks = self.alive, self._masks
        for k in range(start, len(applies)):
            if not last and self._prefix is None and volatile[k]:
                self._store_prefix(k, counts)
            if not self.left or not applies[k]:
                counts.append(zero_counts[k])
                continue
            mask = masks[k] if k in masks else self._evaluate_for(k, consumer)
            if mask is None:
                self._could.pop(k, None)
                counts.append(zero_counts[k])
                continue
            if volatile[k] and not local[k]:
                self._is_local = False
            after = np.logical_and(alive, mask)
            left = int(np.count_nonzero(after))
            removed, self.left = self.left - left, left
            if removed:
                self._raise_to(k)
                self.alive = alive = after
                self._bytes = after.view(np.uint8)
            counts.append(self._removed(k, removed) if removed else zero_counts[k])
        if not last and self._prefix is None:
            self._store_prefix(len(applies), counts)
        self._raise_to(PASSED)
        if pipeline.detailed or not self.left:
            counts = [self._explain(k, count) for k, count in enumerate(counts)]
        self.counts = counts
        return counts

    def look_again(self, consumer: str) -> list[FilterCount] | None:
        """As :meth:`look` for the next member, from what the last one found.

        None where more than the picked row may have changed, or where that row is
        left out now: then it takes a look.
        """
        if self.is_pooled or not (self._is_local and self._changed):
            return None
        row, pipeline = self._changed[-1], self.pipeline
        for k in self._again:
            if pipeline.local[k]:
                if not pipeline.filters[k].passes(self.table, self.spec, row):
                    return None
            elif self._evaluate_for(k, consumer) is not None:
                self._is_local = False
                return None
        self.verdict[row] = PASSED
        return self.counts

    def rank_again(self, ranking: Ranking) -> bool:
        """Bring the ranking of the last member up to date after :meth:`look_again`.

        :returns: False where it takes a new ranking
        """
        weighing = self.weighing
        if not weighing.locally:
            return False
        try:
            for k in weighing.whole:
                weigher = weighing.weighers[k]
                if ranking.parts[k] is not None or (
                    weigher.concerns(self.spec)
                    and weigher.raw(self.table, self.spec, ranking.rows) is not None
                ):
                    return False
            ranking.follow(self.table, self.spec, self._changed[-1])
        except Exception:
            return False  # a new ranking finds out who it was, and what to do about it
        return True

    # -- by steps ------------------------------------------------------------------
    def may_step(self, ranking: Ranking) -> bool:
        """Whether what picks change of the scores is known without asking the weighers."""
        weighing = self.weighing
        if not (self._is_local and weighing.locally):
            return False
        if any(weighing.weighers[k].concerns(self.spec) for k in weighing.whole):
            return False
        spec = self._own_part(ranking.rows) if self.is_pooled else self.spec
        try:
            return spec is not None and ranking.take_steps(
                self.table, spec, self.pipeline.distrusted
            )
        except Exception:
            return False  # asked as it is said everywhere else it may do better

    def _own_part(self, rows: IntArray) -> RequestSpec | None:
        """What picks take of these hosts themselves; None: one may have what pools have, too."""
        table, own = self.table, dict[str, int]()
        for name, amount in self.spec.resources.items():
            code = table.class_code(name)
            if name not in table.pools.of_class:
                own[name] = amount
            elif code is not None and (table.free[code].take(rows) >= amount).any():
                return None
        return self.spec.taking(own)

    def picks_left(self, row: int) -> int:
        """For how many more members like the last no filter removes a host; 0: to be asked."""
        pipeline, least = self.pipeline, UNBOUNDED
        try:
            for k in self._again:
                left = None
                if pipeline.local[k]:
                    left = pipeline.filters[k].picks_left(self.table, self.spec, row)
                if left is None or left <= 0:
                    return 0
                least = min(least, left)
        except Exception:
            return 0  # the next look finds out who it was, and what to do about it
        return least

    def stepped(self, rows: list[int]) -> None:
        """Picks on these rows were laid over the table."""
        self._changed += rows

    def check_steps(self, ranking: Ranking, row: int) -> None:
        """Ask the weighers of the row that was picked last what it is worth now.

        One whose steps led elsewhere is asked for each member from now on.
        """
        try:
            self.pipeline.distrusted.update(ranking.disagreeing(self.table, self.spec, row))
        except Exception as e:
            self._failed('a weigher', e)

    def rank(self) -> Ranking:
        """Weigh the survivors of the last look."""
        rows = np.flatnonzero(self.alive)
        return weigh(self.table, self.spec, self.weighing, rows, self._failed)

    def mask_of(self, k: int, consumer: str, rows: IntArray | None = None) -> BoolArray | None:
        """Filter ``k`` on its own: all hosts, or those at ``rows`` for a per-host one.

        None where it does not apply, lets all pass, or raised and is to be skipped.
        """
        rule = self.pipeline.filters[k]
        if not self._applies[k]:
            return None
        try:
            walked = self.pipeline.walking.get(k)
            if walked is not None and rows is not None:
                return (
                    walked.mask_rows(self.table, self.spec, rows)
                    if walked.concerns(self.spec)
                    else None
                )
            if isinstance(rule, PairwiseFilter):
                return rule.mask_for(self.table, self.spec, consumer)
            if isinstance(rule, ClosingPairwiseFilter):
                return rule.mask_for(self.table, self.spec, None, consumer)
            return rule.mask(self.table, self.spec)
        except Exception as e:
            self._failed(rule.name, e)
            return None

    def picked(self, row: int, claims: bool = True) -> list[tuple[int, str]]:
        """A pick is about to be laid over this row: per-host filters are asked about it again.

        :param claims: it takes something from its host
        :returns: what it does not meet before that of rules that may be given up: (step, rule)
        """
        if claims:
            self._changed.append(row)
        found: list[tuple[int, str]] = []
        for k in sorted(self._could):
            rule, could = self.pipeline.closing[k], self._could[k]
            try:
                found += rule.given_up_for(self.table, self.spec, row, could, self._consumer)
            except Exception as e:
                self._failed(rule.name, e)
        return found

    def steps(self) -> list[tuple[tuple[int, int], BoolArray]]:
        """Each step that may be given up, and the hosts that meet it; see ``ClosingFilter``."""
        found: list[tuple[tuple[int, int], BoolArray]] = []
        for k, rule in self.pipeline.closing.items():
            if not self._applies[k]:
                continue
            try:
                found += rule.steps(self.table, self.spec)
            except Exception as e:
                self._failed(rule.name, e)
        return found

    def counted(self, rows: IntArray) -> IntArray:
        """By row how many members of any kind are let on a host, by the filters that count them."""
        found = np.full(len(rows), UNBOUNDED, np.int64)
        for k, rule in enumerate(self.pipeline.filters):
            if not (self._applies[k] and self.pipeline.local[k] and self.pipeline.volatile[k]):
                continue
            if not _COUNTS.isdisjoint(rule.columns) and 'free' not in rule.columns:
                left = (rule.picks_left(self.table, self.spec, row) for row in rows.tolist())
                found = np.minimum(found, [UNBOUNDED if n is None else n for n in left])
        return found

    def ceilings(self, row: int) -> dict[str, Ceiling]:
        """What the filters leave on the host that was chosen, by class; the least counts."""
        found: dict[str, Ceiling] = {}
        for k, rule in enumerate(self.pipeline.filters):
            if not self._applies[k]:
                continue
            try:
                more = rule.ceilings(self.table, self.spec, row)
            except Exception as e:
                self._failed(rule.name, e)
                continue
            for name, one in more.items():
                known = found.get(name, one)
                found[name] = Ceiling(min(known.room, one.room), min(known.piece, one.piece))
        return found

    def contradiction(self) -> Contradiction | None:
        """Rules that stand in each other's way, after a look that left nobody."""
        for k, rule in self.pipeline.closing.items():
            if not self._applies[k]:
                continue
            try:
                found = rule.contradiction(self.table, self.spec, self.verdict >= k)
            except Exception as e:
                self._failed(rule.name, e)
                continue
            if found is not None:
                return found
        return None

    def unknown(self, most: int) -> list[UnknownFacts]:
        """Names in the request that no host has, at most so many."""
        found: list[UnknownFacts] = []
        for k, rule in enumerate(self.pipeline.filters):
            if not self._applies[k]:
                continue
            try:
                found += islice(rule.unknown(self.table, self.spec), most - len(found))
            except Exception as e:
                self._failed(rule.name, e)
        return found

    def of_host(self, row: int) -> str:
        """Why a host was removed, to be read after its name, in words for who asked."""
        k = int(self.verdict[row])
        if k >= len(self.pipeline.filters):
            return ''
        rule = self.pipeline.filters[k]
        try:
            problem = rule.of_host(self.table, self.spec, row)
            return (
                f' {problem}' if problem else f': {why_one(rule, self.table, self.spec, row, True)}'
            )
        except Exception as e:
            self._failed(rule.name, e)
            return ''

    # -- inside ------------------------------------------------------------------

    def _concerned(self, applies: list[bool]) -> list[bool]:
        """Per filter whether it has a say."""
        filters, concerned = self.pipeline.filters, list(applies)
        for k in self.pipeline.conditional:
            # One that cannot tell says what is wrong when it is asked.
            with contextlib.suppress(Exception):
                concerned[k] = applies[k] and filters[k].concerns(self.spec)
        return concerned

    def _store_prefix(self, k: int, counts: list[FilterCount]) -> None:
        self._prefix = (
            k,
            self.alive.copy(),
            self.verdict.copy(),
            self._level,
            self.left,
            list(counts),
        )

    def _raise_to(self, level: int) -> None:
        """Bring the verdict of those alive to ``level``."""
        lag = level - self._level
        if lag == 1:
            np.add(self.verdict, self._bytes, out=self.verdict)
        elif lag:
            np.add(self.verdict, self._bytes * np.uint8(lag), out=self.verdict)
        self._level = level

    def _removed(self, k: int, removed: int) -> FilterCount:
        rule = self.pipeline.filters[k]
        if self.pipeline.explains[k]:
            return FilterCount(rule.name, removed, self.pipeline.general[k])
        try:
            return FilterCount(rule.name, removed, rule.reason_for(self.spec, {}))
        except Exception as e:
            self._failed(rule.name, e)
            return FilterCount(rule.name, removed, '')

    def _explain(self, k: int, count: FilterCount) -> FilterCount:
        """The count with the numbers that only the filter itself can tell."""
        if not count.removed or not self.pipeline.explains[k]:
            return count
        rule = self.pipeline.filters[k]
        try:
            rows = np.flatnonzero(self.verdict == k)
            if isinstance(rule, ClosingFilter):
                could = self._could.get(k, self.alive)
                detail = rule.detail_for(self.table, self.spec, rows, could, self._consumer)
            else:
                detail = rule.detail(self.table, self.spec, rows)
            return FilterCount(
                count.name, count.removed, rule.reason_for(self.spec, detail), detail
            )
        except Exception as e:
            self._failed(rule.name, e)
            return count

    def _evaluate_for(self, k: int, consumer: str) -> BoolArray | None:
        rule = self.pipeline.filters[k]
        try:
            walked = self.pipeline.walking.get(k)
            if walked is not None:
                return self._mask_per_host(k, walked)
            mask = self._mask_for(k, consumer)
            if mask is not None:
                _check_mask(mask, self.alive.shape)
        except Exception as e:
            # A wall around code that is not ours: whatever it raises is its failure.
            self._failed(rule.name, e)
            mask = None
        if mask is not None and k == self._barred[0]:
            mask = mask.copy()
            mask[self._barred[1]] = False
        if self._prefix_mask is not None and k == self._prefix_mask[0]:
            mask = self._prefix_mask[1] if mask is None else mask & self._prefix_mask[1]
        if not self.pipeline.volatile[k]:
            self._masks[k] = mask
        return mask

    def _mask_for(self, k: int, consumer: str) -> BoolArray | None:
        """What a filter says that looks at all hosts at once."""
        rule = self.pipeline.filters[k]
        if isinstance(rule, ClosingFilter):
            could = self._could[k] = self._could_pass(k, rule)
            return rule.mask_among_for(self.table, self.spec, could, consumer)
        if isinstance(rule, PairwiseFilter):
            return rule.mask_for(self.table, self.spec, consumer)
        if self.pipeline.keeps[k]:
            return self._cached_mask(rule)
        return rule.mask(self.table, self.spec)

    def _could_pass(self, k: int, rule: ClosingFilter) -> BoolArray:
        """Those alive, of whom a hard rule is told what the closing ones behind it say.

        Of a hard rule with those that it looks at though they are full.
        """
        if not isinstance(rule, ClosingPairwiseFilter):
            return self.alive
        could = self.alive
        for j in self.pipeline.closing:
            if j > k and self._applies[j]:
                own = self.mask_of(j, '')
                could = could if own is None else could & own
        full = self.only_full(rule.counted_if_full(self.table, self.spec, self._consumer))
        if len(full):
            could = could.copy()
            could[full] = True
        return could

    def only_full(self, rows: IntArray) -> IntArray:
        """Those of these hosts that would take a member of the request were nothing taken there."""
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
        """The mask of an earlier request with the same signature, else a new one."""
        table, spec = self.table, self.spec
        request_fields = [getattr(spec, field) for field in rule.fields or ()]
        if not any(request_fields):
            return rule.mask(table, spec)  # it is not concerned: nothing to look for
        signature = _encode(request_fields)
        stamp = (table.default_zone, table.versions.at(rule.columns))
        try:
            return table.mask_cache.get(rule, signature, stamp)
        except KeyError:
            mask = rule.mask(table, spec)
            table.mask_cache.put(rule, signature, stamp, mask, len(table))
            return mask

    def _mask_per_host(self, k: int, rule: PerHostFilter) -> BoolArray | None:
        if not rule.concerns(self.spec):
            return None
        if k not in self._masks_per_host:
            blank = np.zeros(len(self.alive), np.bool_)
            self._masks_per_host[k] = (blank, blank.copy())
        evaluated, passes = self._masks_per_host[k]
        if not rule.once:
            evaluated[self._changed] = False
        rows = np.flatnonzero(self.alive & ~evaluated)
        if len(rows):
            answers = rule.mask_rows(self.table, self.spec, rows)
            _check_mask(answers, rows.shape)
            passes[rows] = answers
            evaluated[rows] = True
        return passes

    def _failed(self, name: str, error: Exception) -> None:
        problem = f'{type(error).__name__}: {error}'
        if not self.pipeline.skip_failing:
            raise exceptions.PluginError(
                plugin=name,
                problem=f'failed on this request with {problem}',
                fix='Disable or mend it',
            ) from error
        line = f'skipped {name}, which failed with {problem}'
        if line not in self.skipped:
            self.skipped.append(line)


def _check_mask(mask: object, shape: tuple[int, ...]) -> None:
    if not isinstance(mask, np.ndarray) or mask.shape != shape:
        raise ValueError(f'mask: expected one value per host, {shape[0]} of them')
    if mask.dtype != np.bool_:
        raise ValueError(f'mask: expected {np.dtype(np.bool_)}, got {mask.dtype}')
