# SPDX-License-Identifier: Apache-2.0
"""The life of a request: its queue, its plan, its commit, lost races, answers and repeats.

Not here: the decision itself (``core.placement``).
"""
