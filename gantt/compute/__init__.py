# SPDX-License-Identifier: Apache-2.0
"""Compute side: reports of a host, and its builds.

Light enough to live inside another program's agent: no database server, no HTTP,
and no choice of a concurrency backend.  Read in this order:

    ports.py                  the scheduler and the guests as this package sees them
    agent/session.py          epoch and sequence: identity and order of messages; claims
    agent/journal.py          builds of this host, on disk
    agent/running_guests.py   guests running here, and the journal after a crash
    agent/agent.py            build and delete: the second check, the confirmation, the guest
    agent/host_agent.py       a host as a row of due times, and its reports
    agent/runner.py           many hosts in one process
    farm.py, shapes.py        many fake hosts in one process
    report_only.py            hosts that another program runs, from a file
    facts_only.py             facts of a host that nova-compute runs
    drivers/                  this machine
    over_rpc.py, listen.py    the ports over the message broker
"""
