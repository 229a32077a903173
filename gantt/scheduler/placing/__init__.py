# SPDX-License-Identifier: Apache-2.0
"""The thread that places: the queue in front of it, plans, answers, repeats.

Not here: the decision itself (``core.placement``).
"""
