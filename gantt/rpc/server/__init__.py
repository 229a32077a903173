# SPDX-License-Identifier: Apache-2.0
"""Serving of topics in a scheduler: threads, methods, pauses.

Not here: the meaning of a message (``rpc.api``, ``rpc.nova``).
"""
