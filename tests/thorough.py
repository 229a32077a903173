# SPDX-License-Identifier: Apache-2.0
"""Share of many like cases that a run tries: some at each change, all of them at night.

``make nightly`` sets ``GANTT_THOROUGH``.
"""

import os

IS_THOROUGH = bool(os.environ.get('GANTT_THOROUGH'))


def stride(cases: int) -> int:
    """Return the step through cases of which every ``cases``-th is enough for one change."""
    return 1 if IS_THOROUGH else cases


def examples(cases: int) -> int:
    """Return how many of so many random cases are enough for one change."""
    return cases if IS_THOROUGH else cases // 3
