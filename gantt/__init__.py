# SPDX-License-Identifier: Apache-2.0
"""Gantt: a placement scheduler.

Four flows, each with one file that reads straight through:

* ``scheduler/request/loop.py``: a conductor sends a request; Gantt places it on its host table,
  commits the claims and answers.
* ``scheduler/update_resource_stats.py``: a compute host reports; Gantt folds the report into the
  database and the host table.
* ``zones/service/place_over_zones.py``: a request goes to local hosts or to a child zone, whichever
  is best.
* ``groups/service/place_group.py``: a group is planned as a whole, and reservations of its members
  are claimed.

The base:

* ``core``: the pure part (standard library, NumPy, msgspec);
* ``scheduler``: the operations of the service, which reach the world through ``scheduler/ports``;
* ``insights``: the read side of HTTP, commands and metrics;
* ``db``, ``rpc``, ``http``, ``telemetry``: adapters, named by what they connect to;
* ``client``, ``compute``, ``cli``: the other ends of RPC and HTTP: conductors, hosts, operators;
* ``conf``: the options.

Capabilities over the base, which imports none of them; each has a model, a service and adapters of
its own: ``groups`` (planned groups), ``zones`` (a tree of schedulers), ``nova`` (an unmodified
Nova) and ``placement_api`` (Placement's HTTP API).

``cmd`` and ``wsgi`` are the entry points, and put the base and the capabilities together.  Authors
of plugins import ``plugin_api`` and test with ``testing``.
"""
