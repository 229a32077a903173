# SPDX-License-Identifier: Apache-2.0
"""Parts of a simulated tree that belong to no zone.

Read in this order:

    files.py      an SQLite database in virtual time, which may end any statement
    databases.py  the database of a zone as its processes reach it
    links.py      calls to child zones, over lines that lose, delay and double
    processes.py  a scheduler with the interface for parent zones
    callers.py    callers of the top, which have hosts in child zones unsealed
    watch.py      checks after every write
    judge.py      what must hold between zones when the trouble is over
    side.py       all of that for one run
"""
