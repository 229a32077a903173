# SPDX-License-Identifier: Apache-2.0
"""Options that are finite numbers.

A number that is none (``nan``) is neither below a minimum nor above a maximum, so the types of
oslo.config let it pass.
"""

import math
from typing import Any

from oslo_config import cfg, types


class Finite(types.Float):
    """The type of a finite number."""

    def __call__(self, value: Any) -> int | float | None:
        """Return the number.  :raises ValueError: it is none, infinite, or out of bounds"""
        number = super().__call__(value)
        if number is not None and not math.isfinite(number):
            raise ValueError(f'expected a finite number, got {number}')
        return number


class FloatOpt(cfg.FloatOpt):
    """As in oslo.config, for a finite number."""

    def __init__(
        self, name: str, min: float | None = None, max: float | None = None, **options: Any
    ) -> None:
        super().__init__(name, min=min, max=max, **options)
        self.type = Finite(min, max)
