# SPDX-License-Identifier: Apache-2.0
"""place(): filter, weigh, pick, lay the pick over the table; then the next member.

Pure and deterministic: the same table, request, pipeline and seed give the same
decision.  A failed request leaves the table as it was; a placed one leaves its
picks on it, until ``undo`` or the truth after the commit takes their place.
"""

import copy
import enum
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gantt import exceptions
from gantt.core import together, verdict
from gantt.core.decision import PASSED, Contradiction, Decision, FilterCount, Outcome
from gantt.core.filters.base import Filter
from gantt.core.filters.closing import ClosingFilter
from gantt.core.filters.pci_passthrough import inside_of
from gantt.core.group import without_older
from gantt.core.kept_masks import FOLLOWED
from gantt.core.prefilters import Prefilters
from gantt.core.request import Purpose, RequestSpec, SelectDestinations
from gantt.core.run import Run
from gantt.core.survey import is_volatile
from gantt.core.weighers.base import Weigher
from gantt.core.weighing import Weighing, Weighings

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable

#: Methods of filters that say who passes.
_ASKED = frozenset({'mask', 'mask_among', 'mask_for', 'mask_rows', 'host_passes', 'passes'})


class Pipeline:
    """Filters in order, weighers, and how the pick is made.

    :ivar subset_size: pick at random, by the seed, among so many best
    :ivar shuffle_best: pick by the seed among hosts of the very same best
        weight, instead of the first of them in table order
    :ivar default_zone: what the zone of a host in no zone is called; None: as
        the table says
    :ivar skip_failing: leave out a plugin that raises, and say so in the
        decision, instead of failing the decision
    :ivar normalization: of weighers that name none of their own; '': each has its usual one
    :ivar prefilters: what is added to requests before hosts are looked at
    :ivar detailed: ask filters for the numbers behind their removals where a
        host was found as well; where none was they are always asked
    """

    def __init__(
        self,
        filters: Sequence[Filter],
        weighers: Sequence[Weigher],
        subset_size: int = 1,
        shuffle_best: bool = False,
        default_zone: str | None = None,
        skip_failing: bool = False,
        detailed: bool = False,
        normalization: str = '',
        prefilters: Mapping[str, bool] | None = None,
    ) -> None:
        if len(filters) >= PASSED:
            raise exceptions.Misconfigured(
                option='enabled_filters', problem=f'{len(filters)} filters', fix='Use at most 253'
            )
        for plugin in (*filters, *weighers):
            plugin.check_columns()
        closing = [f for f in filters if isinstance(f, ClosingFilter)]
        self.filters = [*(f for f in filters if not isinstance(f, ClosingFilter)), *closing]
        self._weighings = Weighings(weighers, normalization)
        usual = self._weighings.usual
        self.weighers, self.weigher_names = usual.weighers, usual.names
        self.subset_size = max(1, subset_size)
        self.shuffle_best = shuffle_best
        self.default_zone = default_zone
        self.skip_failing = skip_failing
        self.detailed = detailed
        self.normalization = normalization
        self.prefilters = Prefilters(**(prefilters or {}))
        self._index_filters()
        self._asked = (list(filters), list(weighers))
        self.digest = self._digest()

    def _index_filters(self) -> None:
        """What is known of each filter by its place in the order."""
        self.volatile = [is_volatile(f) for f in self.filters]
        self.local = [f.local and not f.pairwise for f in self.filters]
        self.closing = {k: f for k, f in enumerate(self.filters) if isinstance(f, ClosingFilter)}
        self.keeps = [f.fields is not None and FOLLOWED.issuperset(f.columns) for f in self.filters]
        self.checking = [
            f for f in self.filters if type(f).check_request is not Filter.check_request
        ]
        self.asked_again = [k for k, changes in enumerate(self.volatile) if changes]
        #: Those that may have no say in a request.
        self.choosy = [k for k, f in enumerate(self.filters) if _is_choosy(type(f))]
        self.explains = [type(f).detail is not Filter.detail for f in self.filters]
        self.general = [_general(f) for f in self.filters]
        self.unmoved = [FilterCount(f.name, 0, '') for f in self.filters]
        self.inside = inside_of(self.filters)
        self._applying: dict[tuple[Purpose, bool], list[bool]] = {}

    def in_order(self, names: Sequence[str]) -> 'Pipeline':
        """The same filters in another order; itself where they run so, or the names are others.

        The digest is the same: who survives is, and so is who is chosen.  Only the
        counts tell another story, and a decision names its filters as they ran.
        """
        by_name = {f.name: f for f in self.filters}
        if list(names) == list(by_name) or sorted(names) != sorted(by_name):
            return self
        other = copy.copy(self)
        ordered = [by_name[name] for name in names]
        closing = [f for f in ordered if isinstance(f, ClosingFilter)]
        other.filters = [*(f for f in ordered if not isinstance(f, ClosingFilter)), *closing]
        other._index_filters()
        return other

    def applying(self, purpose: Purpose, forced: bool) -> list[bool]:
        """Per filter whether it runs for such requests."""
        found = self._applying.get((purpose, forced))
        if found is None:
            found = [purpose in f.purposes and (f.always or not forced) for f in self.filters]
            self._applying[purpose, forced] = found
        return found

    def passed_over(self, purpose: Purpose) -> list[str]:
        """Names of the filters that do not look at forced hosts."""
        plain, forced = self.applying(purpose, False), self.applying(purpose, True)
        pairs = zip(self.filters, plain, forced, strict=True)
        return [f.name for f, usually, now in pairs if usually and not now]

    def weighing(self, table: 'HostTable') -> Weighing:
        """The weighers that are asked on this table."""
        return self._weighings.on(table)

    def described(self) -> dict[str, Any]:
        """Everything that decides an outcome besides table and request."""
        filters, weighers = self._asked
        return {
            'filters': {f.name: f.settings() for f in filters},
            'weighers': {w.name: w.settings() for w in weighers},
            'subset_size': self.subset_size,
            'shuffle_best': self.shuffle_best,
            'default_zone': self.default_zone,
            'skip_failing': self.skip_failing,
            'detailed': self.detailed,
            'normalization': self.normalization,
            'prefilters': msgspec.structs.asdict(self.prefilters),
        }

    def _digest(self) -> str:
        body = {
            k: list(v.items()) if isinstance(v, dict) else v for k, v in self.described().items()
        }
        return hashlib.blake2b(repr(body).encode(), digest_size=8).hexdigest()


def _is_choosy(kind: type[Filter]) -> bool:
    """Whether what ``concerns`` says is about the rule as it is.

    A plugin may be made from a filter of ours and ask for more than that one did.
    """
    here = kind.__mro__
    says = next(at for at, one in enumerate(here) if 'concerns' in vars(one))
    asks = next(at for at, one in enumerate(here) if not _ASKED.isdisjoint(vars(one)))
    return kind.concerns is not Filter.concerns and says <= asks


def _general(rule: Filter) -> str:
    """The reason of a filter without the numbers that only its ``detail`` knows."""
    said = re.sub(r'\s*\([^()]*{[^()]*\)', '', rule.reason)
    return rule.name if '{' in said else said


class Pause(enum.Enum):
    """How to go on between two members."""

    GO_ON = 'go on'
    LOOK_ANEW = 'look anew'  # the table has changed meanwhile
    ENOUGH = 'enough'  # the pass ends here; what was placed stays
    OVER = 'over'  # nobody waits for the answer any more


def place(
    table: 'HostTable',
    request: SelectDestinations,
    pipeline: Pipeline,
    *,
    seed: int,
    decision_id: str,
    members: list[int] | None = None,
    attempt: int = 1,
    worker: str = '',
    spread: int = 1,
    pause: Callable[[], Pause] | None = None,
) -> Decision:
    """Choose a host for each of ``members`` (indices into the consumers; None: all).

    All or none: where one member finds no host, what was taken for those
    before it is given back and no selection is returned.

    :param pause: asked before each member but the first how to go on; where it ends the
        pass, the decision is about the members before, and ``planned`` says how many
    :param spread: pick among so many best at least, and all that equal the best one,
        whatever the pipeline says: where races for the best one are lost
    :raises InvalidMessage: the request names a group without its rule, or says something
        that a filter does not understand
    """
    _check(request.spec, pipeline)
    table.default_zone = pipeline.default_zone or table.default_zone
    run = Run(table, request, pipeline, seed, attempt, spread)
    wanted: Sequence[int] = range(len(request.consumers)) if members is None else members
    seq = table.seq
    outcome, reason, cause, contradiction = Outcome.PLACED, '', '', None
    nearest: list[str] = []
    silent: list[str] = []
    try:
        with without_older(table, request, attempt):
            outcome, position = _each(run, wanted, pause)
            if outcome is Outcome.NO_VALID_HOST:
                (reason, cause), nearest, silent, contradiction = _why_not(run, wanted, position)
            elif outcome is Outcome.PLACED:
                wanted = wanted[:position]
                run.add_alternates()
        again, outcome = _placed_anew(run, wanted, outcome, pause)
        if again is not None:
            run, cause, nearest, silent, contradiction = again, '', [], [], None
        if outcome is Outcome.EXPIRED:
            reason = f'its budget ended before all of {len(wanted)} members were planned'
        if outcome is Outcome.PLACED:
            reason = verdict.placed_line(run.decisions, len(table))
    except exceptions.PluginError as e:
        outcome, reason = Outcome.FAILED, e.message
    except BaseException:
        run.give_back()
        raise
    if outcome is not Outcome.PLACED:
        run.withdraw()
    if request.dry_run:
        run.give_back()
    return Decision(
        id=decision_id,
        request_id=request.request_id,
        outcome=outcome,
        hosts=len(table),
        members=run.decisions,
        weighers=run.survey.weighing.names,
        seed=seed,
        spread=spread,
        table_seq=seq,
        age_seconds=run.age_seconds,
        config_digest=pipeline.digest,
        relaxed=[*verdict.given_up(run.decisions), *run.survey.skipped],
        added=run.survey.added,
        reason=reason,
        cause=cause,
        nearest=nearest,
        silent=silent,
        contradiction=contradiction,
        provider_ids=table.provider_ids_bytes(),
        worker=worker,
        created_at=table.now,
        project_id=request.spec.project_id,
        attempt=attempt,
        planned=len(wanted),
    )


def _why_not(
    run: Run, wanted: Sequence[int], position: int
) -> tuple[tuple[str, str], list[str], list[str], Contradiction | None]:
    """The verdict where a member has no place, what would help, and rules in each other's way.

    The verdict comes with what decided it.
    """
    reason, cause = run.failure(len(wanted))
    lines, silent = verdict.nearest(run.survey, run.request.consumers[wanted[position]])
    contradiction = run.survey.contradiction()
    if contradiction is not None:
        reason = f'{reason}; {contradiction.line}'
    nearest = [*verdict.fewer(len(wanted), position), *lines]
    return (reason, cause), nearest, silent, contradiction


def _each(
    run: Run, wanted: Sequence[int], pause: Callable[[], Pause] | None
) -> tuple[Outcome, int]:
    """Place one member after the other: how that ended, and how many have a place."""
    for position, member in enumerate(wanted):
        how = Pause.GO_ON if pause is None or not position else pause()
        if how is Pause.ENOUGH:
            return Outcome.PLACED, position
        if how is Pause.OVER:
            return Outcome.EXPIRED, position
        if how is Pause.LOOK_ANEW:
            run.look_anew()
        if not run.place(member, position == len(wanted) - 1):
            return Outcome.NO_VALID_HOST, position
    return Outcome.PLACED, len(wanted)


def _placed_anew(
    run: Run, wanted: Sequence[int], outcome: Outcome, pause: Callable[[], Pause] | None
) -> tuple[Run | None, Outcome]:
    """A run that places members that the first one could not, and how all ended then."""
    if outcome is not Outcome.NO_VALID_HOST:
        return None, outcome
    ended: list[Outcome] = []

    def placed(another: Run, members: Sequence[int]) -> int:
        found, position = _each(another, members, pause)
        ended.append(found)
        return together.OVER if found is Outcome.EXPIRED else position

    again = together.placed_anew(run, wanted, placed)
    if again is not None:
        return again, Outcome.PLACED
    return None, Outcome.EXPIRED if Outcome.EXPIRED in ended else outcome


def undo(table: 'HostTable', decision: Decision, request: SelectDestinations) -> None:
    """Take the picks of a decision back from the table; once or more often."""
    for member in decision.members:
        chosen = member.selection
        if chosen is not None and chosen.claim_id is not None:
            table.give(chosen.provider_id, request.spec.resources, chosen.claim_id)


def _check(spec: RequestSpec, pipeline: Pipeline) -> None:
    if spec.group is not None and spec.group.policy is None:
        raise exceptions.InvalidMessage(
            field='request.spec.group.policy',
            problem='expected the rule of the group, which is not known here',
        )
    for rule in pipeline.checking:
        rule.check_request(spec)
