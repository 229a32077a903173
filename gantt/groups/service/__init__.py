# SPDX-License-Identifier: Apache-2.0
"""Groups that are placed as a whole: planned, extended, changed, released.

The planner has a thread and a host table of its own: no scheduler plans a group or waits for one.
"""
