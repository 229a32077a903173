# SPDX-License-Identifier: Apache-2.0
"""AggregateInstanceExtraSpecsFilter: the flavor's extra specs fit the host's aggregates."""

from typing import TYPE_CHECKING, Any

import numpy as np

from gantt.core.filters.aggregate_metadata import inside, those
from gantt.core.filters.base import Filter, only, told_apart
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.rules import nova_specs
from gantt.core.table.columns import BoolArray, IntArray

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

SCOPE = 'aggregate_instance_extra_specs:'
AS_NOVA = Option(
    'extra_specs_as_nova',
    bool,
    False,
    'Read extra specs in all as Nova does: of <or> a b c only every other word counts, and <in> '
    'and <all-in> look into the printed form of a list instead of for members of it',
)


class AggregateInstanceExtraSpecsFilter(Filter):
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

    def mask(self, hosts: 'HostTable', spec: RequestSpec) -> BoolArray | None:
        mask: BoolArray | None = None
        for key, wanted in asked(spec):
            fits = self._fitting(hosts, spec, key, wanted)
            mask = fits if mask is None else np.logical_and(mask, fits)
        return mask

    def detail(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> dict[str, Any]:
        """Each host is counted for the first key that does not fit."""
        parts: dict[str, int] = {}
        for key, wanted in asked(spec):
            if not len(rows):
                break
            wrong = ~self._fitting(hosts, spec, key, wanted).take(rows)
            count = int(np.count_nonzero(wrong))
            if count:
                without = int(np.count_nonzero(wrong & ~_has(hosts, key).take(rows)))
                if without:
                    parts[f'in no aggregate with {key}'] = without
                if count > without:
                    parts[f'in aggregates whose {key} does not fit {wanted!r}'] = count - without
                rows = rows[~wrong]
        return {'parts': parts}

    def remedy(self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray) -> str:
        wrong = [
            (f'{key} {wanted}', ~self._fitting(hosts, spec, key, wanted).take(rows))
            for key, wanted in asked(spec)
        ]
        return told_apart(hosts, rows, wrong, 'fits on {where} in an aggregate with: {what}')

    def _fitting(self, hosts: 'HostTable', spec: RequestSpec, key: str, wanted: str) -> BoolArray:
        if not key:
            return only(hosts, [])
        fact = f'metadata_listed.{key}'
        return nova_specs.expression(wanted, fact, self.extra_specs_as_nova).mask(hosts, spec)


def _has(hosts: 'HostTable', key: str) -> BoolArray:
    return inside(hosts, those(hosts, lambda metadata: key in metadata))


def asked(spec: RequestSpec) -> list[tuple[str, str]]:
    """Extra specs that concern aggregates, keys without the scope."""
    return [
        (key.removeprefix(SCOPE), wanted)
        for key, wanted in spec.flavor.extra_specs.items()
        if ':' not in key or key.startswith(SCOPE)
    ]
