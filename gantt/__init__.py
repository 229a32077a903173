# SPDX-License-Identifier: Apache-2.0
"""Gantt: a placement scheduler.

Four flows, each read straight through one story file of ``scheduler``:

* ``select_destinations.py``: a conductor sends a request, Gantt places it on its host table,
  commits the claims and answers.
* ``update_resource_stats.py``: a compute host reports, Gantt folds the report into the database
  and the host table.
* ``zones/place_over_zones.py``: a request goes to own hosts or to a child zone, whichever is best.
* ``groups/place_group.py``: a group is planned as a whole, and the places of its members claimed.

``core`` is pure (standard library, NumPy, msgspec); ``scheduler`` holds the
verbs of the service and sees the world through ``scheduler/ports.py``; every
other package is an adapter named by what it touches.
"""
