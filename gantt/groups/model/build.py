# SPDX-License-Identifier: Apache-2.0
"""Construction of the problem of a group: masks, steps and scores of the pipeline on a table."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from gantt import exceptions
from gantt.core.group_policies.forms import PolicyForms, present_guests_of_group
from gantt.core.group_policies.levels import Levels
from gantt.core.group_policies.policies import JointPolicy, PolicyForm
from gantt.core.messages.request import RequestSpec
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.pipeline import Pipeline
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.groups.model import group_table
from gantt.groups.model.group_description import GroupDescription
from gantt.groups.model.group_table import ChoiceScore
from gantt.groups.model.problem import UNLIMITED, GroupProblem, MemberOption, required_first

#: Layer of policies that the caller lets drop, as rules of users are.
_CALLERS = 1
_encode = msgspec.msgpack.Encoder(order='deterministic').encode


def build_problem(
    table: HostTable,
    description: GroupDescription,
    pipeline: Pipeline,
    *,
    members: Mapping[str, str] | None = None,
    placed: Mapping[str, str] | None = None,
) -> GroupProblem:
    """Return the problem of a group on a table, which is read and not changed.

    :param members: consumer of the group on the table -> name of its member
    :param placed: names of existing places -> the member that each of them is: that many fewer
        of these members are placed
    :raises InvalidMessage: a policy names a level, host or pool that does not exist, or a member
        has a value that a filter does not understand
    """
    pipeline.set_site_names(table)
    units = _Units(description, placed or {})
    specs, choices_of_entry = _specs(description)
    _check_description(description, pipeline)
    present = present_guests_of_group(table, description.uuid, members or {})
    present_rows = np.unique(present.rows_of(None))
    runs = [_evaluate_spec(table, spec, pipeline, present_rows) for spec in specs]
    levels = Levels(table)
    policies = [
        form
        for index, policy in enumerate(description.full_policies)
        for form in PolicyForms(levels, present, units, description, index, policy).all()
    ]
    stepped = [step for run in runs for step, _ in run.steps]
    dropped = [(_CALLERS, p.drop) for p in description.full_policies if p.drop is not None]
    steps = sorted({*stepped, *dropped}, key=lambda step_key: (step_key[0], -step_key[1]))
    policies = [_with_step(p, description, steps) for p in policies]
    kinds, choices_of = _kinds_of_units(units, policies, choices_of_entry)
    unit_counts = np.zeros(len(specs), np.int64)
    for entry, count in zip(*np.unique(units.entries, return_counts=True), strict=True):
        for c in choices_of_entry[int(entry)]:
            unit_counts[c] += count
    scores, is_steady = group_table.scores_of_choices(
        table, specs, pipeline, [run.mask for run in runs], unit_counts
    )
    resources = _Resources(table, specs)
    return GroupProblem(
        names=units.names,
        entries=units.entries,
        required=units.required,
        kinds=kinds,
        choices_of=choices_of,
        choices=[
            _member_option(spec, run, steps, resources.demand(spec), score)
            for run, spec, score in zip(runs, specs, scores, strict=True)
        ],
        classes=resources.classes,
        free=resources.free,
        bins=resources.bins,
        limit=_unit_limits(table, runs),
        policies=[_with_eligible_domains(p, kinds, choices_of, runs) for p in policies],
        steps=steps,
        is_steady=is_steady,
    )


class _Units:
    """Units of a description: its members that have no place yet, each by itself.

    :param placed: name of an existing place -> its member
    """

    def __init__(self, description: GroupDescription, placed: Mapping[str, str]) -> None:
        placed_counts = Counter(placed.values())
        self.names: list[str] = []
        counts = []
        for member in description.members:
            placed_count = placed_counts[member.name]
            least, most = max(member.least - placed_count, 0), max(member.most - placed_count, 0)
            free = [name for name in member.unit_names if name not in placed]
            self.names += free[:most]
            counts.append((least, most))
        self.entries = np.repeat(np.arange(len(counts)), [most for _, most in counts])
        self.required = required_first(counts)
        self._entry_by_name = {member.name: i for i, member in enumerate(description.members)}

    def of(self, names: Sequence[str] | None) -> BoolArray:
        """Return a mask of the units that are members of these names; None: all."""
        if names is None:
            return np.ones(len(self.names), np.bool_)
        return np.isin(self.entries, [self._entry_by_name[name] for name in names])


def _specs(description: GroupDescription) -> tuple[list[RequestSpec], list[list[int]]]:
    """Return the distinct specs, and those of each member by index."""
    code_of: dict[bytes, int] = {}
    specs: list[RequestSpec] = []
    of_entry = []
    for member in description.members:
        codes = []
        for spec in member.specs:
            code = code_of.setdefault(_encode(spec), len(specs))
            if code == len(specs):
                specs.append(spec)
            if code not in codes:
                codes.append(code)
        of_entry.append(codes)
    return specs, of_entry


def _check_description(description: GroupDescription, pipeline: Pipeline) -> None:
    for path, spec in description.specs_by_path:
        for rule in pipeline.request_checkers:
            try:
                rule.check_request(spec)
            except exceptions.InvalidMessage as e:
                field = str(e.kwargs['field']).replace('request.spec', f'group.{path}', 1)
                raise type(e)(None, **{**e.kwargs, 'field': field}) from None


class _SpecEvaluation(msgspec.Struct, frozen=True, eq=False):
    """Result of the pipeline for one spec.

    :ivar mask: hosts that pass
    :ivar counted: ``mask``, and hosts with members of the group that are only full
    """

    mask: BoolArray
    counted: BoolArray
    steps: list[tuple[tuple[int, int], BoolArray]]
    filter_run: FilterRun


def _evaluate_spec(
    table: HostTable, spec: RequestSpec, pipeline: Pipeline, stands: IntArray
) -> _SpecEvaluation:
    """Return the hosts that pass every filter, hard rules included.

    :param stands: rows of hosts with members of the group
    """
    alone = FilterRun(table, spec, pipeline.without_relaxable())
    alone.evaluate('')
    counted = alone.alive.copy()
    counted[alone.only_full(stands)] = True
    relaxable = FilterRun(table, spec, pipeline)
    for k in pipeline.relaxable:
        relaxable_mask = relaxable.mask_of(k, '')
        if relaxable_mask is not None:
            counted &= relaxable_mask
    return _SpecEvaluation(alone.alive & counted, counted, relaxable.steps(), alone)


def _member_option(
    spec: RequestSpec,
    run: _SpecEvaluation,
    steps: Sequence[tuple[int, int]],
    demand: IntArray,
    score: ChoiceScore,
) -> MemberOption:
    unmet = np.zeros((len(steps), len(run.mask)), np.bool_)
    for key, met in run.steps:
        unmet[steps.index(key)] |= ~met
    return MemberOption(spec, demand, run.mask, unmet, score.gain, score.best, score.crowd)


def _unit_limits(table: HostTable, runs: Sequence[_SpecEvaluation]) -> IntArray:
    limit = np.full(len(table), UNLIMITED, np.int64)
    anywhere = np.zeros(len(table), np.bool_)
    for run in runs:
        anywhere |= run.mask
    rows = np.flatnonzero(anywhere)
    limit[rows] = np.minimum(limit[rows], runs[0].filter_run.counted(rows))
    return limit


def _kinds_of_units(
    units: _Units, policies: Sequence[JointPolicy], choices_of_entry: Sequence[list[int]]
) -> tuple[IntArray, list[list[int]]]:
    """Return the kind of each unit, by equal choices and policy roles, and the choices by kind."""
    roles = np.array(
        [mask for policy in policies for mask in (policy.subject_units, policy.target_units)],
        np.bool_,
    ).reshape(2 * len(policies), len(units.names))
    packed = np.packbits(roles, axis=0)
    kind_of: dict[tuple[tuple[int, ...], bytes, bool], int] = {}
    kinds = np.zeros(len(units.names), np.int64)
    choices_of: list[list[int]] = []
    for unit, entry in enumerate(units.entries.tolist()):
        choices = choices_of_entry[entry]
        key = (tuple(choices), packed[:, unit].tobytes(), bool(units.required[unit]))
        kinds[unit] = kind_of.setdefault(key, len(kind_of))
        if len(choices_of) < len(kind_of):
            choices_of.append(choices)
    return kinds, choices_of


class _Resources:
    """Classes that hosts have themselves or one pool has for them; others are tried at the end."""

    def __init__(self, table: HostTable, specs: Sequence[RequestSpec]) -> None:
        pools, count = table.pools, len(table)
        names = dict.fromkeys(name for spec in specs for name in spec.resources)
        self.classes = [name for name in names if name not in pools.nested.of_class]
        shared = sorted({p for name in self.classes for p in pools.of_class.get(name, ())})
        bin_of = {pool: count + i for i, pool in enumerate(shared)}
        width = count + len(shared) + 1  # the last bin is not counted
        self.free = np.full((len(self.classes), width), UNLIMITED, np.int64)
        self.bins = np.tile(np.arange(count), (len(self.classes), 1))
        for k, name in enumerate(self.classes):
            code = table.class_code(name)
            self.free[k, :count] = 0 if code is None else np.maximum(table.free_of(code), 0)
            if name not in pools.of_class:
                continue
            on_host = np.zeros(count, np.bool_) if code is None else table.cap_of(code) > 0
            for row in range(count):
                serving = pools.serving(table.hosts[row].id, name)
                if on_host[row] and serving or len(serving) > 1:
                    self.bins[k, row] = width - 1
                elif serving:
                    self.bins[k, row] = bin_of[serving[0]]
            for pool in shared:
                if pool in pools.of_class[name]:
                    self.free[k, bin_of[pool]] = max(pools.free(pool, name), 0)

    def demand(self, spec: RequestSpec) -> IntArray:
        """Return the demand of a unit, by class."""
        return np.array([spec.resources.get(name, 0) for name in self.classes], np.int64)


def _with_step(
    policy: JointPolicy, description: GroupDescription, steps: Sequence[tuple[int, int]]
) -> JointPolicy:
    drop = description.full_policies[policy.index].drop
    if drop is None:
        return policy
    return msgspec.structs.replace(policy, step=steps.index((_CALLERS, drop)))


def _with_eligible_domains(
    policy: JointPolicy,
    kinds: IntArray,
    choices_of: Sequence[list[int]],
    runs: Sequence[_SpecEvaluation],
) -> JointPolicy:
    """Return a policy with the domains that count for skew: with a host for, or with, members."""
    if policy.form is not PolicyForm.SKEW:
        return policy
    eligible = np.zeros(policy.domains, np.bool_)
    for kind in np.unique(kinds[policy.subject_units]).tolist():
        for choice in choices_of[kind]:
            codes = policy.codes[runs[choice].counted]
            eligible[codes[codes >= 0]] = True
    return msgspec.structs.replace(policy, eligible=eligible)
