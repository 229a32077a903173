# SPDX-License-Identifier: Apache-2.0
"""Groups of mixed members placed as a whole: from a description and a host table to a plan.

Calling a solver is in ``gantt.groups.solver``; carrying out a plan is elsewhere.
"""
