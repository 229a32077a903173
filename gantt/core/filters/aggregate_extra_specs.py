# SPDX-License-Identifier: Apache-2.0
"""AggregateInstanceExtraSpecsFilter: the flavor's extra specs fit the host's aggregates."""

import numpy as np

from gantt.core.filters.aggregate_metadata import inside, those
from gantt.core.filters.base import Condition, Conditions, ConditionsFilter, Parts, only
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.rules import nova_specs
from gantt.core.table.columns import BoolArray, IntArray
from gantt.core.table.host_table import HostTable

SCOPE = 'aggregate_instance_extra_specs:'
AS_NOVA = Option(
    'extra_specs_as_nova',
    bool,
    False,
    'Read extra specs in all as Nova does: of <or> a b c only every other word counts, and <in> '
    'and <all-in> look into the printed form of a list instead of for members of it',
)


class AggregateInstanceExtraSpecsFilter(ConditionsFilter):
    """Every key without scope, or in the filter's own, is in an aggregate with a fitting value.

    One fitting value of any aggregate of the host is enough, so ``s!= x`` passes
    wherever some value differs.
    """

    reason = 'its aggregates do not have what the extra specs ask for'
    public_reason = 'the extra specs of the flavor'
    columns = ('aggregates',)
    fields = ('flavor',)
    options = (AS_NOVA,)
    extra_specs_as_nova: bool
    shown = '{0} {1}'
    remedy_text = 'fits on {where} in an aggregate with: {what}'

    def conditions(self, hosts: HostTable, spec: RequestSpec) -> Conditions:
        for key, requirement in requested_specs(spec):
            yield (key, requirement), self._meets(hosts, spec, key, requirement)

    def _meets(self, hosts: HostTable, spec: RequestSpec, key: str, wanted: str) -> BoolArray:
        if not key:  # a fact without a key has no name
            return only(hosts, [])
        fact = f'metadata_listed.{key}'
        return nova_specs.expression(wanted, fact, self.extra_specs_as_nova).mask(hosts, spec)

    def parts(self, hosts: HostTable, condition: Condition, rows: IntArray) -> Parts:
        key, requirement = condition
        has_key = inside(hosts, those(hosts, lambda metadata: key in metadata)).take(rows)
        count = int(np.count_nonzero(has_key))
        yield f'in no aggregate with {key}', len(rows) - count
        yield f'in aggregates whose {key} does not fit {requirement!r}', count


def requested_specs(spec: RequestSpec) -> list[tuple[str, str]]:
    """Return extra specs that concern aggregates, keys without the scope."""
    return [
        (key.removeprefix(SCOPE), requirement)
        for key, requirement in spec.flavor.extra_specs.items()
        if ':' not in key or key.startswith(SCOPE)
    ]
