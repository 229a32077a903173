# SPDX-License-Identifier: Apache-2.0
"""Processes of a site, as they note themselves in the database."""

import msgspec

#: Between two notes of a process; its row is written so often and no oftener.
NOTE_SECONDS = 30.0
#: A process that has not noted itself for so long is silent: three notes did not come.
SILENT_SECONDS = 100.0
#: A silent one is remembered for so long.
STORED_SECONDS = 86_400.0
#: As many processes are listed, those seen last first.
LISTED_MAX = 1000


class ServiceNote(msgspec.Struct, frozen=True, kw_only=True):
    """What a process says of itself; times as ages in seconds.

    :ivar name: no other process, and no earlier start of this one, has it
    :ivar kind: scheduler | planner | api
    :ivar configuration: digest of the options that decide what is answered, see ``conf.digest``
    :ivar problem: why the options that were read again last were not taken over, else empty
    :ivar alarm: what an operator has to look into, as forged messages; else empty
    :ivar up_seconds: since it was started
    :ivar configured_seconds: since the options in force were read
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


class ServiceRecord(ServiceNote, frozen=True, kw_only=True):
    """The same as the database has it, by its clock.

    :ivar seen_seconds: since it noted itself last
    """

    seen_seconds: float

    @property
    def is_silent(self) -> bool:
        """Whether it was killed, hangs, or does not reach the database."""
        return self.seen_seconds >= SILENT_SECONDS
