# SPDX-License-Identifier: Apache-2.0
"""The demonstration: the whole service in one process, on embedded parts.

``stage`` puts the real parts together (SQLite, the in-process broker, the real
RPC, a farm of fake hosts, the agent of this machine); ``scenario`` is what is
played on it, one function each; ``say`` prints.  Several zones are processes of
their own: ``zone_processes`` runs them, ``zone_scenario`` is what is played.
"""

# Chooses the threads of oslo.service, before anything imports it.
import gantt.cmd  # noqa: F401
