# SPDX-License-Identifier: Apache-2.0
"""Placing by rules in small worlds."""

from typing import Any

from gantt.core.filters.compute import ComputeFilter
from gantt.core.filters.resources import ResourcesFilter
from gantt.core.filters.rules import RulesFilter
from gantt.core.messages.request import Flavor
from gantt.core.placement.pipeline import Pipeline, PipelineSettings
from gantt.core.resources.host import Aggregate
from gantt.core.weighers.free_amounts import RAMWeigher
from gantt.core.weighers.rules import RulesWeigher
from tests.core.builders import a_host, a_request, a_table, an_id, decide


def a_pipeline(operator: str = '', preferences: str = '', **settings: Any) -> Pipeline:
    """Return room, liveness and rules; the filter of rules is listed first and runs last."""
    return Pipeline(
        [RulesFilter({'operator_rules': operator}), ComputeFilter(), ResourcesFilter()],
        [RAMWeigher(), RulesWeigher({'operator_preferences': preferences})],
        PipelineSettings(**settings),
    )


def an_aggregate(number: int, name: str, *hosts: str, **metadata: str) -> Aggregate:
    """Return an aggregate; ``__`` in a key stands for a colon."""
    named = {key.replace('__', ':'): value for key, value in metadata.items()}
    return Aggregate(id=number, uuid=an_id(number, 9), name=name, hosts=list(hosts), metadata=named)


def asked(*rules: str, count: int = 1, flavor: dict[str, str] | None = None, **spec: Any):
    """Return a request with rules of its user, and of its flavor."""
    hints = spec.pop('hints', {}) | ({'rules': list(rules)} if rules else {})
    if flavor:
        spec['flavor'] = Flavor(extra_specs={f'rule:{k}': v for k, v in flavor.items()})
    return a_request(count, hints=hints, **spec)


def a_site():
    """Return two sites: s1 has two rooms of one host, s2 one; the first host is the smallest."""
    return a_table(
        a_host(1, location='s1.r1.k1.h1', ram=16384, traits=['SSD']),
        a_host(2, location='s1.r2.k1.h2', ram=32768),
        a_host(3, location='s2.r1.k1.h3', ram=65536, traits=['SSD', 'GPU']),
        aggregates=[an_aggregate(1, 'gold', 'cmp-3')],
    )


__all__ = ['a_pipeline', 'a_site', 'an_aggregate', 'asked', 'decide']
