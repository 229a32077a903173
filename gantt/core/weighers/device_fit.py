# SPDX-License-Identifier: Apache-2.0
"""DeviceFitWeigher: shares of devices where they fit tightest, so that whole devices stay whole.

A device that is partly used already has less left than a whole one.  Of several devices of a host
the tightest count, as the search within its tree takes them.
"""

from collections import Counter

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.table.nested import key_of
from gantt.core.weighers.base import Weigher


class DeviceFitWeigher(Weigher):
    """More means: a larger share is left of the devices that are taken from; less is better.

    For requests that take something of what is nested below hosts: the mean over all that they
    take there.  A host that gives it itself, or from a pool that it shares, breaks no device.
    """

    columns = ('free', 'cap')
    local = True
    negated = True
    minval = 0.0
    maxval = 1.0
    normalization = 'absolute'
    multiplier_option = 'device_fit_weight_multiplier'
    multiplier_help = (
        'Multiplier for how tightly shares of devices fit: whole devices stay whole; negative '
        'spreads shares over devices'
    )

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> FloatArray | None:
        nested = hosts.pools.nested
        if not nested.of_class or (spec.tree is None and not nested.have_any(spec.resources)):
            return None
        query = hosts.tree_query(spec)
        parts = [
            part
            for part in query.parts()
            if part.amounts and all(name in nested.of_class for name, _ in part.amounts)
        ]
        if not parts:
            return None
        likes, isolated = Counter(map(key_of, parts)), frozenset[str]().union(*query.apart)
        total = np.zeros(len(hosts))
        for part in {key_of(part): part for part in parts}.values():
            alike = likes[key_of(part)]
            share_left = hosts.nested_tightest(part, alike if part.suffix in isolated else 1)
            total += np.where(np.isinf(share_left), 0.0, share_left) * (alike / len(parts))
        return np.minimum(total, 1.0).take(rows)
