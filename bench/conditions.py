# SPDX-License-Identifier: Apache-2.0
"""Conditions of a bench: versions, processor, disk, memory."""

import importlib.metadata
import os
import pathlib
import platform
import statistics
import tempfile
import time

PACKAGES = (
    'numpy',
    'msgspec',
    'oslo.messaging',
    'oslo.db',
    'SQLAlchemy',
    'psycopg',
    'PyMySQL',
    'kombu',
)


#: Load average of the last minute below which a machine is quiet.
QUIET = 0.5
#: Seconds that a bench waits for that, unless the variable of this name has another number.
WAIT, WAIT_SECONDS = 'GANTT_BENCH_WAIT_SECONDS', 180.0


def rss_mb(pid: int | str = 'self') -> float:
    """Return the resident memory of a process in MiB, 0 where the system does not report it."""
    try:
        pages = int(pathlib.Path(f'/proc/{pid}/statm').read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0.0
    return round(pages * os.sysconf('SC_PAGE_SIZE') / 2**20, 1)


def fdatasync_ms(folder: str | None = None, count: int = 50) -> float:
    """Return median time of a 4 KiB append with fdatasync, in milliseconds."""
    times = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(count):
            started = time.perf_counter()
            os.write(file.fileno(), b'\0' * 4096)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    return round(statistics.median(times) * 1000, 4)


def _processor() -> str:
    try:
        lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(':')[2].strip() for line in lines if line.startswith('model name'))
    return next(named, platform.processor())


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def wait_until_quiet() -> dict[str, object]:
    """Wait for a load average below ``QUIET``, for so long at most; how that ended."""
    until = time.monotonic() + float(os.environ.get(WAIT, WAIT_SECONDS))
    while (load := os.getloadavg()[0]) >= QUIET and time.monotonic() < until:
        time.sleep(1)
    return {'load_before': round(load, 2), 'quiet': load < QUIET}


def here() -> dict[str, object]:
    """Return the conditions that every bench states."""
    return {
        'python': platform.python_version(),
        'versions': _versions(),
        'processor': _processor(),
        'processors': os.cpu_count(),
        'load': [round(x, 2) for x in os.getloadavg()],
        'fdatasync_ms': fdatasync_ms(),
        'rss_mb': rss_mb(),
    }
