# SPDX-License-Identifier: Apache-2.0
"""Implementation of the Clock port by the machine's own clocks."""

import time


class SystemClock:
    """The machine's own clocks."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    sleep = staticmethod(time.sleep)
