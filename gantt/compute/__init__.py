# SPDX-License-Identifier: Apache-2.0
"""Compute side: reports of a host, and its builds.

Light enough to live inside another program's agent: no database server, no HTTP,
and no choice of a concurrency backend.  Read in this order:

    ports.py                  the scheduler and the guests as this package sees them
    agent/session.py          epoch and sequence: identity and order of messages; claims
    agent/reporter.py         full and cumulative reports
    agent/journal.py          builds of this host, on disk
    agent/running_guests.py   guests running here, and the journal after a crash
    agent/agent.py            build and delete: the second check, the confirmation, the guest
    farm/host_agent.py        a host as a row of due times; runner.py runs many of them
    farm/farm.py              many fake hosts in one process
    sources/report_only.py    hosts that something else runs
    drivers/                  this machine, and a fake one
    over_rpc.py, listen.py    the ports over the message broker
"""
