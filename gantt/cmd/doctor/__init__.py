# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage config doctor``: settings that are dangerous, or that contradict each other.

Each finding has the effect of the setting in this code and what to set instead.
``table`` and ``broker`` have a row for each finding about options; ``checks`` tries what no row
can judge, ``live`` queries the servers.
"""

import contextlib
import functools
import logging
import math
import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec

from gantt import exceptions
from gantt.cmd import console, wiring
from gantt.cmd.doctor import broker, checks, live, table, zones
from gantt.cmd.doctor.finding import Finding, Severity, findings, found
from gantt.conf import clear_text
from gantt.conf.pipeline import pipeline_from_conf
from gantt.rpc.amqp import driver, refusals, transport
from gantt.telemetry import log

__all__ = ['contradictions', 'diagnose', 'run']

_WIDTH = 88


def run(conf: Any) -> int:
    """Explain settings that are dangerous or contradict each other; 1 where one is an error.

    Looks into the database server and the broker, too, unless told otherwise.
    """
    findings = diagnose(conf, conf.command.live)
    counts = {kind.value: sum(f.severity is kind for f in findings) for kind in Severity}
    summary = ', '.join(f'{kind}s {count}' for kind, count in counts.items())
    lines = [line for finding in findings for line in _lines(finding)]
    console.show(conf, {'counts': counts, 'findings': findings}, [*lines, summary])
    return 1 if counts[Severity.ERROR] else 0


def diagnose(conf: Any, probe: bool | None = None) -> list[Finding]:
    """Return all findings, the worst first.

    :param probe: the servers; None: those that answer
    """
    all_of_them = [*_of_files(conf), *_of_brokers(conf, probe)]
    if probe is not False:
        all_of_them += _of_the_database(conf, probe)
        all_of_them += zones.zones_say(conf)
    order = list(Severity)
    return sorted(dict.fromkeys(all_of_them), key=lambda f: order.index(f.severity))


def _of_files(conf: Any) -> Iterator[Finding]:
    down = math.inf
    try:
        down = wiring.down_time(pipeline_from_conf(conf))
    except exceptions.PluginError as e:
        yield checks.of_a_plugin(conf, e)
    yield from findings(table.SITE, table.facts_of(conf, down), functools.partial(_value, conf))
    if (url := table.url_of(conf)) is not None:
        exposed = clear_text.of_database(url, conf.database.connection_parameters)
        yield from () if exposed is None else [found(Severity.ERROR, *exposed)]
    for look in checks.ALL:
        yield from look(conf)


def contradictions(conf: Any) -> Iterator[Finding]:
    """Yield findings on bounds that cannot hold at the same time."""
    facts = table.facts_of(conf, math.inf)
    yield from findings(table.CONTRADICTIONS, facts, functools.partial(_value, conf))


def _value(conf: Any, option: str) -> Any:
    group, _, name = option.removeprefix('[').partition('] ')
    return (conf if group == 'DEFAULT' else conf[group])[name]


def _of_brokers(conf: Any, probe: bool | None) -> Iterator[Finding]:
    transports = [('transport_url', transport.own_transport)]
    if conf.rpc.nova_enabled and (conf.rpc.nova_transport_url or conf.rpc.nova_rabbit_options):
        transports.append(('[rpc] nova_transport_url', transport.nova_transport))
    for option, make in transports:
        try:
            carrier = make(conf, guarded=False)
        except exceptions.Misconfigured as e:
            yield found(Severity.ERROR, option, '(unusable)', e.message, 'Correct it')
            continue
        transport.service_defaults(conf)
        try:
            yield from _of_a_broker(conf, option, carrier, probe)
        finally:
            carrier.cleanup()


def _of_a_broker(conf: Any, option: str, carrier: Any, probe: bool | None) -> Iterator[Finding]:
    url, rabbit = driver.options(carrier)
    if url.transport.startswith('kombu+'):
        return  # in this process, and without options
    address, facts = transport.address(carrier), table.facts_of(conf, math.inf)
    vars(facts).update(option=option, rabbit=rabbit, hosts=url.hosts, ssl=rabbit.ssl)
    yield from findings(broker.URL, facts, lambda _: address)
    of_rabbit = findings(broker.RABBIT, facts, lambda name: rabbit[name])
    for finding in of_rabbit:
        yield msgspec.structs.replace(finding, option=f'[oslo_messaging_rabbit] {finding.option}')
    if not rabbit.ssl:
        exposed = clear_text.of_broker([host.hostname for host in url.hosts], rabbit, address)
        yield from () if exposed is None else [found(Severity.ERROR, *exposed)]
    yield from findings(broker.OURS, facts, functools.partial(_value, conf))
    if probe is not False:
        try:
            with _quiet():
                yield from live.broker_says(carrier, rabbit)
        except Exception as e:  # sockets, AMQP, TLS: whatever keeps us out is the reason
            reason = refusals.text_of(e)
            setting = refusals.wrong_in_url(reason)
            correct = f'in {option} {setting}' if setting else ''
            yield _not_queried(probe, 'message broker', f'{address}: {reason}', correct)


def _of_the_database(conf: Any, probe: bool | None) -> list[Finding]:
    if table.url_of(conf) is None:
        return []  # the table has it
    try:
        return live.database_says(conf)
    except exceptions.Misconfigured as e:
        option = '[database] connection'
        return [found(Severity.ERROR, option, '(unusable)', e.message, 'Correct it')]
    except exceptions.Unavailable as e:
        setting = e.kwargs.get('correct')
        correct = f'in [database] connection {setting}' if setting else ''
        return [_not_queried(probe, 'database', e.kwargs.get('problem', e.message), correct)]


def _not_queried(probe: bool | None, what: str, problem: object, correct: str) -> Finding:
    """Return the finding of a server that does not answer, or, with ``correct``, refuses us."""
    severity = Severity.ERROR if probe or correct else Severity.NOTE
    why = f'it {"runs and refuses us" if correct else "does not answer"}: {problem}'
    fix = 'Start it' if probe else 'Run this again where it does'
    return found(severity, what, 'not looked into', why, f'Correct {correct}' if correct else fix)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's log of each failed connection; the finding has the same."""
    loggers = [logging.getLogger(name) for name in log.CHORUS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def _lines(finding: Finding) -> Iterator[str]:
    yield f'{finding.severity:<8} {finding.option} = {finding.value}'
    indent = ' ' * 9
    for text in (finding.why, finding.instead):
        sentence = f'{text.rstrip("?.!")}.'
        yield from textwrap.wrap(sentence, _WIDTH, initial_indent=indent, subsequent_indent=indent)
    yield ''
