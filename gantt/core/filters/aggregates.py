# SPDX-License-Identifier: Apache-2.0
"""AggregatesFilter: in all the aggregates asked for, in none of the forbidden."""

from typing import TYPE_CHECKING

import numpy as np

from gantt.core.columns import BoolArray
from gantt.core.filters.base import Filter, has_any
from gantt.core.request import RequestSpec

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable


class AggregatesFilter(Filter):
    """``member_of`` is an AND of ORs; aggregates are named by uuid or name."""

    reason = 'not in the aggregates asked for, or in a forbidden one'
    columns = ('aggregates',)
    fields = ('member_of', 'forbidden_aggregates')
    always = True

    def mask(self, hosts: 'HostTable', spec: RequestSpec) -> BoolArray | None:
        return aggregate_mask(hosts, spec.member_of, spec.forbidden_aggregates)


def aggregate_mask(
    hosts: 'HostTable', member_of: list[list[str]], forbidden: list[str]
) -> BoolArray | None:
    """Hosts that are in one of each list of ``member_of`` and in none of ``forbidden``."""
    mask: BoolArray | None = None
    for names in member_of:
        inside = has_any(hosts.aggregates, hosts.aggregate_bits(names))
        mask = inside if mask is None else np.logical_and(mask, inside, out=mask)
    if forbidden:
        words = hosts.aggregate_bits(forbidden)
        if words:
            outside = ~has_any(hosts.aggregates, words)
            mask = outside if mask is None else np.logical_and(mask, outside, out=mask)
    return mask
