# SPDX-License-Identifier: Apache-2.0
"""Base classes of weighers: a soft preference as one raw number per surviving host.

The docstring of a weigher states in one sentence what *more* means.  Scale, sign and sum are
applied here and in :mod:`gantt.core.placement.ranking`, once, for all of them: raw values become
shares in the way that is chosen for the weigher, and are multiplied.  A multiplier that an
aggregate sets under the name of the option counts for its hosts.
"""

from typing import Any, ClassVar

import numpy as np

from gantt import exceptions
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option, Plugin
from gantt.core.table import aggregates
from gantt.core.table.columns import PICK_DEPENDENT_COLUMNS, BoolArray, FloatArray, IntArray
from gantt.core.table.host_table import HostTable

#: Scales from raw values to shares, see :mod:`gantt.core.placement.ranking`.
NORMALIZATIONS = ('nova', 'fraction', 'rank', 'absolute')
#: Normalization of weighers that are ``priced``: none.
PRICE_NORMALIZATION = 'price'


class Weigher(Plugin):
    """A soft preference.

    A weigher with a multiplier's option ``x_multiplier`` gets an option ``x_normalization``.

    :cvar multiplier_option: name of the option that holds its multiplier
    :cvar multiplier_help: help of that option; '': the weigher declares it itself
    :cvar multiplier_default: default of that option
    :cvar multiplier_min: minimum of that option
    :cvar negated: less is better: the multiplier counts with its sign turned
    :cvar minval: raw values below count as this, and the scale begins here
    :cvar maxval: raw values above count as this, and the scale ends here
    :cvar ends: of the absolute scale, where these differ from ``minval`` and ``maxval``
    :cvar half: where the absolute scale has no two ends, a raw value so far from the one that it
        has (else from 0) is half way to the other
    :cvar priced: its raw values are prices that the request names, and count as they are: 1 is as
        much as the whole range of another weigher with multiplier 1
    :cvar normalization: kind of scale of its raw values unless configured otherwise
    :cvar local: its raw value of a host follows from that host's own columns, whatever the other
        rows are, :meth:`raw` returns an array of its own, and whether it has a preference does not
        change with a pick; then the others are not weighed again after a pick
    """

    multiplier_option: ClassVar[str] = ''
    multiplier_help: ClassVar[str] = ''
    multiplier_default: ClassVar[float] = 1.0
    multiplier_min: ClassVar[float | None] = None
    normalization_option: ClassVar[str] = ''
    negated: ClassVar[bool] = False
    minval: ClassVar[float | None] = None
    maxval: ClassVar[float | None] = None
    ends: ClassVar[tuple[float | None, float | None] | None] = None
    half: ClassVar[float] = 1.0
    priced: ClassVar[bool] = False
    normalization: ClassVar[str] = 'nova'
    local: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.multiplier_option:
            return
        if cls.multiplier_help and cls.multiplier_option not in {
            declared.name for declared in cls.options
        }:
            option = Option(
                cls.multiplier_option,
                float,
                cls.multiplier_default,
                cls.multiplier_help,
                min=cls.multiplier_min,
            )
            cls.options = (option, *cls.options)
        if cls.priced:
            return
        name = cls.multiplier_option.removesuffix('_multiplier') + '_normalization'
        cls.normalization_option = name
        if name not in {option.name for option in cls.options}:
            texts = (
                f'How the raw values of {cls.name} become shares: nova, fraction, rank or '
                'absolute. Empty: as [weighers] normalization says, and where that is empty too, '
                f'{cls.normalization}.'
            )
            option = Option(name, str, '', texts, choices=('', *NORMALIZATIONS))
            cls.options = (*cls.options, option)

    def _check(self, option: Option, value: Any) -> None:
        super()._check(option, value)
        if option.name == self.multiplier_option and not aggregates.is_usable(value):
            self._refuse(option, aggregates.EXPECTED_MULTIPLIER, value)

    @property
    def multiplier(self) -> float:
        """The configured multiplier; at 0 the weigher only runs where an aggregate sets one."""
        if not self.multiplier_option:
            return 1.0
        value = float(getattr(self, self.multiplier_option))
        return -value if self.negated else value

    def multipliers(self, hosts: HostTable, rows: IntArray) -> float | FloatArray:
        """Return the multiplier, one for all or one per row of ``rows``."""
        if self.multiplier_option not in hosts.aggregate_metadata:
            return self.multiplier
        texts = _overrides(hosts, self.multiplier_option)
        if texts is None:
            return self.multiplier
        overrides = texts.take(rows)
        if self.negated:
            np.negative(overrides, out=overrides)
        return np.where(np.isnan(overrides), self.multiplier, overrides)

    def normalized_by(self, otherwise: str = '') -> str:
        """Return the normalization in use; ``otherwise``: for weighers without their own."""
        if self.priced:
            return PRICE_NORMALIZATION
        configured = getattr(self, self.normalization_option) if self.normalization_option else ''
        return configured or otherwise or self.normalization

    @property
    def is_steady(self) -> bool:
        """True where no pick changes the columns that it declares."""
        return bool(self.columns) and PICK_DEPENDENT_COLUMNS.isdisjoint(self.columns)

    def concerns(self, spec: RequestSpec) -> bool:
        """Return whether the preference applies to the request; where not, it has none.

        It follows from the spec alone.  For weighers that are not ``local``: members that are alike
        are placed faster where none of these applies.
        """
        return True

    def raw(
        self, hosts: HostTable, spec: RequestSpec, rows: IntArray
    ) -> IntArray | FloatArray | BoolArray | None:
        """Return raw values of ``rows``, a new array that is written to; None: no preference."""
        raise NotImplementedError

    def value(self, hosts: HostTable, spec: RequestSpec, row: int) -> float:
        """Return the value of :meth:`raw` for one row, where ``local`` and with a preference.

        It is called after each pick: a plugin that has a shorter way than by arrays makes large
        requests faster.
        """
        raw = self.raw(hosts, spec, np.array([row]))
        assert raw is not None, 'a weigher with a preference keeps it'
        return raw[0].item()

    def step(self, hosts: HostTable, spec: RequestSpec) -> float | None:
        """Return the change of a host's raw value by a pick of one member; None: call
        :meth:`value`.

        For weighers that are ``local`` and have a preference, and for members that take amounts
        alone, without cores or devices of their own.  Members of a request that are alike are
        placed by steps, without reading the table for each.
        """
        return None

    def capacities(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> FloatArray | None:
        """Return the capacities that raw values of ``rows`` are fractions of; None: none.

        No pick changes them.
        """
        return None

    def limits(self, hosts: HostTable, spec: RequestSpec) -> tuple[float | None, float | None]:
        """Return the ends of the absolute scale, as far as it has any; no pick changes them."""
        return self.ends or (self.minval, self.maxval)


def check_multiplier(weigher: Weigher) -> None:
    """Check the multiplier of a weigher.

    :raises PluginError: it is no finite number, or too large
    """
    if not aggregates.is_usable(weigher.multiplier):
        raise exceptions.PluginError(
            plugin=weigher.name,
            problem=f'multiplier: expected {aggregates.EXPECTED_MULTIPLIER}, '
            f'got {weigher.multiplier}',
            fix='Set it accordingly',
        )


def _overrides(hosts: HostTable, key: str) -> FloatArray | None:
    """Return by row the smallest number that aggregates set, NaN where the option counts.

    None where it counts everywhere.  The array is read-only.
    """
    texts = hosts.aggregate_metadata.get(key)
    if not texts:
        return None
    return hosts.array_cache.get(
        ('minimum', key), ('aggregates',), lambda: _least_multiplier(hosts, texts)
    )


def _least_multiplier(hosts: HostTable, texts: dict[str, str]) -> FloatArray | None:
    least = np.full(len(hosts), np.inf)
    broken = np.zeros(len(hosts), np.bool_)
    for uuid, text in texts.items():
        members = _hosts_of_aggregate(hosts, uuid)
        value = aggregates.usable_number(text)
        if value is None:
            broken |= members
        else:
            np.minimum(least, value, out=least, where=members)
    least[broken | np.isinf(least)] = np.nan
    return None if np.isnan(least).all() else least


def _hosts_of_aggregate(hosts: HostTable, uuid: str) -> BoolArray:
    code = hosts.aggregate_codes.get(uuid)
    if code is None or code >> 6 >= hosts.aggregates.shape[0]:
        return np.zeros(len(hosts), np.bool_)
    return (hosts.aggregates[code >> 6] & np.uint64(1 << (code & 63))) != 0


class ColumnWeigher(Weigher):
    """More means: a larger number in one column, which is the first of ``columns``."""

    local = True

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> IntArray | None:
        values: IntArray = getattr(hosts, self.columns[0]).take(rows)
        return values

    def value(self, hosts: HostTable, spec: RequestSpec, row: int) -> float:
        return float(getattr(hosts, self.columns[0]).item(row))


class FreeWeigher(Weigher):
    """More means: more of one resource class is free.

    :cvar resource_class: the class
    :cvar physical_option: name of the option that leaves the allocation ratio out
    """

    columns = ('free', 'cap', 'total', 'reserved')
    local = True
    minval = 0.0
    resource_class: ClassVar[str]
    physical_option: ClassVar[str] = ''

    @property
    def is_physical(self) -> bool:
        """True where only amounts of the hardware count."""
        return bool(self.physical_option and getattr(self, self.physical_option))

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> IntArray | None:
        code = hosts.class_code(self.resource_class)
        if code is None:
            return None
        free = hosts.free[code].take(rows)
        return free - self._promised(hosts, code, rows) if self.is_physical else free

    def value(self, hosts: HostTable, spec: RequestSpec, row: int) -> float:
        code = hosts.class_code(self.resource_class)
        if code is None or self.is_physical:
            return super().value(hosts, spec, row)
        return hosts.free.item(code, row)

    def step(self, hosts: HostTable, spec: RequestSpec) -> float:
        return -spec.resources.get(self.resource_class, 0)

    def capacities(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> FloatArray | None:
        code = hosts.class_code(self.resource_class)
        if code is None:
            return None
        caps = hosts.cap[code].take(rows)
        if self.is_physical:
            caps -= self._promised(hosts, code, rows)
        return caps.astype(float)

    @staticmethod
    def _promised(hosts: HostTable, code: int, rows: IntArray) -> IntArray:
        """Return the amount that may be promised beyond the hardware."""
        real = hosts.total[code].take(rows) - hosts.reserved[code].take(rows)
        return hosts.cap[code].take(rows) - real
