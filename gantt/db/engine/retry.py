# SPDX-License-Identifier: Apache-2.0
"""Meaning of database errors, and bounds of retries.

oslo.db's decorator is not used: it does not recognize a serialization failure of PostgreSQL or a
busy SQLite, and its first pause is a whole second.
"""

import contextlib
import enum
import random
import re
import time
from collections.abc import Iterator

import msgspec

from gantt import exceptions

#: Time to wait for clients that met locked rows.
RETRY_AFTER_MS = 500


class RetrySignal(enum.Enum):
    """Meaning of an error for the transaction that it ended."""

    CONFLICT = 'conflict'  # nothing was written; run it again
    LOCKED = 'locked'  # the same, after a wait for a row that another transaction keeps locked
    LOST = 'lost'  # no connection; in COMMIT the outcome is not known


class RetryTransaction(Exception):
    """Raised by the work of a transaction to have it rolled back and run again."""


class MoreLocks(RetryTransaction):
    """Raised where rows are needed that come before locked ones in the lock order: run again."""


class RowsLocked(Exception):
    """Signal that another transaction kept rows locked for too long; nothing was written."""


class CommitOutcomeUnknown(Exception):
    """Signal that the connection broke during COMMIT: the outcome is not known."""


#: PostgreSQL: serialization failure, deadlock.
PG_CONFLICT_CODES = {'40001', '40P01'}
#: PostgreSQL: lock not available, also after lock_timeout.
PG_LOCKED_CODES = {'55P03'}
#: PostgreSQL: shutdown, cannot connect now, too many connections, ended while
#: idle in a transaction or as it took too long (from 17 on), read-only (a former primary).
PG_CONNECTION_LOST_CODES = {'57P01', '57P02', '57P03', '53300', '25P03', '25P04', '25006'}
#: MariaDB: deadlock, record has changed since last read.
MYSQL_CONFLICT_CODES = {1213, 1020}
#: MariaDB: lock wait timeout.
MYSQL_LOCKED_CODES = {1205}
#: MariaDB: too many connections, node not ready for use, shutdown, read-only,
#: connection killed, query interrupted by it, cannot connect, gone away, lost; of MySQL:
#: ended while idle.
MYSQL_CONNECTION_LOST_CODES = {
    1040,
    1047,
    1053,
    1290,
    1317,
    1927,
    2002,
    2003,
    2006,
    2013,
    2014,
    2055,
    4031,
}
SQLITE_CONFLICT_CODES = {5, 6}  # busy, locked

PG_DISK_FULL_CODES = {'53100'}
#: MariaDB: disk full (of a file, of the server), table full: InnoDB reports it of its files.
MYSQL_DISK_FULL_CODES = {20, 1021, 1114}
#: Errors of a file or a storage engine, with the system's error 28 in their text.
MYSQL_FILE_ERROR_CODES = {3, 1026, 1030}
SQLITE_DISK_FULL_CODE = 13

#: A table that does not exist, by code.
PG_NO_TABLE_CODE = '42P01'
MYSQL_NO_TABLE_CODE = 1146

_WRONG_USER = 'the user or the password'
_WRONG_USER_OR_ADDRESS = 'the user, or its rights to come from this machine'
_WRONG_DATABASE_NAME = 'the name of the database, or make one'
_MISSING_GRANTS = 'the user, or grant it SELECT, INSERT, UPDATE and DELETE on all tables there'
#: Refusals of a running server, with the part of the url to correct.  MariaDB: by code.
MYSQL_REFUSAL_ADVICE = {
    1044: 'the name of the database, or the rights of the user',
    1045: _WRONG_USER,
    1049: _WRONG_DATABASE_NAME,
    1130: _WRONG_USER_OR_ADDRESS,
    1142: _MISSING_GRANTS,
    1143: _MISSING_GRANTS,
    1698: _WRONG_USER,
}
#: PostgreSQL: by code, or by message where libpq gives no code.
PG_REFUSAL_ADVICE = {
    '28P01': _WRONG_USER,
    '28000': _WRONG_USER_OR_ADDRESS,
    '3D000': _WRONG_DATABASE_NAME,
    '42501': _MISSING_GRANTS,
}
PG_REFUSAL_ADVICE_BY_MESSAGE = (
    (
        re.compile(r'FATAL: .*(authentication failed|role ".*" (does not exist|is not permitted))'),
        _WRONG_USER,
    ),
    (re.compile(r'FATAL: .*no pg_hba.conf entry'), _WRONG_USER_OR_ADDRESS),
    (re.compile(r'FATAL: .*database ".*" does not exist'), _WRONG_DATABASE_NAME),
    (re.compile(r'FATAL: .*permission denied'), 'the rights of the user'),
    (re.compile(r'fe_sendauth: no password supplied'), _WRONG_USER),
)
_NO_SPACE_ERROR = re.compile(r'\b(error|errcode|errno):? 28\b', re.IGNORECASE)


def signal_of(error: BaseException | None) -> RetrySignal | None:
    """Return the signal of ``error`` or the errors it wraps; None: a retry would not cure it."""
    depth = 0
    while error is not None and depth < 8:
        if isinstance(error, RetryTransaction):
            return RetrySignal.CONFLICT
        if isinstance(error, CommitOutcomeUnknown):
            return RetrySignal.LOST
        signal = _driver_signal(error)
        if signal is not None:
            return signal
        error = (
            getattr(error, 'inner_exception', None)
            or getattr(error, 'orig', None)
            or error.__cause__
        )
        depth += 1
    return None


def _driver_signal(error: BaseException) -> RetrySignal | None:
    module = type(error).__module__.partition('.')[0]
    if module == 'psycopg':
        return _psycopg_signal(error)
    if module == 'pymysql':
        return _pymysql_signal(error)
    if module == 'sqlite3':
        code = getattr(error, 'sqlite_errorcode', 0) or 0
        return RetrySignal.CONFLICT if code & 0xFF in SQLITE_CONFLICT_CODES else None
    return None


def _psycopg_signal(error: BaseException) -> RetrySignal | None:
    state = getattr(error, 'sqlstate', None)
    if state is None:
        # libpq has no code if no server answers.
        names = ('OperationalError', 'ConnectionTimeout')
        return RetrySignal.LOST if type(error).__name__ in names else None
    if state in PG_CONFLICT_CODES:
        return RetrySignal.CONFLICT
    if state in PG_LOCKED_CODES:
        return RetrySignal.LOCKED
    return RetrySignal.LOST if state in PG_CONNECTION_LOST_CODES or state.startswith('08') else None


def _pymysql_signal(error: BaseException) -> RetrySignal | None:
    code = error.args[0] if error.args else None
    if code in MYSQL_CONFLICT_CODES:
        return RetrySignal.CONFLICT
    if code in MYSQL_LOCKED_CODES:
        return RetrySignal.LOCKED
    # PyMySQL answers (0, '') on a connection that it has closed itself.
    is_closed = type(error).__name__ == 'InterfaceError' and code == 0
    return RetrySignal.LOST if code in MYSQL_CONNECTION_LOST_CODES or is_closed else None


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of retries: the number of attempts, and the seconds that all of them may take."""

    attempts: int = 8
    seconds: float = 15.0
    #: Rows that stay locked for so long, all waits together, are no longer waited for.
    locked_seconds: float = 1.5
    #: Full jitter: each pause is drawn from 2 ms up to a bound that doubles.
    conflict_max: float = 0.05
    lost_max: float = 0.5

    def rounds(self) -> 'Iterator[RetryRound]':
        """Yield the attempts; the error of the last one is raised.

        :raises DatabaseUnavailable: from ``RetryRound.failed``
        """
        began = time.monotonic()
        for number in range(1, self.attempts + 1):
            yield RetryRound(self, number, began)


class RetryRound:
    """An attempt of a transaction."""

    def __init__(self, policy: RetryPolicy, number: int, began: float) -> None:
        self._policy = policy
        self.number = number
        self._began = began

    def failed(self, signal: RetrySignal, error: BaseException) -> None:
        """Wait before the next attempt, after this one failed; raise where the policy allows none.

        :param signal: meaning of ``error``
        :raises DatabaseUnavailable: the attempts or seconds of the policy are used up
        :raises DatabaseContended: likewise, and the last attempt failed by a conflict
        :raises Busy: rows stayed locked for ``locked_seconds``
        """
        policy = self._policy
        spent = time.monotonic() - self._began
        if signal is RetrySignal.LOCKED and spent >= policy.locked_seconds:
            raise busy() from error
        seconds_left = policy.seconds - spent
        if self.number >= policy.attempts or seconds_left <= 0:
            if signal is RetrySignal.CONFLICT:
                raise exceptions.DatabaseContended(problem=problem_text(error)) from error
            raise unavailable(error) from error
        pause_max = policy.lost_max if signal is RetrySignal.LOST else policy.conflict_max
        bound = min(pause_max, 0.004 * 2**self.number)
        time.sleep(min(seconds_left, random.uniform(0.002, bound)))


@contextlib.contextmanager
def unless_raced() -> Iterator[None]:
    """Wrap statements that refer to rows by names, or assign a name.

    :raises RetryTransaction: a name was deleted, came into use, or was assigned meanwhile
    """
    try:
        yield
    except Exception as e:
        kinds = {kind.__name__ for kind in type(root_cause(e)).__mro__}
        if 'IntegrityError' not in kinds:
            raise
        raise RetryTransaction('a name was deleted, taken, or came into use, meanwhile') from e


def is_disk_full(error: BaseException) -> bool:
    """Return whether the server reported that its disk is full; nothing was written then."""
    root = root_cause(error)
    module = type(root).__module__.partition('.')[0]
    if module == 'psycopg':
        return getattr(root, 'sqlstate', None) in PG_DISK_FULL_CODES
    if module == 'pymysql':
        code = root.args[0] if root.args else None
        return code in MYSQL_DISK_FULL_CODES or (
            code in MYSQL_FILE_ERROR_CODES and _NO_SPACE_ERROR.search(str(root)) is not None
        )
    return module == 'sqlite3' and getattr(root, 'sqlite_errorcode', 0) == SQLITE_DISK_FULL_CODE


def lacks_table(error: BaseException) -> bool:
    """Return whether the server reported that a table does not exist."""
    root = root_cause(error)
    module = type(root).__module__.partition('.')[0]
    if module == 'psycopg':
        return getattr(root, 'sqlstate', None) == PG_NO_TABLE_CODE
    if module == 'pymysql':
        return bool(root.args) and root.args[0] == MYSQL_NO_TABLE_CODE
    return module == 'sqlite3' and str(root).startswith('no such table')


def unavailable(error: BaseException) -> exceptions.DatabaseUnavailable:
    """Return the exception for a database that is away, or runs and refuses us."""
    problem, correct = problem_text(error), refusal_of(error)
    if not correct:
        return exceptions.DatabaseUnavailable(problem=problem)
    return exceptions.DatabaseUnavailable(
        f'the database runs and refuses us: {problem}; correct in [database] connection {correct}',
        problem=problem,
        correct=correct,
    )


def busy(what: str = 'rows that this needs are') -> exceptions.Busy:
    """Return the exception for rows that stay locked."""
    return exceptions.Busy(
        reason=f'{what} locked by another process that does not go on',
        retry_after_ms=RETRY_AFTER_MS,
    )


def refusal_of(error: BaseException) -> str:
    """Return the part of the url that a running server refuses; '' if none."""
    root = root_cause(error)
    module = type(root).__module__.partition('.')[0]
    if module == 'pymysql':
        return MYSQL_REFUSAL_ADVICE.get(root.args[0], '') if root.args else ''
    if module != 'psycopg':
        return ''
    state = getattr(root, 'sqlstate', None)
    if state is not None:
        return PG_REFUSAL_ADVICE.get(state, '')
    error_text = ' '.join(str(root).split())
    return next(
        (part for pattern, part in PG_REFUSAL_ADVICE_BY_MESSAGE if pattern.search(error_text)), ''
    )


def problem_text(error: BaseException) -> str:
    """Return the innermost message of an error, one line, without the statement."""
    root = root_cause(error)
    return (' '.join(str(root).split()) or type(root).__name__)[:300]


def root_cause(error: BaseException) -> BaseException:
    """Return the driver's own error inside of those of SQLAlchemy and oslo.db."""
    for _ in range(8):
        inner = getattr(error, 'inner_exception', None) or getattr(error, 'orig', None)
        if inner is None or inner is error:
            break
        error = inner
    return error
