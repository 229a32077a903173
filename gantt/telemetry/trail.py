# SPDX-License-Identifier: Apache-2.0
"""The file of the audit trail: written by every process of a machine, and bounded.

The file is opened for each entry under its lock, so that processes share it and none
writes on in one that was turned: people change things by hand, not a thousand times a second.
"""

import collections
import fcntl
import logging
import os
from collections.abc import Iterator

from gantt.core.records import audit_trail

LOG = logging.getLogger(__name__)
#: The line in the log, which is there with or without the file.
TRAIL = logging.getLogger('gantt.audit_trail')
_FILE_MODE = 0o640


class AuditTrailFile:
    """Audit trail in files of a bounded size, or in the log.

    :param path: path of the file with the newest entries; older files have ``.1``, ``.2`` … behind
        it.  Empty:
        entries are lines of the log only
    :param bytes_max: size from which on the file is rotated
    :param files_limit: number of older files that are kept
    """

    def __init__(self, path: str, bytes_max: int, files_limit: int) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._files_limit = files_limit

    def write(self, entry: audit_trail.AuditEntry, to_log: bool = True) -> None:
        """Write an entry.  A file that cannot be written is an error in the log, not of the caller.

        :param to_log: whether to log the entry as well
        """
        text = audit_trail.entry_line(entry)
        if to_log:
            # With the id the line of the log is not put together by way of the thread's context.
            extra = {'request_id': entry.request_id} if entry.request_id else None
            TRAIL.info('%s', text, extra=extra)
        if not self._path:
            return
        try:
            self._append(f'{text}\n'.encode())
        except OSError as e:
            LOG.error(
                'Audit trail cannot be written; the entry is not in its file: path=%s error=%s',
                self._path,
                e,
            )

    def _append(self, data: bytes) -> None:
        lock = os.open(f'{self._path}.lock', os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._size() + len(data) > self._bytes_max:
                self._rotate()
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            file = os.open(self._path, flags, _FILE_MODE)
            try:
                os.write(file, data)
            finally:
                os.close(file)
        finally:
            os.close(lock)

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def _rotate(self) -> None:
        for number in range(self._files_limit, 0, -1):
            before = f'{self._path}.{number - 1}' if number > 1 else self._path
            if os.path.exists(before):
                os.replace(before, f'{self._path}.{number}')
        if not self._files_limit and os.path.exists(self._path):
            os.remove(self._path)

    def newest(self, most: int) -> list[audit_trail.AuditEntry]:
        """Return the last entries, oldest first."""
        entries: collections.deque[audit_trail.AuditEntry] = collections.deque(maxlen=most)
        entries.extend(self._entries())
        return list(entries)

    def _entries(self) -> Iterator[audit_trail.AuditEntry]:
        for number in range(self._files_limit, -1, -1):
            path = f'{self._path}.{number}' if number else self._path
            if os.path.exists(path):
                with open(path, encoding='ascii', errors='replace') as file:
                    yield from filter(None, map(audit_trail.decode_line, file))
