# SPDX-License-Identifier: Apache-2.0
"""Pauses of a placement: between two members, and within the search for one."""

import enum
from collections.abc import Callable


class Pause(enum.Enum):
    """Results of a pause."""

    GO_ON = 'go on'
    REEVALUATE = 'reevaluate'  # the table has changed in the meantime
    ENOUGH = 'enough'  # the pass ends here; what was placed stays
    OVER = 'over'  # no caller waits for the answer any more


#: Returns how to go on. True: within a search, where the pass cannot end with ``ENOUGH``.
AskPause = Callable[[bool], Pause]


class Interrupted(Exception):
    """An interrupted search: it is over, or the table has changed.

    :ivar directive: ``OVER`` or ``REEVALUATE``
    """

    def __init__(self, directive: Pause) -> None:
        super().__init__(directive.value)
        self.directive = directive
