# SPDX-License-Identifier: Apache-2.0
"""One scheduler's side of the broker: threads, methods, pauses.

Not here: what a message means (``rpc.api``, ``rpc.nova``).
"""
