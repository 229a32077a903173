# SPDX-License-Identifier: Apache-2.0
"""Broker access: connections, consumers, calls, replies, dead letters, permissions.

By the public interface of kombu and py-amqp; peers may use oslo.messaging.
"""
