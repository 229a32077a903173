# SPDX-License-Identifier: Apache-2.0
"""Processes of a site, as they register in the database."""

import msgspec

#: Seconds between two heartbeats of a process, each a write of its row.
HEARTBEAT_SECONDS = 30.0
#: Seconds after which a process without a heartbeat is silent: three were missed.
SILENT_SECONDS = 100.0
#: Seconds for which a silent process stays stored.
SILENT_STORED_SECONDS = 86_400.0
#: Upper bound of listed processes, last seen first.
LISTED_PROCESSES_MAX = 1000


class MemoryUse(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a process that keeps a host table.

    Where it keeps several tables, the bytes are those of all of them.

    :ivar resident_bytes: of the whole process; 0: not known
    :ivar bytes_per_host: columns, rows and look-ups of hosts and of what they consist of
    :ivar bytes_per_claim: the index of live claims
    """

    resident_bytes: int
    hosts: int
    bytes_per_host: int
    claims: int
    bytes_per_claim: int


class ServiceNote(msgspec.Struct, frozen=True, kw_only=True):
    """Heartbeat of a process; times as ages in seconds.

    :ivar name: unique over processes and restarts
    :ivar kind: scheduler | planner | api
    :ivar configuration: digest of the options that affect decisions, see ``conf.digest``
    :ivar problem: why the options that were reloaded last were rejected, else empty
    :ivar alarm: a problem for the operator, such as forged messages; else empty
    :ivar up_seconds: since its start
    :ivar configured_seconds: since the current options were read
    :ivar memory: None: it keeps no host table
    """

    name: str
    kind: str
    host: str
    version: str
    configuration: str
    problem: str = ''
    alarm: str = ''
    up_seconds: float = 0.0
    configured_seconds: float = 0.0
    memory: MemoryUse | None = None


class ServiceRecord(ServiceNote, frozen=True, kw_only=True):
    """A process's heartbeat as stored in the database, by its clock.

    :ivar seen_seconds: since its last heartbeat
    """

    seen_seconds: float

    @property
    def is_silent(self) -> bool:
        """True where the process was killed, hangs, or does not reach the database."""
        return self.seen_seconds >= SILENT_SECONDS
