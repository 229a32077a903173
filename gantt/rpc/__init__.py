# SPDX-License-Identifier: Apache-2.0
"""RPC over the message broker: oslo.messaging on native threads.

Read in this order: ``service`` wires everything from the configuration;
``amqp.consumer`` takes each message off the wire, ``server.server`` checks it;
``api.endpoints`` holds our own methods, ``nova.topic`` is Nova's topic;
``amqp.replies`` carries answers back; ``amqp.self_ping`` notices connections that
are stuck; ``wire`` and ``api.stats`` define the shapes of messages, ``nova.spec`` and
``nova.objects`` those of Nova.  ``amqp`` is the only folder that touches private names of
oslo.messaging.

Nothing here selects a concurrency backend or reads the global configuration.
"""
