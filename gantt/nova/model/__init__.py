# SPDX-License-Identifier: Apache-2.0
"""Casts and facts of an unmodified Nova, as typed values.

Not here: decoding them from the wire (``gantt.nova.wire``).
"""
