# SPDX-License-Identifier: Apache-2.0
"""Faults of a tree of zones: production code above and below, a database each.

Read in this order:

    plan.py       what a seed means: which tree, and which trouble
    files.py      an SQLite database in virtual time, which may end any statement
    databases.py  the database of a zone as its processes reach it
    threads.py    what a process does next to each other, as tasks
    links.py      calls to zones below, over lines that lose, delay and double
    processes.py  a scheduler with the interface for zones above
    sites.py      a zone: its database, its processes, its hosts
    callers.py    who asks the top, and has places redeemed below
    watch.py      what is looked at whenever something was written
    judge.py      what must hold when the trouble is over
    world.py      one run, from the seed to the verdict
"""
