# SPDX-License-Identifier: Apache-2.0
"""Presence of a process: its row in the database, for "gantt service list".

One thread that writes one row every ``HEARTBEAT_SECONDS``, and when the configuration was read
again.  Nothing waits for it; while the database is away nothing is noted.
"""

import dataclasses
import hashlib
import logging
import os
import re
import resource
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gantt import exceptions
from gantt.conf import claims, decisions, filters, scheduler, security
from gantt.core.records.process import HEARTBEAT_SECONDS, MemoryUse, ServiceNote
from gantt.core.table.memory import MemoryCount
from gantt.scheduler.host_cache import HostCache
from gantt.scheduler.ports.records import Services
from gantt.version import version_string

LOG = logging.getLogger(__name__)
#: To the end of a process its row is deleted within so long, or stays and grows silent.
STOP_SECONDS = 2.0


@dataclasses.dataclass(eq=False)
class Presence:
    """This process among those of the site.

    :ivar kind: scheduler | planner | api
    :ivar make_name: function that returns a new name: a forked process needs another one
    :ivar described: returns the pipeline in force: plugins with their options
    :ivar alarm: returns what an operator has to attend to now; '': nothing
    :ivar caches: caches of hosts in this process, whose memory is noted
    :ivar gauge: sets a gauge of this process
    """

    conf: Any
    services: Services
    kind: str
    make_name: Callable[[], str]
    described: Callable[[], dict[str, Any]]
    seconds: float = HEARTBEAT_SECONDS
    alarm: Callable[[], str] = str
    caches: Sequence[HostCache] = ()
    gauge: Callable[..., None] | None = None

    def __post_init__(self) -> None:
        self._configuration = ''
        self._problem = ''
        self._is_failing = False
        self._begin()

    def _begin(self) -> None:
        self.name = self.make_name()
        self._started_at = self._configured = time.monotonic()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name='presence', daemon=True)

    def start(self) -> 'Presence':
        """Start the thread that writes the row of this process."""
        self._configuration = configuration_digest(self.conf, self.described())
        self._thread.start()
        _running.add(self)
        return self

    def configured(self, problem: str = '') -> None:
        """Note that the options were read again.

        :param problem: why the options were refused; '': they are in force
        """
        self._problem = problem
        if not problem:
            self._configured = time.monotonic()
            self._configuration = configuration_digest(self.conf, self.described())
        self._wake.set()

    def stop(self) -> None:
        """Stop, and delete the row of this process."""
        _running.discard(self)
        self._stopping = True
        self._wake.set()
        self._thread.join(STOP_SECONDS)

    def restart_after_fork(self) -> None:
        """Begin anew in a child of a started process: the thread stayed with the parent."""
        self._begin()
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            self._try_write(lambda: self.services.note_service(self._service_note()))
            self._wake.wait(self.seconds)
            self._wake.clear()
        self._try_write(lambda: self.services.forget_service(self.name))

    def _service_note(self) -> ServiceNote:
        now = time.monotonic()
        return ServiceNote(
            name=self.name,
            kind=self.kind,
            host=str(self.conf.host),
            version=version_string(),
            configuration=self._configuration,
            problem=self._problem,
            alarm=self.alarm(),
            up_seconds=now - self._started_at,
            configured_seconds=now - self._configured,
            memory=self._memory_use(),
        )

    def _memory_use(self) -> MemoryUse | None:
        """Measure the memory; None: this process keeps no host table, or the measurement failed."""
        if not self.caches:
            return None
        try:
            memory = memory_of(self.caches)
        except Exception as e:
            # Other threads write the tables meanwhile.  Without its note the process would look
            # silent to operators.
            LOG.warning('The memory of host tables was not measured: error=%r', e)
            return None
        if self.gauge is not None:
            sizes = {'host': memory.bytes_per_host, 'claim': memory.bytes_per_claim}
            for entry, size in sizes.items():
                self.gauge('gantt_host_table_entry_bytes', size, process=self.kind, entry=entry)
        return memory

    def _try_write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except exceptions.Unavailable as e:
            if not self._is_failing:
                LOG.warning('This process cannot be recorded for "gantt service list": error=%s', e)
            self._is_failing = True
        except Exception:
            if not self._is_failing:
                LOG.exception('This process cannot be recorded for "gantt service list"')
            self._is_failing = True
        else:
            self._is_failing = False


def memory_of(caches: Sequence[HostCache]) -> MemoryUse:
    """Return the memory of this process, and of the tables that these caches keep."""
    count = MemoryCount()
    tables = [table.memory(count) for cache in caches for table in cache.tables]
    hosts = max(table.hosts for table in tables)
    claims = max(table.claims for table in tables)
    return MemoryUse(
        resident_bytes=_resident_bytes(),
        hosts=hosts,
        bytes_per_host=round(sum(table.host_bytes for table in tables) / hosts) if hosts else 0,
        claims=claims,
        bytes_per_claim=round(sum(table.claim_bytes for table in tables) / claims) if claims else 0,
    )


def _resident_bytes() -> int:
    """Return the resident memory of this process; 0 where the system does not tell."""
    try:
        with open('/proc/self/statm', encoding='ascii') as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


_running: 'weakref.WeakSet[Presence]' = weakref.WeakSet()


def _restart_after_fork() -> None:
    for presence in list(_running):
        presence.restart_after_fork()


os.register_at_fork(after_in_child=_restart_after_fork)


#: Group -> its options, where all processes of a site should agree.
_COMPARED_OPTIONS = {
    'scheduler': scheduler.OPTS,
    'claims': claims.OPTS,
    'decisions': decisions.OPTS,
    'security': security.OPTS,
}
#: Of one machine.
_MACHINE_OPTIONS = {('scheduler', 'workers')}
#: Options of plugins are not marked as secret: these names are taken for it.
_SECRET_NAME = re.compile(
    r'passw|secret|token|credential|(^|_)key($|_)|url|connection', re.IGNORECASE
)
_DIGEST_BYTES = 8


def configuration_digest(conf: Any, described: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits of the configuration, by which two processes are compared.

    They are of what decides how requests are answered.  What may differ from machine to machine
    (names, addresses, ports, paths, how many workers) is left out, and so is what is secret:
    a reader of the digest could try values until it matches.

    :param described: the pipeline in force: filters and weighers with their options
    """
    agreed: list[Any] = []
    for group, opts in _COMPARED_OPTIONS.items():
        agreed += [
            (group, opt.name, repr(conf[group][opt.dest]))
            for opt in sorted(opts, key=lambda opt: opt.name)
            if not opt.secret and (group, opt.name) not in _MACHINE_OPTIONS
        ]
    for key in sorted(described):
        agreed.append((filters.FILTERS.name, key, _without_secrets(described[key])))
    return hashlib.blake2b(repr(agreed).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _without_secrets(value: Any) -> Any:
    """Return the value in the order of the configuration, without options that may be secret."""
    if not isinstance(value, Mapping):
        return repr(value)
    return [
        (name, _without_secrets(inner))
        for name, inner in value.items()
        if isinstance(inner, Mapping) or not _SECRET_NAME.search(str(name))
    ]
