# SPDX-License-Identifier: Apache-2.0
"""The message broker's side of Gantt: oslo.messaging on native threads.

Read in this order: ``service`` wires everything from the configuration;
``server`` is what every message passes first; ``endpoints`` are our own methods,
``nova_compat`` is Nova's topic; ``replies`` carries answers back; ``self_ping``
notices connections that are stuck; ``wire`` and ``stats`` know the shapes of
messages, ``nova_spec`` and ``nova_objects`` Nova's.
``driver`` is the only module that touches private names of oslo.messaging.

Nothing here selects a concurrency backend or reads the global configuration.
"""
