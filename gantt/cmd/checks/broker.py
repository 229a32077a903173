# SPDX-License-Identifier: Apache-2.0
"""Checks of the brokers, of the way to them, and of who is on them.

``[oslo_messaging_rabbit]`` has many options; here are those that affect this code.  The
library's reply time-outs, its executor, its default exchange and its retries of replies are
not: Gantt sets or replaces them itself.
"""

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

import msgspec

from gantt import client, exceptions
from gantt.cmd import dead_letters
from gantt.cmd.checks.options import facts_of
from gantt.cmd.checks.results import (
    Finding,
    Result,
    error,
    error_if,
    findings,
    findings_on_options,
    first_of,
    note_if,
    unreachable,
    warning,
    warning_if,
)
from gantt.conf import clear_text
from gantt.core.messages.base import derived_id
from gantt.rpc import server, wire
from gantt.rpc.amqp import refusals, transport
from gantt.telemetry import log

#: How long a scheduler may take to answer, in seconds; dead letters that are looked at.
ANSWER_SECONDS, DEAD_LETTERS_MOST = 5.0, 1000

#: More than that is no bound for the callers of a scheduler that is stopped.
PREFETCH_MAX = 1000
#: Passwords that everybody knows: the broker's own default, and that of the documents.
KNOWN_PASSWORDS = {'guest', 'RABBIT_PASS'}

#: Of the option that names it.
_URL_ROWS = (
    warning_if(
        '{option}',
        lambda v, c: not c.hosts,
        'no host is named: the broker of this machine is used, as user guest',
        'Set it to rabbit://user:password@host:5672/vhost',
    ),
    warning_if(
        '{option}',
        lambda v, c: any(host.password in KNOWN_PASSWORDS for host in c.hosts),
        'everybody knows this password',
        'Make a user of its own: rabbitmqctl add_user gantt PASSWORD',
    ),
    note_if(
        '{option}',
        lambda v, c: (
            c.ssl and c.rabbit.ssl_ca_file and len({host.hostname for host in c.hosts}) > 1
        ),
        'with several hosts every connection goes on comparing certificates with the host that '
        'it tried first',
        'Let the certificate of each broker node carry the names of all of them',
    ),
)

_TLS_FILE_OPTIONS = ('ssl_ca_file', 'ssl_cert_file', 'ssl_key_file')

#: Of [oslo_messaging_rabbit], those in the url included.
_RABBIT_ROWS = (
    error_if(
        'ssl',
        lambda v, c: not v and any(host.port == 5671 for host in c.hosts),
        'port 5671 speaks TLS, and this process does not: it will not connect',
        'Set ssl = true and ssl_ca_file',
    ),
    *(
        error_if(
            name,
            lambda v, c, before=_TLS_FILE_OPTIONS[:number]: (
                v and not c.ssl and not any(c.rabbit[option] for option in before)
            ),
            'ssl is false: the file is not used and everything crosses the network in clear',
            'Set ssl = true',
        )
        for number, name in enumerate(_TLS_FILE_OPTIONS)
    ),
    *(
        error_if(
            name,
            lambda v, c: c.ssl and v and not os.access(v, os.R_OK),
            'this process cannot read the file',
            'Correct the path, or the owner and mode of the file',
        )
        for name in _TLS_FILE_OPTIONS
    ),
    error_if(
        'ssl_version',
        lambda v, c: c.ssl and v.lower() == 'sslv23' and not c.rabbit.ssl_ca_file,
        'without ssl_ca_file nothing at all is verified then: anybody may be the broker',
        'Remove ssl_version, and set ssl_ca_file',
    ),
    warning_if(
        'ssl_version',
        lambda v, c: c.ssl and v and (v.lower() != 'sslv23' or c.rabbit.ssl_ca_file),
        'it holds the connection to old versions of TLS, which OpenSSL refuses by and by',
        'Remove it: the best version that both sides know is used then',
    ),
    error_if(
        'ssl_ca_file',
        lambda v, c: c.ssl and not v,
        'the name in the certificate is not compared with that of the broker: whoever has '
        'any certificate of a public authority may be the broker',
        'Name the file of the authority that signed the certificate of the broker',
    ),
    # How a connection that broke is noticed, and opened again.
    error_if(
        'heartbeat_timeout_threshold',
        lambda v, c: v <= 0,
        'a broker that falls silent is never noticed, and sockets wait without end: one '
        'partition of the network can stop placing until somebody restarts the process',
        f'Set it to {transport.HEARTBEAT_SECONDS}',
    ),
    warning_if(
        'heartbeat_timeout_threshold',
        lambda v, c: v > 60,
        'a broker that falls silent is noticed only after so many seconds: so long no message '
        'comes and the thread that answers may stand still. And calls that a stopped process had '
        'taken are redelivered only then, when callers of Nova have given up',
        f'Set it to {transport.HEARTBEAT_SECONDS}',
    ),
    warning_if(
        'heartbeat_timeout_threshold',
        lambda v, c: 0 < v < 5,
        'a process that is busy for a moment is taken for dead, and its connections end',
        f'Set it to {transport.HEARTBEAT_SECONDS}',
    ),
    error_if(
        'heartbeat_rate',
        lambda v, c: v <= 0,
        'no connection can be made: the library divides by it',
        'Set it to 3',
    ),
    warning_if(
        'rabbit_interval_max',
        lambda v, c: v > 60,
        'after an outage of the broker a process may take this many seconds to try again',
        'Set it to 30 or less',
    ),
    warning_if(
        'rabbit_qos_prefetch_count',
        lambda v, c: v == 0 or v > PREFETCH_MAX,
        'a scheduler that is stopped or stuck goes on being sent so many messages of each topic '
        '(0: any number), and nobody else answers them until its connection ends',
        f'Set it to {transport.PREFETCH_COUNT}',
    ),
    *(
        row(
            'rabbit_qos_prefetch_count',
            lambda v, c, least=least, most=most: least <= v < most,
            'reports are gathered for a moment and acknowledged together: a scheduler takes at '
            f'most {{v}} of them in {server.CASTS_GATHER_SECONDS:g} s, and hosts report once a '
            'minute',
            f'Set it to {transport.PREFETCH_COUNT}',
        )
        for row, least, most in ((error_if, 1, 10), (warning_if, 10, transport.PREFETCH_COUNT))
    ),
    warning_if(
        'kombu_compression',
        lambda v, c: v,
        'compressed messages are taken off one by one and decoded twice',
        'Remove it: messages have some kB',
    ),
    warning_if(
        'rpc_conn_pool_size',
        lambda v, c: v < c.senders,
        '{senders} threads may answer at a time ({topics} topics with [rpc] worker_threads = '
        '{rpc.worker_threads}): the thread that places may wait for a connection, without a bound',
        'Set it to {senders}',
    ),
    # How queues are declared, and what the library's queue manager needs.
    error_if(
        'rabbit_ha_queues',
        lambda v, c: v,
        'mirrored queues lose confirmed messages, RabbitMQ 4 has none, and none can be declared '
        'together with quorum queues',
        'Remove it; set rabbit_quorum_queue for queues that survive a broker node',
    ),
    error_if(
        'amqp_auto_delete',
        lambda v, c: v and c.rabbit.rabbit_quorum_queue,
        'the queues of the topics go with the last scheduler: what waits there while all of them '
        'start again is lost; and quorum queues keep no such promise',
        'Remove it',
    ),
    warning_if(
        'amqp_auto_delete',
        lambda v, c: v and not c.rabbit.rabbit_quorum_queue,
        'the queues of the topics go with the last scheduler: what waits there while all of them '
        'start again is lost',
        'Remove it',
    ),
    error_if(
        'rabbit_stream_fanout',
        lambda v, c: (
            v
            and not (
                c.rabbit.rabbit_qos_prefetch_count > 0 and c.rabbit.rabbit_transient_quorum_queue
            )
        ),
        'no connection can be made: it wants rabbit_transient_quorum_queue and '
        'rabbit_qos_prefetch_count with it',
        'Remove it: Gantt sends nothing to all',
    ),
    warning_if(
        'rabbit_transient_quorum_queue',
        lambda v, c: c.rabbit.rabbit_quorum_queue and not v,
        'reply queues stay classic while those of the topics are quorum: answers under way '
        'are lost with the broker node, and RabbitMQ 4.3 refuses such queues',
        'Set it to true, and use_queue_manager with it',
    ),
    warning_if(
        'use_queue_manager',
        lambda v, c: c.rabbit.rabbit_transient_quorum_queue and not v,
        'each start of a process makes quorum queues of new names; the names of those that went '
        'fill the memory of the broker',
        'Set it to true, and [oslo_concurrency] lock_path to a directory',
    ),
    warning_if(
        'rabbit_transient_queues_ttl',
        lambda v, c: not v,
        'reply queues of processes that are gone stay in the broker for ever',
        'Set it to 1800',
    ),
    warning_if(
        'rabbit_transient_queues_ttl',
        lambda v, c: 0 < v < 2 * c.rabbit.heartbeat_timeout_threshold,
        'the reply queue of a caller that loses its connection may go before it has noticed',
        'Set it to 1800',
    ),
)

#: Of other groups.
_OWN_ROWS = (
    error_if(
        '[oslo_concurrency] lock_path',
        lambda v, c: c.rabbit.use_queue_manager and not v,
        'use_queue_manager takes a lock there: no queue can be declared',
        'Set it to a directory that this process may write, e.g. /var/lib/gantt/lock',
    ),
    warning_if(
        '[rpc] self_ping_seconds',
        lambda v, c: not v,
        'a connection that is open and carries nothing is not noticed: the process gets no call '
        'until somebody restarts it',
        'Set it to 10',
    ),
)


def _open_brokers(conf: Any, guarded: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield each broker: the option that names it, and a transport with a service's defaults."""
    for option, carrier in transport.transports(conf, guarded=guarded):
        try:
            transport.service_defaults(conf)
            yield option, carrier
        finally:
            carrier.cleanup()


def check_options(conf: Any) -> Iterator[Finding]:
    """Check the options of each broker, and what crosses the network on the way to it."""
    for option, carrier in _open_brokers(conf):
        if not carrier.is_in_process:
            yield from _option_findings(conf, option, carrier)


def _option_findings(conf: Any, option: str, carrier: Any) -> Iterator[Finding]:
    url, rabbit = carrier.url, carrier.rabbit
    address, facts = carrier.address, facts_of(conf)
    vars(facts).update(option=option, rabbit=rabbit, hosts=url.hosts, ssl=rabbit.ssl)
    yield from findings(_URL_ROWS, facts, lambda _: address)
    for of_rabbit in findings(_RABBIT_ROWS, facts, lambda name: rabbit[name]):
        yield msgspec.structs.replace(
            of_rabbit, option=f'[oslo_messaging_rabbit] {of_rabbit.option}'
        )
    if not rabbit.ssl:
        exposed = clear_text.broker_exposure([host.hostname for host in url.hosts], rabbit, address)
        yield from () if exposed is None else [error(*exposed)]
    yield from findings_on_options(_OWN_ROWS, conf, facts)


def check_reachable(conf: Any) -> Iterator[Result]:
    """Check that each broker accepts us.  :raises BrokerUnavailable: a broker does not"""
    addresses = []
    for option, carrier in _open_brokers(conf, guarded=True):
        if not carrier.is_in_process:
            transport.wait_for_broker(carrier, 0, option)
        addresses.append(carrier.address)
    yield ', '.join(addresses)


def check_version(conf: Any) -> Iterator[Finding]:
    """Check that the release of each broker has the queues that are configured."""
    for option, carrier in _open_brokers(conf):
        if carrier.is_in_process:
            continue
        try:
            with _silenced():
                yield from _queue_findings(carrier)
        except Exception as e:  # sockets, AMQP, TLS: whatever keeps us out is the reason
            reason = refusals.refusal_text(e)
            setting = refusals.wrong_url_part(reason)
            correct = f'in {option} {setting}' if setting else ''
            problem = f'{carrier.address}: {reason}'
            yield unreachable('message broker', problem, correct)


def _queue_findings(carrier: Any) -> Iterator[Finding]:
    rabbit = carrier.rabbit
    release = carrier.server_version()
    version = tuple(int(part) for part in release.split('.')[:2] if part.isdigit())
    classic = not (rabbit.rabbit_quorum_queue and rabbit.rabbit_transient_quorum_queue)
    if version >= (4, 3) and classic:
        yield error(
            '[oslo_messaging_rabbit] rabbit_transient_quorum_queue',
            rabbit.rabbit_transient_quorum_queue,
            f'RabbitMQ {release} refuses classic queues that are not durable',
            'Set rabbit_quorum_queue, rabbit_transient_quorum_queue and use_queue_manager',
        )
    elif version and version < (3, 8) and not classic:
        yield error(
            '[oslo_messaging_rabbit] rabbit_quorum_queue',
            True,
            f'RabbitMQ {release} has no quorum queues',
            'Use RabbitMQ 3.8 or newer',
        )


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Silence the log of each failed connection; the finding has the same."""
    loggers = [logging.getLogger(name) for name in log.REPETITIVE_LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def check_schedulers(conf: Any) -> Iterator[Result]:
    """Check that the schedulers that run understand the messages of this release."""
    carrier = client.get_transport(conf)
    try:
        if carrier.is_in_process:
            yield 'not checked: the broker is in the process itself'
            return
        request_id = derived_id('probe')
        client.SchedulerClient(carrier).get_request(request_id, timeout=ANSWER_SECONDS)
    except exceptions.UnsupportedVersion as e:
        yield error(
            why=f'a scheduler that runs does not understand version {wire.VERSION}: {e.message}. '
            'Stop all schedulers before those of this release are started'
        )
    except exceptions.NotFound:
        pass  # nobody ever made this request: that is an answer
    except exceptions.Unavailable as e:
        yield warning(why=f'not checked, because no scheduler answers: {e.message}')
    except Exception as e:
        cause = refusals.refusal_text(e)
        if not (part := refusals.wrong_url_part(cause)):
            raise
        yield error(
            why=f'the message broker runs and refuses us: {cause}; correct in transport_url {part}'
        )
    finally:
        carrier.cleanup()
    yield f'they understand version {wire.VERSION}'


def check_senders(conf: Any) -> Iterator[Result]:
    """Check that no sender on the bus uses a version that is not read."""
    if not conf.rpc.dead_letter_queue:
        yield 'skipped: no queue is named in [rpc] dead_letter_queue'
        return
    refused: list[dead_letters.ShownDeadLetter] = []
    try:
        with dead_letters.open_queue(conf) as (channel, name):
            refused += dead_letters.read(channel, name, DEAD_LETTERS_MOST)
    except exceptions.NotFound:
        pass  # nothing was ever refused
    except exceptions.Unavailable as e:
        yield warning(why=f'not checked: {e.message}')
    strange = {
        f'{dead_letter.method} on {dead_letter.topic}: {dead_letter.problem}'
        for dead_letter in refused
        if dead_letter.code == exceptions.UnsupportedVersion.code
    }
    if strange:
        yield error(
            why=f'senders whose version is not read: {first_of(sorted(strange))}. Bring them up to '
            'date, and drop the dead letters'
        )
    yield f'none of {len(refused)} dead letters is of another version'
