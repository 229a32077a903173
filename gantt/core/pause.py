# SPDX-License-Identifier: Apache-2.0
"""Who places pauses: between two members, and in the middle of a search for one."""

import enum
from collections.abc import Callable


class Pause(enum.Enum):
    """How to go on."""

    GO_ON = 'go on'
    LOOK_ANEW = 'look anew'  # the table has changed meanwhile
    ENOUGH = 'enough'  # the pass ends here; what was placed stays
    OVER = 'over'  # nobody waits for the answer any more


#: Asked how to go on.  True: in the middle of a search, where the pass cannot end with ``ENOUGH``.
AskPause = Callable[[bool], Pause]


class Interrupted(Exception):
    """A search is not gone on with: it is over, or the table has changed under it.

    :ivar how: ``OVER`` or ``LOOK_ANEW``
    """

    def __init__(self, how: Pause) -> None:
        super().__init__(how.value)
        self.how = how
