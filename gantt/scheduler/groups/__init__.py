# SPDX-License-Identifier: Apache-2.0
"""Groups that are placed as a whole: planned, held, changed, given back.

By a thread and with a host table of their own: no scheduler plans a group or waits for one.
"""
