# SPDX-License-Identifier: Apache-2.0
"""The message broker's side of Gantt: oslo.messaging on native threads.

Read in this order: ``service`` wires everything from the configuration;
``amqp.consumer`` takes each message off the wire, ``server.server`` checks it;
``api.endpoints`` are our own methods, ``nova.topic`` is Nova's topic;
``amqp.replies`` carries answers back; ``amqp.self_ping`` notices connections that
are stuck; ``wire`` and ``api.stats`` know the shapes of messages, ``nova.spec`` and
``nova.objects`` Nova's.  ``amqp`` is the only folder that touches private names of
oslo.messaging.

Nothing here selects a concurrency backend or reads the global configuration.
"""
