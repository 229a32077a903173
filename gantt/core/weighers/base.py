# SPDX-License-Identifier: Apache-2.0
"""The shape of a weigher: a soft preference as one raw number per surviving host.

A weigher says in one sentence what *more* means.  Scale, sign and sum are made
here, once, for all of them: raw values are brought to [0, 1] over the hosts
that survived this request's filters, from the declared minimum (else the
smallest) to the declared maximum (else the largest), and multiplied.  Where
both ends are equal every host gets 0.
"""

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gantt import exceptions
from gantt.core.columns import FloatArray, IntArray
from gantt.core.plugin import Plugin
from gantt.core.request import RequestSpec

if TYPE_CHECKING:
    from gantt.core.host_table import HostTable

# The methods of an array go through a layer of Python; these do not.
_least, _most = np.minimum.reduce, np.maximum.reduce


class Weigher(Plugin):
    """A soft preference.

    :cvar multiplier_option: name of the option that holds its multiplier
    :cvar minval: raw values below count as this, and the scale begins here
    :cvar maxval: raw values above count as this, and the scale ends here
    """

    multiplier_option: ClassVar[str] = ''
    minval: ClassVar[float | None] = None
    maxval: ClassVar[float | None] = None

    @property
    def multiplier(self) -> float:
        """The configured multiplier; at 0 the weigher is not asked at all."""
        return float(getattr(self, self.multiplier_option)) if self.multiplier_option else 1.0

    def multipliers(self, hosts: 'HostTable', rows: IntArray) -> float | FloatArray:
        """The multiplier, one for all or one per row of ``rows``."""
        return self.multiplier

    def raw(
        self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray
    ) -> IntArray | FloatArray | None:
        """Raw values of ``rows``; None: it has no preference in this request."""
        raise NotImplementedError

    def scale(self, raw: IntArray | FloatArray) -> tuple[FloatArray, float, float]:
        """Raw values as floats within the declared bounds, and the two ends of the scale.

        :raises ValueError: a value is not a finite number
        """
        values = raw.astype(np.float64)
        low, high = float(_least(values)), float(_most(values))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError('a raw value is not a finite number')
        if self.minval is not None:
            if low < self.minval:
                np.maximum(values, self.minval, out=values)
            low = self.minval
            high = max(high, low)
        if self.maxval is not None:
            if high > self.maxval:
                np.minimum(values, self.maxval, out=values)
            high = self.maxval
            low = min(low, high)
        return values, low, high

    def bounded(self, value: float) -> float:
        """One raw value within the declared bounds."""
        if self.minval is not None and value < self.minval:
            return self.minval
        if self.maxval is not None and value > self.maxval:
            return self.maxval
        return value


def normalize(values: FloatArray, low: float, high: float) -> FloatArray | None:
    """``values`` on the scale from ``low`` to ``high``, in place; None where it has no length."""
    if high <= low:
        return None
    if low:
        np.subtract(values, low, out=values)
    np.divide(values, high - low, out=values)
    return values


def check_multiplier(weigher: Weigher) -> None:
    """:raises PluginError: the multiplier is not a finite number"""
    if not math.isfinite(weigher.multiplier):
        raise exceptions.PluginError(
            plugin=weigher.name,
            problem=f'option {weigher.multiplier_option}: expected a finite number',
            fix='Set it accordingly',
        )
