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
    :cvar local: its raw value of a host follows from that host's own columns, whatever
        the other rows are, and :meth:`raw` returns an array of its own; then the others
        are not weighed again after a pick
    """

    multiplier_option: ClassVar[str] = ''
    minval: ClassVar[float | None] = None
    maxval: ClassVar[float | None] = None
    local: ClassVar[bool] = False

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

    def value(self, hosts: 'HostTable', spec: RequestSpec, row: int) -> float:
        """What :meth:`raw` says of one row; of weighers that are ``local`` and have a preference.

        It is asked after each pick: a plugin that knows a shorter way than by arrays
        makes large requests faster.
        """
        raw = self.raw(hosts, spec, np.array([row]))
        assert raw is not None, 'a weigher with a preference keeps it'
        return raw[0].item()

    def scale(self, raw: IntArray | FloatArray) -> tuple[FloatArray, float, float]:
        """Raw values as floats within the declared bounds, and the two ends of the scale.

        :raises ValueError: a value is not a finite number
        """
        values = raw.astype(np.float64)
        least, most = _extremes(values)
        if self.minval is not None and least < self.minval:
            np.maximum(values, self.minval, out=values)
        if self.maxval is not None and most > self.maxval:
            np.minimum(values, self.maxval, out=values)
        return values, *self._bounds(least, most)

    def ends(self, raw: IntArray | FloatArray) -> tuple[float, float]:
        """The two ends of the scale alone.

        :raises ValueError: a value is not a finite number
        """
        return self._bounds(*_extremes(raw))

    def _bounds(self, low: float, high: float) -> tuple[float, float]:
        if self.minval is not None:
            low = self.minval
            high = max(high, low)
        if self.maxval is not None:
            high = self.maxval
            low = min(low, high)
        return low, high

    def bounded(self, value: float) -> float:
        """One raw value within the declared bounds."""
        if self.minval is not None and value < self.minval:
            return self.minval
        if self.maxval is not None and value > self.maxval:
            return self.maxval
        return value


def _extremes(values: IntArray | FloatArray) -> tuple[float, float]:
    low, high = float(_least(values)), float(_most(values))
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError('a raw value is not a finite number')
    return low, high


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
