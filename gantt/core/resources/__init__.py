# SPDX-License-Identifier: Apache-2.0
"""Resources of a host: its provider with inventories and facts, and the key of its reports.

Usage is in ``core.claims`` and ``core.table``.
"""
