# SPDX-License-Identifier: Apache-2.0
"""RPC over the message broker, on native threads, with peers that use oslo.messaging.

Read in this order: ``service`` wires everything from the configuration;
``amqp.consumer`` takes each message off the wire, ``server.server`` checks it;
``api.endpoints`` holds our own methods, ``nova.topic`` is Nova's topic;
``amqp.replies`` carries answers back; ``amqp.self_ping`` notices connections that
are stuck; ``wire`` and ``api.stats`` define the shapes of messages, ``nova.spec`` and
``nova.objects`` those of Nova.

Nothing here selects a concurrency backend or reads the global configuration.
"""
