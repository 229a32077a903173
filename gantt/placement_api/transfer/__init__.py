# SPDX-License-Identifier: Apache-2.0
"""Comparison and copying between two services with Placement's model, one of them Gantt.

``side`` is the interface of either; ``server`` has it over HTTP, ``own`` from the database;
``reading``, ``differences`` and ``copying`` work on any two.
"""
