# SPDX-License-Identifier: Apache-2.0
"""Pauses of a placement: between two members, and within the search for one."""

import enum
from collections.abc import Callable


class Pause(enum.Enum):
    """Results of a pause."""

    GO_ON = 'go on'
    LOOK_ANEW = 'look anew'  # the table has changed in the meantime
    ENOUGH = 'enough'  # the pass ends here; what was placed stays
    OVER = 'over'  # no caller waits for the answer any more


#: Returns how to go on. True: within a search, where the pass cannot end with ``ENOUGH``.
AskPause = Callable[[bool], Pause]


class Interrupted(Exception):
    """An interrupted search: it is over, or the table has changed.

    :ivar how: ``OVER`` or ``LOOK_ANEW``
    """

    def __init__(self, how: Pause) -> None:
        super().__init__(how.value)
        self.how = how
