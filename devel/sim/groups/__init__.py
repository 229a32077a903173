# SPDX-License-Identifier: Apache-2.0
"""Groups that are placed as a whole, in the simulator.

Of some seeds the world has one or two processes that plan groups, callers who have groups planned
and create their members, and trouble of its own.  Read in this order:

    planners.py      a planner's thread and its door; a solver that takes time and proves nothing
    descriptions.py  descriptions of groups, and their hard policies, read plainly
    callers.py       callers that plan, create, cancel, extend, change, heal and release
    watch.py         checks after every write of the database
    judge.py         what must hold when the trouble is over
    side.py          all of it in one run
"""
