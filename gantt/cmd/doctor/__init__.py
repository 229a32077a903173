# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage config doctor``: settings that are dangerous, or that contradict each other.

Each finding says what the setting does in this code and what to set instead.
A file for each thing that options are about; ``live`` asks the servers.
"""

import contextlib
import itertools
import json
import logging
import textwrap
from collections.abc import Iterator
from typing import Any

from gantt import exceptions
from gantt.cmd import wiring
from gantt.cmd.doctor import broker, callers, database, live, nova_source, processes, times
from gantt.cmd.doctor.finding import Broker, Finding, Severity, error
from gantt.conf.pipeline import pipeline_from_conf
from gantt.rpc.amqp import driver, refusals, transport
from gantt.telemetry import log

__all__ = ['diagnose', 'run']

_WIDTH = 88


def run(conf: Any) -> int:
    """Explain settings that are dangerous or contradict each other; 1 where one is an error.

    Looks into the database server and the broker, too, unless told otherwise.
    """
    findings = diagnose(conf, conf.command.live)
    counts = {kind.value: sum(f.severity is kind for f in findings) for kind in Severity}
    if conf.command.format == 'json':
        shown = [{name: getattr(f, name) for name in f.__struct_fields__} for f in findings]
        print(json.dumps({'counts': counts, 'findings': shown}))
    else:
        for finding in findings:
            print(_text(finding))
        print(', '.join(f'{kind}s {count}' for kind, count in counts.items()))
    return 1 if counts[Severity.ERROR] else 0


def diagnose(conf: Any, ask: bool | None = None) -> list[Finding]:
    """All findings, the worst first.

    :param ask: the servers; None: those that answer
    """
    found = [*_of_files(conf), *_of_brokers(conf, ask)]
    if ask is not False:
        found += _of_the_database(conf, ask)
    order = list(Severity)
    return sorted(dict.fromkeys(found), key=lambda f: order.index(f.severity))


def _of_files(conf: Any) -> Iterator[Finding]:
    yield from times.contradictions(conf)
    try:
        down_seconds = wiring.down_time(pipeline_from_conf(conf))
        yield from times.hosts(conf, down_seconds)
        yield from nova_source.period(conf, down_seconds)
    except exceptions.PluginError as e:
        yield _of_a_plugin(conf, e)
    for look in (
        times.leases,
        times.memory,
        times.stopping,
        times.queues,
        broker.nova,
        nova_source.cells,
        nova_source.apis,
        nova_source.devices,
        database.connection,
        database.sqlite,
        database.pool,
        database.waits,
        database.modes,
        processes.doors,
        callers.callers,
        processes.rules,
        processes.compute,
        processes.files,
        processes.unread,
    ):
        yield from look(conf)


def _of_a_plugin(conf: Any, failed: exceptions.PluginError) -> Finding:
    option, value = str(failed.kwargs.get('option') or ''), str(failed.kwargs.get('plugin', ''))
    group, _, name = option.removeprefix('[').partition('] ')
    if name and name in conf[group]:
        value = str(conf[group][name])
    instead = str(failed.kwargs.get('fix', 'Correct it'))
    return error(option or '[filters]', value, failed.message, instead)


def _of_brokers(conf: Any, ask: bool | None) -> Iterator[Finding]:
    made = [('transport_url', transport.own_transport)]
    if conf.rpc.nova_enabled and (conf.rpc.nova_transport_url or conf.rpc.nova_rabbit_options):
        made.append(('[rpc] nova_transport_url', transport.nova_transport))
    for option, make in made:
        try:
            carrier = make(conf, guarded=False)
        except exceptions.Misconfigured as e:
            yield error(option, '(unusable)', e.message, 'Correct it')
            continue
        transport.service_defaults(conf)
        try:
            yield from _of_a_broker(conf, option, carrier, ask)
        finally:
            carrier.cleanup()


def _of_a_broker(conf: Any, option: str, carrier: Any, ask: bool | None) -> Iterator[Finding]:
    url, rabbit = driver.options(carrier)
    if url.transport.startswith('kombu+'):
        return  # in this process, and without options
    one = Broker(option, carrier, url, rabbit)
    yield from itertools.chain(
        broker.address(one),
        broker.tls(one),
        broker.connection(one),
        broker.queues(one),
        broker.pool(conf, one),
        broker.queue_names(conf, one),
        broker.replies(conf, one),
    )
    if ask is not False:
        try:
            with _quiet():
                yield from live.broker_says(one)
        except Exception as e:  # sockets, AMQP, TLS: whatever keeps us out is the reason
            said = refusals.said(e)
            problem, wrong = f'{transport.address(carrier)}: {said}', refusals.wrong_in_url(said)
            if wrong:
                yield live.refused('message broker', problem, f'in {option} {wrong}')
            else:
                yield _absent(ask, 'message broker', problem)


def _of_the_database(conf: Any, ask: bool | None) -> list[Finding]:
    if database.url_of(conf) is None:
        return []  # said already
    try:
        return live.database_says(conf)
    except exceptions.Misconfigured as e:
        return [error('[database] connection', '(unusable)', e.message, 'Correct it')]
    except exceptions.Unavailable as e:
        problem, wrong = e.kwargs.get('problem', e.message), e.kwargs.get('correct')
        if wrong:
            return [live.refused('database', problem, f'in [database] connection {wrong}')]
        return [_absent(ask, 'database', problem)]


def _absent(ask: bool | None, what: str, problem: object) -> Finding:
    if ask:
        return error(what, 'not looked into', f'it does not answer: {problem}', 'Start it')
    return live.not_asked(what, problem)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The library logs each failed connection; the finding says the same."""
    loggers = [logging.getLogger(name) for name in log.CHORUS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def _text(finding: Finding) -> str:
    head = f'{finding.severity:<8} {finding.option} = {finding.value}'
    indent = ' ' * 9
    parts = (f'{text.rstrip("?.!")}.' for text in (finding.why, finding.instead))
    body = [
        textwrap.fill(part, _WIDTH, initial_indent=indent, subsequent_indent=indent)
        for part in parts
    ]
    return '\n'.join([head, *body, ''])
