# SPDX-License-Identifier: Apache-2.0
"""PoolRoomWeigher: pools of which a larger share is left first."""

import numpy as np

from gantt.core.messages.request import RequestKind, RequestSpec
from gantt.core.plugin import Option
from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import Weigher


class PoolRoomWeigher(Weigher):
    """More means: a larger share of the capacity is left, of the class with the smallest one.

    For requests that are placed on pools; one without a class has nothing free of it.
    """

    kinds = frozenset({RequestKind.POOL})
    columns = ('free', 'cap')
    local = True
    minval = 0.0
    maxval = 1.0
    multiplier_option = 'pool_room_weight_multiplier'
    multiplier_help = 'Multiplier for the free share of pools; negative fills one after another'
    options = (
        Option(
            'pool_room_classes',
            list,
            [],
            'Resource classes of which the free share of a pool is weighed; empty: those that '
            'the request asks for',
        ),
    )
    pool_room_classes: list[str]

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> FloatArray:
        least = np.ones(len(rows))
        for name in self.pool_room_classes or spec.resources:
            code = hosts.class_code(name)
            if code is None:
                return np.zeros(len(rows))
            cap = hosts.cap_of(code).take(rows)
            remaining = hosts.free_of(code).take(rows) - spec.resources.get(name, 0)
            share = remaining / np.maximum(cap, 1)
            np.minimum(least, share, out=least)
        return least
