# SPDX-License-Identifier: Apache-2.0
"""The simulator: the production code under a virtual clock, with seeded trouble.

One seed is one small world of schedulers, hosts and conductors, and of some seeds
of planners of groups, over the store in memory.  Everything that happens in it
follows from the seed, so that the same seed gives the same trace, and a seed that
finds something can be kept.
Read in this order:

    loop.py        virtual time; many tasks, of which one runs at a time
    plan.py        the plan of a seed: how big a world, and which trouble
    network.py     calls and casts that get lost, late, doubled and overtaken
    database.py    the store as a process reaches it, and the checks of its writes
    schedulers.py  a scheduler's threads and its door
    computes.py    a host: its agent, its journal, its machine
    conductors.py  callers that request, repeat, build, move, cancel and delete
    groups/        groups that are planned as a whole, in some of the worlds
    judge.py       what must hold when the trouble is over
    world.py       one run, from the seed to the verdict
"""
