# SPDX-License-Identifier: Apache-2.0
"""Logging: oslo.log, the request id in every line of a request, secrets masked.

A line is a sentence or an event's name followed by ``key=value`` facts, so
that people can read it and programs can split it.
"""

import contextlib
import logging as stdlib_logging
import re
import time
from collections.abc import Iterator
from typing import Any

from oslo_context import context
from oslo_log import formatters, log
from oslo_utils import strutils

from gantt import exceptions
from gantt.core.decision import Answer

_PREFIX = '%(asctime)s.%(msecs)03d %(process)d %(levelname)s %(name)s'
LINE = f'{_PREFIX} [-] %(message)s'
LINE_OF_A_REQUEST = f'{_PREFIX} [%(request_id)s] %(message)s'

#: Loggers that say nothing an operator needs at INFO.
LEVELS = [
    'amqp=WARN', 'amqplib=WARN', 'oslo.messaging=INFO', 'oslo_messaging=INFO', 'kombu=WARN',
    'sqlalchemy=WARN', 'alembic=WARN', 'stevedore=WARN', 'urllib3.connectionpool=WARN',
    'httpx=WARN', 'httpcore=WARN', 'oslo_policy=INFO', 'cotyledon=INFO', 'waitress=INFO',
    'keystoneauth=WARN',
]  # fmt: skip

# user:password@ after :// or, in URLs of several hosts, after a comma.
_URL_SECRET = re.compile(r'(?P<head>(?:://|,)[^\s:/@,]*:)[^\s@/,]+(?=@)')
_PLAIN = re.compile(r'^[^\s="\']+$')


def register_opts(conf: Any) -> None:
    """oslo.log's options, with our line shapes as defaults."""
    log.register_options(conf)
    log.set_defaults(
        logging_context_format_string=LINE_OF_A_REQUEST, default_log_levels=list(LEVELS)
    )
    conf.set_default('logging_default_format_string', LINE)


def setup(conf: Any, program: str = 'gantt') -> None:
    """Start logging as configured, masking what looks like a secret.

    :raises Misconfigured: the log file cannot be written, or an option is wrong
    """
    try:
        log.setup(conf, program)
    except Exception as e:  # whatever stands in the options reaches Python's logging
        raise _misconfigured(conf, e) from None
    _mask_all(conf)


@contextlib.contextmanager
def changing(conf: Any) -> Iterator[None]:
    """Logging is configured anew inside: as a whole, or it is as it was.

    :raises Misconfigured: an option of logging is wrong, or a file that it names
    """
    before = [
        (one, one.level, list(one.handlers), one.propagate, one.disabled) for one in _loggers()
    ]
    try:
        yield
    except Exception as e:  # as above
        for one, level, handlers, propagate, disabled in before:
            one.setLevel(level)
            one.handlers[:] = handlers
            one.propagate, one.disabled = propagate, disabled
        raise _misconfigured(conf, e) from None
    _mask_all(conf)


def _loggers() -> list[stdlib_logging.Logger]:
    root = stdlib_logging.getLogger()
    known = list(root.manager.loggerDict.values())
    return [root, *(one for one in known if isinstance(one, stdlib_logging.Logger))]


def _mask_all(conf: Any) -> None:
    for handler in stdlib_logging.getLogger().handlers:
        inner = handler.formatter or stdlib_logging.Formatter()
        if not isinstance(inner, Masking):
            handler.setFormatter(formatter_for(inner, conf))


def _misconfigured(conf: Any, error: Exception) -> exceptions.Misconfigured:
    """What the logging of Python and of oslo raises, with the option that it comes from."""
    said = getattr(error, 'err_msg', '') or str(error) or type(error).__name__
    option, fix = 'an option of logging', 'Correct it'
    if conf.log_config_append:
        option, fix = 'log_config_append', 'Name a readable file in the form of logging.config'
        said = f'{conf.log_config_append}: {said.splitlines()[0]}'
    elif isinstance(error, OSError):
        option = 'log_dir or log_file'
        said = f'{error.filename}: {error.strerror}'
        fix = 'Make the directory, writable for the user that runs this, or choose another'
    elif 'Unknown level' in said:
        option, fix = 'default_log_levels', 'Write each as logger=LEVEL, such as amqp=WARN'
    elif 'syslog' in said:
        option = 'use_syslog or syslog_log_facility'
    elif conf.use_journal:
        option, fix = 'use_journal', 'Install systemd-python, or leave it out'
    return exceptions.Misconfigured(option=f'[DEFAULT] {option}', problem=said, fix=fix)


def masked(text: str) -> str:
    """``text`` without passwords: those in URLs and those named as such."""
    return strutils.mask_password(_URL_SECRET.sub(r'\g<head>***', text))


class Masking(stdlib_logging.Formatter):
    """Masks secrets in the finished line, traceback and all."""

    def __init__(self, inner: stdlib_logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: stdlib_logging.LogRecord) -> str:
        return masked(self._inner.format(record))


class Quick(Masking):
    """Writes what carries its own request id by our line shape without asking oslo.log.

    oslo.log puts a formatter together for each record; a scheduler writes one for
    each placement.  The lines are the same.
    """

    def __init__(self, inner: stdlib_logging.Formatter) -> None:
        super().__init__(inner)
        self._second = (-1, '')

    def format(self, record: stdlib_logging.LogRecord) -> str:
        request_id = record.__dict__.get('request_id')
        if not request_id or record.levelno != stdlib_logging.INFO or record.exc_info:
            return super().format(record)
        second, shown = self._second
        if second != int(record.created):
            second = int(record.created)
            shown = time.strftime(self.default_time_format, time.localtime(second))
            self._second = second, shown
        return masked(
            f'{shown}.{int(record.msecs):03} {record.process} INFO {record.name} '
            f'[{request_id}] {record.getMessage()}'
        )


def formatter_for(inner: stdlib_logging.Formatter, conf: Any) -> Masking:
    """What masks the lines of a handler; quick where they have our shape."""
    is_ours = (
        type(inner) is formatters.ContextFormatter
        and inner.datefmt in (None, inner.default_time_format)
        and conf.logging_context_format_string == LINE_OF_A_REQUEST
    )
    return Quick(inner) if is_ours else Masking(inner)


@contextlib.contextmanager
def request(request_id: str, project_id: str | None = None) -> Iterator[None]:
    """Every line logged inside, by this thread, carries the request id."""
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
    """``key=value`` pairs in the order given; None is left out, odd text is quoted."""
    return ' '.join(f'{key}={_value(value)}' for key, value in values.items() if value is not None)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f'{value:.6g}'
    text = ','.join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    if _PLAIN.match(text):
        return text
    return '"' + text.replace('\\', '\\\\').replace('"', '\\"').replace('\n', '\\n') + '"'


def log_answer(logger: Any, answer: Answer, seconds: float) -> None:
    """The one INFO line of a decision, as its answer leaves.

    :param seconds: from the request's arrival to its answer
    """
    chosen = [selections[0].host for selections in answer.selections if selections]
    # As the request's context would say it, which takes longer than the line.
    logger.info(
        'decision %s',
        facts(
            id=answer.decision_id or None,
            outcome=answer.outcome.value,
            dry_run=answer.dry_run or None,
            members=len(chosen) or None,
            hosts=chosen[:10] or None,
            table_age_seconds=answer.age_seconds,
            ms=round(seconds * 1000, 3),
            reason=answer.reason or None,
        ),
        extra={'request_id': answer.request_id},
    )
