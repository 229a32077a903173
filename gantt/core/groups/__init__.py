# SPDX-License-Identifier: Apache-2.0
"""A group of mixed members placed as a whole: from its description and a host table to a plan.

Not here: how a solver is called (``gantt.solver``), and what is done with a plan.
"""
