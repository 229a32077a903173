# SPDX-License-Identifier: Apache-2.0
"""The simulator: the production code under a virtual clock, with seeded trouble.

One seed is one small world: a zone of schedulers, hosts and conductors over the
store in memory, of some seeds with planners of groups, or a tree of zones with an
SQLite database each.  Everything that happens in it follows from the seed, so that
the same seed gives the same trace, and a seed that finds something can be kept.
Read in this order:

    loop.py        virtual time; many tasks, of which one runs at a time
    plan.py        the plan of a seed: which zones, and which trouble
    tasks.py       jobs of a process as tasks, in place of its threads
    network.py     calls and casts that get lost, late, doubled and overtaken
    database.py    the store as a process reaches it, and the checks of its writes
    writes.py      the writes that the trace has
    schedulers.py  a scheduler's threads and its door
    computes.py    a host: its agent, its journal, its machine
    conductors.py  callers that request, repeat, build, move, cancel and delete
    sites.py       a zone: its database, its processes, its hosts
    trees/         what only zones of a tree have
    groups/        groups that are planned as a whole, in some of the worlds
    judge.py       what must hold when the trouble is over
    world.py       one run, from the seed to the verdict
"""
