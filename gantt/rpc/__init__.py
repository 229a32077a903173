# SPDX-License-Identifier: Apache-2.0
"""RPC over the message broker, on native threads, with peers that use oslo.messaging.

Read in this order: ``service`` wires everything from the configuration;
``amqp.consumer`` takes each message off the wire, ``server`` checks it;
``api.endpoints`` holds our own methods, ``gantt.nova.wire.topic`` those of Nova's topic;
``amqp.replies`` carries answers back; ``amqp.self_ping`` notices connections that
are stuck; ``wire`` and ``api.stats`` define the shapes of messages, ``gantt.nova.wire.spec``
and ``gantt.nova.wire.objects`` those of Nova.

Nothing here selects a concurrency backend or reads the global configuration.
"""
