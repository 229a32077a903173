# SPDX-License-Identifier: Apache-2.0
"""What a host has: its provider with inventories and facts, and the key that signs its reports.

Not here: what of it is used (``core.claims``, ``core.table``).
"""
