# SPDX-License-Identifier: Apache-2.0
"""The broker itself: connections, consumers, replies, dead letters, permissions.

The only folder that knows private names of oslo.messaging.
"""
