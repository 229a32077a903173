# SPDX-License-Identifier: Apache-2.0
"""The shape of a weigher: a soft preference as one raw number per surviving host.

A weigher says in one sentence what *more* means.  Scale, sign and sum are made
here and in :mod:`gantt.core.weighers.normalization`, once, for all of them: raw values become
shares in the way that is chosen for the weigher, and are multiplied.  What an
aggregate sets under the name of the multiplier's option counts for its hosts.
"""

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gantt import exceptions
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option, Plugin
from gantt.core.table import aggregates
from gantt.core.table.columns import TAKEN, FloatArray, IntArray
from gantt.core.weighers import multipliers

if TYPE_CHECKING:
    from gantt.core.table.host_table import HostTable

#: How raw values become shares, see :mod:`gantt.core.weighers.normalization`.
NORMALIZATIONS = ('nova', 'fraction', 'rank', 'absolute')
#: Raw values beyond are refused, so that the length of a scale is a number.
RAW_MAX = 1e300
# The methods of an array go through a layer of Python; these do not.
_least, _most = np.minimum.reduce, np.maximum.reduce


class Weigher(Plugin):
    """A soft preference.

    One with a multiplier's option ``x_multiplier`` gets an option ``x_normalization``.

    :cvar multiplier_option: name of the option that holds its multiplier
    :cvar negated: less is better: the multiplier counts with its sign turned
    :cvar minval: raw values below count as this, and the scale begins here
    :cvar maxval: raw values above count as this, and the scale ends here
    :cvar half: where the absolute scale has no two ends, a raw value so far from the one
        that it has (else from 0) is half way to the other
    :cvar normalization: how its raw values become shares unless configured otherwise
    :cvar local: its raw value of a host follows from that host's own columns, whatever
        the other rows are, :meth:`raw` returns an array of its own, and whether it has a
        preference does not change with a pick; then the others are not weighed again
        after a pick
    """

    multiplier_option: ClassVar[str] = ''
    normalization_option: ClassVar[str] = ''
    negated: ClassVar[bool] = False
    minval: ClassVar[float | None] = None
    maxval: ClassVar[float | None] = None
    half: ClassVar[float] = 1.0
    normalization: ClassVar[str] = 'nova'
    local: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.multiplier_option:
            return
        name = cls.multiplier_option.removesuffix('_multiplier') + '_normalization'
        cls.normalization_option = name
        if name not in {option.name for option in cls.options}:
            said = (
                f'How the raw values of {cls.name} become shares: nova, fraction, rank or '
                'absolute. Empty: as [weighers] normalization says, and where that is empty too, '
                f'{cls.normalization}.'
            )
            option = Option(name, str, '', said, choices=('', *NORMALIZATIONS))
            cls.options = (*cls.options, option)

    def _check(self, option: Option, value: Any) -> None:
        super()._check(option, value)
        if option.name == self.multiplier_option and not aggregates.is_usable(value):
            self._refuse(option, aggregates.EXPECTED, value)

    @property
    def multiplier(self) -> float:
        """The configured multiplier; at 0 the weigher is not asked where no aggregate sets one."""
        if not self.multiplier_option:
            return 1.0
        value = float(getattr(self, self.multiplier_option))
        return -value if self.negated else value

    def multipliers(self, hosts: 'HostTable', rows: IntArray) -> float | FloatArray:
        """The multiplier, one for all or one per row of ``rows``."""
        if self.multiplier_option not in hosts.aggregate_metadata:
            return self.multiplier
        said = multipliers.minimum(hosts, self.multiplier_option)
        if said is None:
            return self.multiplier
        mine = said.take(rows)
        if self.negated:
            np.negative(mine, out=mine)
        return np.where(np.isnan(mine), self.multiplier, mine)

    def normalized_by(self, otherwise: str = '') -> str:
        """The normalization in force; ``otherwise``: for weighers without one of their own."""
        own = getattr(self, self.normalization_option) if self.normalization_option else ''
        return own or otherwise or self.normalization

    @property
    def is_steady(self) -> bool:
        """Whether it says that no pick changes what it reads."""
        return bool(self.columns) and TAKEN.isdisjoint(self.columns)

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

    def capacities(
        self, hosts: 'HostTable', spec: RequestSpec, rows: IntArray
    ) -> FloatArray | None:
        """What raw values of ``rows`` are fractions of; None: of nothing that a host has.

        No pick changes it.
        """
        return None

    def limits(self, hosts: 'HostTable', spec: RequestSpec) -> tuple[float | None, float | None]:
        """Ends of the absolute scale, as far as it has any; no pick changes them."""
        return self.minval, self.maxval

    def scale(self, raw: IntArray | FloatArray) -> tuple[FloatArray, float, float]:
        """Raw values as floats within the declared bounds, and the two ends of Nova's scale.

        :raises ValueError: a value is not a finite number, or beyond ``RAW_MAX``
        """
        values = raw.astype(np.float64)
        low, high = float(_least(values)), float(_most(values))
        if not (low >= -RAW_MAX and high <= RAW_MAX):  # nor is it, where one is not a number
            raise ValueError(f'a raw value is not a finite number of at most {RAW_MAX:g}')
        minval, maxval = self.minval, self.maxval
        if maxval is not None and high > maxval:
            np.minimum(values, maxval, out=values)
        if minval is not None:
            if low < minval:
                np.maximum(values, minval, out=values)
            low, high = minval, max(high, minval)
        if maxval is not None:
            low, high = min(low, maxval), maxval
        return values, low, high

    def bounded(self, value: float) -> float:
        """One raw value within the declared bounds."""
        if self.minval is not None and value < self.minval:
            return self.minval
        if self.maxval is not None and value > self.maxval:
            return self.maxval
        return value


def check_multiplier(weigher: Weigher) -> None:
    """:raises PluginError: the multiplier is no finite number, or too large"""
    if not aggregates.is_usable(weigher.multiplier):
        raise exceptions.PluginError(
            plugin=weigher.name,
            problem=f'multiplier: expected {aggregates.EXPECTED}, got {weigher.multiplier}',
            fix='Set it accordingly',
        )
