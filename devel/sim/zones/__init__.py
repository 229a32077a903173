# SPDX-License-Identifier: Apache-2.0
"""Trees of zones under the virtual clock: how good and how dear each way of choosing zones is.

Each zone is the production code of one: its table, its planner, what it evaluates and says of
itself, its strategies.  What lies between two zones is a link with a delay.  Read in this order:

    runner.py   calls next to each other, in virtual time or at once
    zone.py     one zone of a tree
    links.py    calls from a zone to those directly below it, and how many there were
    placing.py  a request carried out over a zone: offers, claims, other offers
    stock.py    a tree with hosts: unevenly loaded, and how that load changes
    orders.py   what is requested
    look.py     a look at all hosts of a tree: the measure of a choice, and whether there is room
    run.py      one run, from the plan to its figures
"""
