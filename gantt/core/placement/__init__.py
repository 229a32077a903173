# SPDX-License-Identifier: Apache-2.0
"""Placement of one request on one table: filter, weigh, pick, apply the pick to the table.

Not here: the rules themselves (``core.filters``, ``core.weighers``, ``core.rules``).
"""
