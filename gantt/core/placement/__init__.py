# SPDX-License-Identifier: Apache-2.0
"""One request on one table: filter, weigh, pick, lay the pick over the table.

Not here: the rules themselves (``core.filters``, ``core.weighers``, ``core.rules``).
"""
