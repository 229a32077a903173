# SPDX-License-Identifier: Apache-2.0
"""RulesWeigher: soft rules, by the share of their weight that a host meets."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from gantt import exceptions
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.rules import layers
from gantt.core.rules.facts import FACTS
from gantt.core.rules.rule import Rule, Strength
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import Weigher

#: Most rules for which shares are read from a table.
_TABLE_RULES_MAX = 6


class RulesWeigher(Weigher):
    """More means: a larger share of the soft rules is met, each by its weight; from 0 to 1.

    All rules of a user together weigh half of the operator's lightest one: they choose
    among hosts that are the same to the operator.
    """

    columns = tuple(sorted({column for fact in FACTS.values() for column in fact.reads}))
    multiplier_option = 'rules_weight_multiplier'
    normalization = 'absolute'
    minval = 0.0
    maxval = 1.0
    local = True
    multiplier_help = 'Multiplier for the soft rules of a request'
    options = (
        Option(
            'operator_preferences',
            str,
            '',
            'Soft rules for every request, separated by semicolons.',
        ),
    )
    operator_preferences: str

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values)
        try:
            self._configured = layers.configured_rules(self.operator_preferences)
        except exceptions.InvalidRule as e:
            raise self.refused('operator_preferences', e.message, 'Correct it') from None
        for rule in self._configured:
            if rule.strength is not Strength.SOFT:
                problem = f'{rule.text}: expected a weight, as in soft 2.5: …'
                raise self.refused('operator_preferences', problem, 'Correct it')

    def raw(
        self, hosts: HostTable, spec: RequestSpec, rows: IntArray
    ) -> FloatArray | BoolArray | None:
        if not (self._configured or spec.may_bring_rules or hosts.known_aggregates):
            return None  # where there can be no rules, none are read
        weighed, together = effective_weights(
            layers.operator_layer(hosts, spec, self._configured).soft, layers.user_layer(spec).soft
        )
        if not weighed:
            return None
        if len(weighed) == 1:
            return weighed[0][0].mask(hosts, spec, rows)
        if len(weighed) > _TABLE_RULES_MAX:
            total = np.zeros(len(rows))
            for rule, weight in weighed:
                total += rule.mask(hosts, spec, rows) * weight
            return np.divide(total, together, out=total)
        masks = (rule.mask(hosts, spec, rows).view(np.uint8) for rule, _ in weighed)
        met_bits = next(masks)
        # For a few rules all shares are computed once: the index has a bit for each rule.
        for mask in masks:
            met_bits = np.add(met_bits, met_bits)
            np.add(met_bits, mask, out=met_bits)
        return _shares_by_bits(tuple(weight for _, weight in weighed), together).take(met_bits)


@functools.lru_cache(maxsize=256)
def _shares_by_bits(weights: tuple[float, ...], together: float) -> FloatArray:
    """Return the share of hosts by the rules that they meet, a bit for each."""
    shares = np.zeros(1 << len(weights))
    bits = np.arange(len(shares))
    for bit, weight in zip(reversed(range(len(weights))), weights, strict=True):
        shares += (bits >> bit & 1) * weight
    return shares / together


@functools.lru_cache(maxsize=512)
def effective_weights(
    operator: tuple[Rule, ...], user: tuple[Rule, ...]
) -> tuple[tuple[tuple[Rule, float], ...], float]:
    """Return each soft rule with its effective weight, and the sum of these."""
    scale = 1.0
    if operator and user:
        of_user = sum(rule.weight for rule in user)
        scale = min(rule.weight for rule in operator) / 2 / of_user
    weighed = [(rule, rule.weight) for rule in operator]
    weighed += [(rule, rule.weight * scale) for rule in user]
    # The sum in the same order, so that a host that meets all of them gets 1.
    return tuple(weighed), sum(weight for _, weight in weighed)
