# SPDX-License-Identifier: Apache-2.0
"""RulesFilter: the rules of operators and users, and the choice of those to give up."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gantt import exceptions
from gantt.core.filters.base import UNBOUNDED, RelaxableFilter, grouped_by_problem
from gantt.core.group_policies.one_member import PolicyCost, costs_of_policies
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.records.decision import GROUP_SOURCE, Contradiction, is_rule_of_user, plain_text
from gantt.core.rules import layers
from gantt.core.rules.facts import FACTS
from gantt.core.rules.layers import Layer, Scope
from gantt.core.rules.rule import Rule, Strength
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.core.table.host_table import HostTable

#: Layers of the operator and of the user without rules.
NO_RULES = (Layer(), Layer())
#: Strength of policies of a group that are steps of the ladder, beside the rules.
_DROP_STRENGTH = ('drop',)
FEWER_RULES_REASON = 'meeting fewer of the rules that may be given up than others'


class RulesFilter(RelaxableFilter):
    """Meets every hard rule, and as many as anybody of those that may be given up."""

    reason = 'against the rules'
    public_reason = 'rules of the request, its flavor or the operator'
    columns = tuple(sorted({column for fact in FACTS.values() for column in fact.reads}))
    options = (
        Option(
            'operator_rules',
            str,
            '',
            'Rules for every request, hard or to be dropped in order, separated by semicolons. '
            'No user can relax them.',
        ),
        Option(
            'user_facts', list, [], 'Facts of hosts that rules of users may be about. Empty: all.'
        ),
    )
    operator_rules: str
    user_facts: list[str]

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values)
        try:
            self._configured = layers.configured_rules(self.operator_rules)
        except exceptions.InvalidRule as e:
            raise self.refused('operator_rules', e.message, 'Correct it') from None
        for rule in self._configured:
            if rule.strength is Strength.SOFT:
                problem = (
                    f'{rule.text}: a soft rule; expected it in [weighers] operator_preferences'
                )
                raise self.refused('operator_rules', problem, 'Correct it')
        self._users = frozenset(self.user_facts)
        for name in sorted(self._users - FACTS.keys()):
            problem = f'expected the name of a fact, got {name}; known: {", ".join(FACTS)}'
            raise self.refused('user_facts', problem, 'Correct it')

    # -- the request -----------------------------------------------------------

    def check_request(self, spec: RequestSpec) -> None:
        if spec.flavor.extra_specs:
            layers.flavor_rules(spec)
        texts = spec.hints.get(layers.RULES_HINT)
        if not texts:
            return
        layers.user_layer(spec)
        if not self._users:
            return
        for number, rule in enumerate(layers.user_rules(tuple(texts))):
            hidden = [
                fact.name for fact in rule.condition.facts if not self._is_permitted(fact.name)
            ]
            if hidden:
                raise exceptions.InvalidRule(
                    field=f'request.spec.hints.{layers.RULES_HINT}[{number}]',
                    problem=f'rules of users may not be about {hidden[0]}; '
                    f'expected one of {", ".join(sorted(self._users))}',
                    at=0,
                )

    def _is_permitted(self, fact: str) -> bool:
        return fact in self._users or fact.startswith('request.')

    def _layers(self, hosts: HostTable, spec: RequestSpec) -> Sequence[Layer]:
        if not (self._configured or spec.may_bring_rules or hosts.known_aggregates):
            return ()  # where there can be no rules, none are read
        operator = layers.operator_layer(hosts, spec, self._configured)
        user = layers.user_layer(spec)
        return (operator, user) if operator.binding or user.binding else ()

    # -- the hosts -------------------------------------------------------------

    def mask_among(self, hosts: HostTable, spec: RequestSpec, alive: BoolArray) -> BoolArray | None:
        rule_layers = self._layers(hosts, spec)
        return layers.narrow_hosts(hosts, spec, alive, rule_layers) if rule_layers else None

    def mask_among_for(
        self, hosts: HostTable, spec: RequestSpec, alive: BoolArray, consumer: str
    ) -> BoolArray | None:
        if not _has_steps(spec):
            return self.mask_among(hosts, spec, alive)

        def dropped(remaining: BoolArray) -> Mapping[int, FloatArray]:
            return _policies_lost(hosts, spec, remaining, consumer)

        rule_layers = self._layers(hosts, spec) or NO_RULES
        return layers.narrow_hosts(hosts, spec, alive, rule_layers, dropped)

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        rule_layers = self._layers(hosts, spec)
        if not rule_layers:
            return None
        mask = np.ones(len(hosts), np.bool_)
        for rule in self._hard(hosts, spec):
            mask &= rule.mask(hosts, spec)
        return mask

    def passes(self, hosts: HostTable, spec: RequestSpec, row: int) -> bool:
        rule_layers = self._layers(hosts, spec)
        if _has_steps(spec) or not layers.is_unaffected_by_picks(rule_layers):
            return False  # others may be the better ones now
        return all(
            rule.is_met(hosts, spec, row)
            for layer in rule_layers
            for rule in layer.hard
            if rule.volatile
        )

    def picks_left(self, hosts: HostTable, spec: RequestSpec, row: int) -> int | None:
        has_rules = self._layers(hosts, spec) or _has_steps(spec)
        return None if has_rules else UNBOUNDED

    def given_up(self, hosts: HostTable, spec: RequestSpec, row: int) -> list[tuple[int, str]]:
        rule_layers = self._layers(hosts, spec)
        return layers.rules_given_up(hosts, spec, row, rule_layers) if rule_layers else []

    def given_up_for(
        self, hosts: HostTable, spec: RequestSpec, row: int, alive: BoolArray, consumer: str
    ) -> list[tuple[int, str]]:
        if not _has_steps(spec):
            return self.given_up(hosts, spec, row)
        hard = alive.copy()
        for rule in self._hard(hosts, spec):
            hard &= rule.mask(hosts, spec)
        unmet_policies = _policies_unmet(hosts, spec, row, hard, consumer)
        return layers.rules_given_up(
            hosts, spec, row, self._layers(hosts, spec) or NO_RULES, unmet_policies
        )

    def steps(self, hosts: HostTable, spec: RequestSpec) -> list[tuple[tuple[int, int], BoolArray]]:
        return layers.steps(hosts, spec, self._layers(hosts, spec))

    # -- why ---------------------------------------------------------------------

    def detail(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        parts: dict[str, int] = {}
        public_parts: dict[str, str] = {}
        remaining = rows
        for rule in self._hard(hosts, spec):
            met = rule.mask(hosts, spec, remaining)
            if not met.all():
                text = f'against the rule {rule}'
                parts[text] = parts.get(text, 0) + int(np.count_nonzero(~met))
                if not is_rule_of_user(str(rule)):
                    public_parts[text] = f'against {plain_text(str(rule))}'
                remaining = remaining[met]
        if len(remaining):
            parts[FEWER_RULES_REASON] = len(remaining)
        return {'parts': parts} | ({'public_parts': public_parts} if public_parts else {})

    def _hard(self, hosts: HostTable, spec: RequestSpec) -> list[Rule]:
        return [rule for layer in self._layers(hosts, spec) for rule in layer.hard]

    def facts(self, hosts: HostTable, spec: RequestSpec, row: int) -> list[str]:
        binding = [
            rule
            for layer in self._layers(hosts, spec)
            for rules in (layer.hard, *layer.steps)
            for rule in rules
        ]
        return [
            f'{"meets" if rule.is_met(hosts, spec, row) else "does not meet"} {rule}'
            for rule in binding
        ]

    def remedy(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> str:
        wrong = [(str(r), ~r.mask(hosts, spec, rows)) for r in self._hard(hosts, spec)]
        return grouped_by_problem(hosts, rows, wrong, 'fits on {where} but for: {what}')

    def contradiction(
        self, hosts: HostTable, spec: RequestSpec, alive: BoolArray
    ) -> Contradiction | None:
        rules, scope = layers.conflicting_rules(hosts, spec, alive, self._layers(hosts, spec))
        if not rules:
            return None
        if scope is Scope.FITTING:
            count = int(np.count_nonzero(alive))
            fit = 'the one host that fits' if count == 1 else f'the {count} hosts that fit'
            sentence = f'of {fit} otherwise none meets'
        elif scope is Scope.EVER:
            sentence = 'no host could ever meet'
        elif any(rule.volatile for rule in rules):
            sentence = 'no host now meets'
        else:
            sentence = 'no host, however empty, meets'
        subject = 'this rule' if len(rules) == 1 else 'all of these rules'
        return Contradiction(says=f'{sentence} {subject}', rules=[str(rule) for rule in rules])


def _has_steps(spec: RequestSpec) -> bool:
    """Return whether the group of a request has policies that are dropped in order."""
    group = spec.group
    return group is not None and group.policies is not None and group.policies.has_steps


def _policies_lost(
    hosts: HostTable, spec: RequestSpec, left: BoolArray, consumer: str
) -> Mapping[int, FloatArray]:
    """Return order -> what the member would break of the policies of that order, by row.

    :param left: rows that meet all that is hard
    """
    costs_by_order = _costs_by_order(
        costs_of_policies(hosts, spec, consumer, could=left, strengths=_DROP_STRENGTH)
    )
    return {
        order: np.sum([cost.by_row for cost in step_costs], axis=0)
        for order, step_costs in costs_by_order.items()
    }


def _policies_unmet(
    hosts: HostTable, spec: RequestSpec, row: int, left: BoolArray, consumer: str
) -> Mapping[int, list[str]]:
    """Return order -> the policies of that order that a host does not meet; all orders are keys."""
    costs_by_order = _costs_by_order(
        costs_of_policies(hosts, spec, consumer, could=left, strengths=_DROP_STRENGTH)
    )
    return {
        order: [
            f'drop {order}: {cost.line} ({GROUP_SOURCE})'
            for cost in step_costs
            if not cost.met[row]
        ]
        for order, step_costs in costs_by_order.items()
    }


def _costs_by_order(policy_costs: list[PolicyCost]) -> dict[int, list[PolicyCost]]:
    by_order: dict[int, list[PolicyCost]] = {}
    for cost in policy_costs:
        if cost.policy.drop is not None:
            by_order.setdefault(cost.policy.drop, []).append(cost)
    return by_order
