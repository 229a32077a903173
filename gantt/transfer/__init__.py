# SPDX-License-Identifier: Apache-2.0
"""What two services that speak Placement's model have, compared and copied: Gantt is one of them.

``side`` says what either has to answer; ``server`` does over HTTP, ``own`` from the database;
``reading``, ``differences`` and ``copying`` work on any two.
"""
