# SPDX-License-Identifier: Apache-2.0
"""Broker access: connections, consumers, replies, dead letters, permissions.

The only folder that uses private names of oslo.messaging.
"""
