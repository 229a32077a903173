# SPDX-License-Identifier: Apache-2.0
"""Large facts as small integers: hosts of one kind share one of them.

A filter that looks at such a fact asks once per value, not once per host.
"""

from collections.abc import Hashable
from typing import Any

import numpy as np

from gantt.core.table.columns import CodeArray

#: Values out of use that are put up with, beside twice the number of rows.
SPARE = 1024


class Interned:
    """Values by code, in order of first mention.

    :ivar values: the value of each code
    """

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._codes: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self.values)

    def add(self, key: Hashable, value: Any) -> int:
        """The code of a key; ``value`` is kept where the key is new."""
        code = self._codes.get(key)
        if code is None:
            code = self._codes[key] = len(self.values)
            self.values.append(value)
        return code

    def copy(self) -> 'Interned':
        other = Interned()
        other.values, other._codes = list(self.values), dict(self._codes)
        return other

    def compact(self, column: CodeArray) -> None:
        """Forget what no row of ``column`` has, where that is most of it; the codes change."""
        if len(self.values) <= 2 * len(column) + SPARE:
            return
        used, inverse = np.unique(column, return_inverse=True)
        new = {int(code): i for i, code in enumerate(used)}
        self.values = [self.values[code] for code in new]
        self._codes = {key: new[code] for key, code in self._codes.items() if code in new}
        column[:] = inverse
