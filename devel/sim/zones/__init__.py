# SPDX-License-Identifier: Apache-2.0
"""Trees of zones under the virtual clock: quality and cost of each way of choosing zones.

Each zone is the production code of one: its table, its planner, its evaluation and summary,
its strategies.  Between two zones there is a link with a delay.  Read in this order:

    zone.py     one zone of a tree
    links.py    calls from a zone to its child zones, and how many there were
    placing.py  a request carried out over a zone: offers, claims, other offers
    stock.py    a tree with hosts: unevenly loaded, and how that load changes
    look.py     an evaluation of all hosts of a tree: the measure of a choice, and the room
    run.py      one run, from the plan to its figures
"""
