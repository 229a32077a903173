# SPDX-License-Identifier: Apache-2.0
"""Gantt: a placement scheduler.

Two flows, each read straight through one story file:

* ``scheduler/select_destinations.py``: a conductor asks, Gantt places the
  request on its host table, commits the claims and answers.
* ``scheduler/update_resource_stats.py``: a compute host reports, Gantt folds
  the report into the database and the host table.

``core`` is pure (standard library, NumPy, msgspec); ``scheduler`` holds the
verbs of the service and sees the world through ``scheduler/ports.py``; every
other package is an adapter named by what it touches.
"""

from gantt import moved

moved.install()
