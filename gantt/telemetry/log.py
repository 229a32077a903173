# SPDX-License-Identifier: Apache-2.0
"""Logging: oslo.log, the request id in every line of a request, secrets masked.

A line is a sentence or an event's name followed by ``key=value`` facts, so
that people can read it and programs can split it.
"""

import contextlib
import copy
import itertools
import logging as stdlib_logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from typing import Any

from oslo_context import context
from oslo_log import formatters, log
from oslo_utils import strutils

from gantt import exceptions, private_names
from gantt.core.messages import quoting

_LINE_PREFIX = '%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s'
LINE_FORMAT = f'{_LINE_PREFIX} [-] %(message)s'
REQUEST_LINE_FORMAT = f'{_LINE_PREFIX} [%(request_id)s] %(message)s'

#: Loggers without anything that an operator needs at INFO.
DEFAULT_LOG_LEVELS = [
    'amqp=WARN',
    'amqplib=WARN',
    'oslo.messaging=INFO',
    'oslo_messaging=INFO',
    'kombu=WARN',
    'sqlalchemy=WARN',
    'alembic=WARN',
    'stevedore=WARN',
    'urllib3.connectionpool=WARN',
    'httpx2=WARN',
    'httpcore2=WARN',
    'oslo_policy=INFO',
    'cotyledon=INFO',
    'waitress=INFO',
    'keystoneauth=WARN',
    # The caller of the database logs it in one line, or with a traceback where it is unforeseen.
    'oslo_db.sqlalchemy.exc_filters=CRITICAL',
]

#: Loggers where every connection of a process logs the same in an outage.
REPETITIVE_LOGGERS = ('gantt.rpc.amqp.reader', 'oslo.messaging._drivers.impl_rabbit')
#: Such a line comes once in so many seconds.
REPEATED_LINE_SECONDS = 10.0

# user:password@ after :// or, in URLs of several hosts, after a comma.
_URL_SECRET = re.compile(r'(?P<head>(?:://|,)[^\s:/@,]*:)[^\s@/,]+(?=@)')
_UNQUOTED = re.compile(r'[^\s="\']+\Z')
#: What most facts are: plain, and nothing in it that a terminal obeys.
_PRINTABLE_FACT = re.compile(r'[!#-&(-<>-~]{1,200}\Z')
#: Characters of a message, and of one fact in it.
MESSAGE_MAX = 16_000
FACT_MAX = 2000


def register_opts(conf: Any) -> None:
    """Register oslo.log's options, with our line shapes as defaults."""
    log.register_options(conf)
    log.set_defaults(
        logging_context_format_string=REQUEST_LINE_FORMAT,
        default_log_levels=list(DEFAULT_LOG_LEVELS),
    )
    conf.set_default('logging_default_format_string', LINE_FORMAT)


def setup(conf: Any, program: str = 'gantt') -> None:
    """Start logging as configured, masking what resembles a secret.

    :raises Misconfigured: the log file cannot be written, or an option is wrong
    """
    for library in ('oslo.context', 'oslo.log'):
        private_names.check(library)
    try:
        with _private_files():
            path = log._get_log_file_path(conf)
            if path:
                _leave_to_owner(path)
            log.setup(conf, program)
    except Exception as e:  # whatever stands in the options reaches Python's logging
        raise _misconfigured(conf, e) from None
    _mask_all(conf)
    _keep_private()
    limit_libraries()


def limit_libraries() -> None:
    """Limit lines that every connection logs in an outage to one in a while for this process."""
    for name in REPETITIVE_LOGGERS:
        logger = stdlib_logging.getLogger(name)
        if not any(isinstance(log_filter, RateLimitFilter) for log_filter in logger.filters):
            logger.addFilter(RateLimitFilter(REPEATED_LINE_SECONDS))


class RateLimitFilter(stdlib_logging.Filter):
    """A rate limit: passes lines of one text, whatever its values, once in a while.

    The next line of that text has how many were left out.  Lines below WARNING pass.

    :param seconds: between two lines of one text
    """

    #: Texts that are remembered; more there are not in a library.
    TEXTS_MAX = 256

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds
        self._lock = threading.Lock()
        self._passed_at: dict[str, float] = {}
        self._omitted_counts: dict[str, int] = {}

    def filter(self, record: stdlib_logging.LogRecord) -> bool:
        if record.levelno < stdlib_logging.WARNING:
            return True
        text, now = str(record.msg), time.monotonic()
        with self._lock:
            if now - self._passed_at.get(text, float('-inf')) < self._seconds:
                self._omitted_counts[text] = self._omitted_counts.get(text, 0) + 1
                return False
            if len(self._passed_at) >= self.TEXTS_MAX:
                self._passed_at.clear()
                self._omitted_counts.clear()
            self._passed_at[text] = now
            left_out = self._omitted_counts.pop(text, 0)
        if left_out:
            record.msg = f'{record.getMessage()} ({left_out} more like it since the last line)'
            record.args = ()
        return True


@contextlib.contextmanager
def reconfiguring(conf: Any) -> Iterator[None]:
    """Configure logging anew inside; where that fails, restore the former configuration.

    :raises Misconfigured: an option of logging is wrong, or a file that it names
    """
    before = [
        (logger, logger.level, list(logger.handlers), logger.propagate, logger.disabled)
        for logger in _loggers()
    ]
    try:
        yield
    except Exception as e:  # as above
        for logger, level, handlers, propagate, disabled in before:
            logger.setLevel(level)
            logger.handlers[:] = handlers
            logger.propagate = propagate
            logger.disabled = disabled
        raise _misconfigured(conf, e) from None
    _mask_all(conf)


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Create files inside with rights for their owner alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _keep_private() -> None:
    """Log files that are opened later, as they are rotated, are private as well."""
    # A file of log_config_append gives handlers to other loggers than the root as well.
    for handler in itertools.chain.from_iterable(logger.handlers for logger in _loggers()):
        if isinstance(handler, stdlib_logging.FileHandler):
            open_file = handler._open
            if not isinstance(open_file, _PrivateFileOpener):
                handler._open = _PrivateFileOpener(open_file)  # type: ignore[method-assign]


def _leave_to_owner(path: str) -> None:
    """Hand a log that root begins in the directory of another user to that user.

    ``gantt-manage`` runs as root once, for a step of the installation, and as its own user
    from then on: a log of root's would keep it out.
    """
    if os.geteuid() != 0:
        return
    # A missing directory is for the one that opens the log to report.
    with contextlib.suppress(OSError):
        owner = os.stat(os.path.dirname(path) or '.')
        if owner.st_uid != 0:
            # Exclusively: a file or a link that the user put there is never given away.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
            finally:
                os.close(descriptor)


class _PrivateFileOpener:
    """An opener of log files that no other user may read."""

    def __init__(self, open_file: Callable[[], TextIOWrapper]) -> None:
        self._open_file = open_file

    def __call__(self) -> TextIOWrapper:
        with _private_files():
            _leave_to_owner(self._open_file.__self__.baseFilename)  # type: ignore[attr-defined]
            return self._open_file()


def _loggers() -> list[stdlib_logging.Logger]:
    root = stdlib_logging.getLogger()
    registered = list(root.manager.loggerDict.values())
    return [root, *(logger for logger in registered if isinstance(logger, stdlib_logging.Logger))]


def _mask_all(conf: Any) -> None:
    for handler in stdlib_logging.getLogger().handlers:
        inner = handler.formatter or stdlib_logging.Formatter()
        if not isinstance(inner, MaskingFormatter):
            handler.setFormatter(formatter_for(inner, conf))


def _misconfigured(conf: Any, error: Exception) -> exceptions.Misconfigured:
    """Return the error of the logging of Python or oslo, with the option that it comes from."""
    message = getattr(error, 'err_msg', '') or str(error) or type(error).__name__
    option, fix = 'an option of logging', 'Correct it'
    if conf.log_config_append:
        option, fix = 'log_config_append', 'Name a readable file in the form of logging.config'
        message = f'{conf.log_config_append}: {message.splitlines()[0]}'
    elif isinstance(error, OSError):
        option = 'log_dir or log_file'
        message = f'{error.filename}: {error.strerror}'
        fix = 'Make the directory, writable for the user that runs this, or choose another'
    elif 'Unknown level' in message:
        option, fix = 'default_log_levels', 'Write each as logger=LEVEL, such as amqp=WARN'
    elif 'syslog' in message:
        option = 'use_syslog or syslog_log_facility'
    elif conf.use_journal:
        option, fix = 'use_journal', 'Install systemd-python, or leave it out'
    return exceptions.Misconfigured(option=f'[DEFAULT] {option}', problem=message, fix=fix)


def masked(text: str) -> str:
    """Return ``text`` without passwords: those in URLs and those named as such."""
    return strutils.mask_password(_URL_SECRET.sub(r'\g<head>***', text) if '@' in text else text)


class MaskingFormatter(stdlib_logging.Formatter):
    """A formatter that masks secrets in the finished line and writes its message as one line.

    Tracebacks are masked, too.  Many messages contain text from outside: one with a line break,
    or with what a terminal obeys, would write lines of its own.
    """

    def __init__(self, inner: stdlib_logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: stdlib_logging.LogRecord) -> str:
        message = record.getMessage()
        if not _is_plain(message):
            record = copy.copy(record)
            record.msg = quoting.plain_text(message, MESSAGE_MAX)
            record.args = None
        if record.exc_info or record.exc_text:
            # A traceback has lines; the text of the error itself may contain anything.
            return masked(
                '\n'.join(map(quoting.plain_text, self._inner.format(record).split('\n')))
            )
        line = self._inner.format(record)
        error = sys.exc_info()[1]
        if error is not None:
            # oslo.log adds the error that is being handled, also where the message has it.
            summary, problem = getattr(record, 'error_summary', ''), str(error).partition('\n')[0]
            if summary and problem and problem in message:
                line = line.removesuffix(f': {summary}')
        return masked(line)


def _is_plain(message: str) -> bool:
    return message.isprintable() and len(message) <= MESSAGE_MAX


class FastFormatter(MaskingFormatter):
    """A formatter that writes records with their own request id without oslo.log.

    oslo.log puts a formatter together for each record; a scheduler writes one for
    each placement.  The lines are the same.
    """

    def __init__(self, inner: stdlib_logging.Formatter) -> None:
        super().__init__(inner)
        self._cached_second = (-1, '')

    def format(self, record: stdlib_logging.LogRecord) -> str:
        request_id = record.__dict__.get('request_id')
        if not request_id or record.levelno != stdlib_logging.INFO or record.exc_info:
            return super().format(record)
        message = record.getMessage()
        if not _is_plain(message):
            return super().format(record)
        second, time_text = self._cached_second
        if second != int(record.created):
            second = int(record.created)
            time_text = time.strftime(self.default_time_format, time.localtime(second))
            self._cached_second = second, time_text
        return masked(
            f'{time_text}.{int(record.msecs):03} {record.process} INFO {record.name} '
            f'[{request_id}] {message}'
        )


def formatter_for(inner: stdlib_logging.Formatter, conf: Any) -> MaskingFormatter:
    """Return the masking formatter of a handler: the fast one for lines in our own shape."""
    is_ours = (
        type(inner) is formatters.ContextFormatter
        and inner.datefmt in (None, inner.default_time_format)
        and conf.logging_context_format_string == REQUEST_LINE_FORMAT
    )
    return FastFormatter(inner) if is_ours else MaskingFormatter(inner)


@contextlib.contextmanager
def request(request_id: str, project_id: str | None = None) -> Iterator[None]:
    """Give every line logged inside, by this thread, the request id."""
    before = context.get_current()
    context.RequestContext(request_id=request_id, project_id=project_id, overwrite=True)
    try:
        yield
    finally:
        if before is not None:
            before.update_store()
        elif hasattr(context._request_store, 'context'):
            del context._request_store.context


def facts(**values: object) -> str:
    """Return ``key=value`` pairs in the order given; None is left out, odd text is quoted."""
    return ' '.join(
        f'{key}={_value_text(value)}' for key, value in values.items() if value is not None
    )


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f'{value:.6g}'
    text = ','.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    if _PRINTABLE_FACT.match(text):
        return text
    if len(text) <= FACT_MAX and text.isprintable() and _UNQUOTED.match(text):
        return text
    text = text.replace('\\', '\\\\').replace('"', '\\"')
    return f'"{quoting.plain_text(text, FACT_MAX)}"'
