# SPDX-License-Identifier: Apache-2.0
"""Faults of a tree of zones: production code in parent and child zones, a database each.

Read in this order:

    plan.py       the plan of a seed: which tree, and which trouble
    files.py      an SQLite database in virtual time, which may end any statement
    databases.py  the database of a zone as its processes reach it
    threads.py    concurrent calls of a process, as tasks
    links.py      calls to child zones, over lines that lose, delay and double
    processes.py  a scheduler with the interface for parent zones
    sites.py      a zone: its database, its processes, its hosts
    callers.py    callers of the top, which have places redeemed below
    watch.py      checks after every write
    judge.py      what must hold when the trouble is over
    world.py      one run, from the seed to the verdict
"""
