# SPDX-License-Identifier: Apache-2.0
"""What the configuration says about the message broker.

``[oslo_messaging_rabbit]`` has many options; here are those that this code is
touched by.  The library's reply time-outs, its executor, its default exchange
and its retries of replies are not: Gantt sets or replaces them itself.
"""

import os
from collections.abc import Iterator
from typing import Any

from oslo_concurrency import lockutils

from gantt.cmd.doctor.finding import Broker, Finding, error, exposed, note, warning
from gantt.conf import clear_text
from gantt.rpc import wire
from gantt.rpc.amqp import transport
from gantt.rpc.server import server

_GROUP = '[oslo_messaging_rabbit]'
#: Passwords that everybody knows: the broker's own default, and that of the documents.
KNOWN_PASSWORDS = {'guest', 'RABBIT_PASS'}
#: More than that is no bound for the callers of a scheduler that is stopped.
PREFETCH_MOST = 1000
OWN_TOPICS = (wire.SCHEDULER_TOPIC, wire.CLAIMS_TOPIC, wire.STATS_TOPIC)


def address(broker: Broker) -> Iterator[Finding]:
    """Where it is, and as whom we come."""
    shown = transport.address(broker.transport)
    hosts = broker.url.hosts
    if not hosts:
        yield warning(
            broker.option,
            shown,
            'no host is named: the broker of this machine is used, as user guest',
            'Set it to rabbit://user:password@host:5672/vhost',
        )
    if any(host.password in KNOWN_PASSWORDS for host in hosts):
        yield warning(
            broker.option,
            shown,
            'everybody knows this password',
            'Make a user of its own: rabbitmqctl add_user gantt PASSWORD',
        )
    ports = {host.port for host in hosts}
    if 5671 in ports and not broker.rabbit.ssl:
        yield error(
            f'{_GROUP} ssl',
            False,
            'port 5671 speaks TLS, and this process does not: it will not connect',
            'Set ssl = true and ssl_ca_file',
        )


def tls(broker: Broker) -> Iterator[Finding]:
    """Whether anybody can listen in, or pretend to be the broker."""
    rabbit, hosts = broker.rabbit, broker.url.hosts
    files = ('ssl_ca_file', 'ssl_cert_file', 'ssl_key_file')
    if not rabbit.ssl:
        given = [name for name in files if rabbit[name]]
        if given:
            yield error(
                f'{_GROUP} {given[0]}',
                rabbit[given[0]],
                'ssl is false: the file is not used and everything crosses the network in clear',
                'Set ssl = true',
            )
        shown = transport.address(broker.transport)
        yield from exposed(clear_text.of_broker([h.hostname for h in hosts], rabbit, shown))
        return
    for name in files:
        if rabbit[name] and not os.access(rabbit[name], os.R_OK):
            yield error(
                f'{_GROUP} {name}',
                rabbit[name],
                'this process cannot read the file',
                'Correct the path, or the owner and mode of the file',
            )
    if rabbit.ssl_version.lower() == 'sslv23' and not rabbit.ssl_ca_file:
        yield error(
            f'{_GROUP} ssl_version',
            rabbit.ssl_version,
            'without ssl_ca_file nothing at all is verified then: anybody may be the broker',
            'Remove ssl_version, and set ssl_ca_file',
        )
    elif rabbit.ssl_version:
        yield warning(
            f'{_GROUP} ssl_version',
            rabbit.ssl_version,
            'it holds the connection to old versions of TLS, which OpenSSL refuses by and by',
            'Remove it: the best version that both sides know is used then',
        )
    if not rabbit.ssl_ca_file:
        yield error(
            f'{_GROUP} ssl_ca_file',
            '(none)',
            'the name in the certificate is not compared with that of the broker: whoever has '
            'any certificate of a public authority may be the broker',
            'Name the file of the authority that signed the certificate of the broker',
        )
    elif len({host.hostname for host in hosts}) > 1:
        yield note(
            broker.option,
            transport.address(broker.transport),
            'with several hosts every connection goes on comparing certificates with the host '
            'that it tried first',
            'Let the certificate of each broker node carry the names of all of them',
        )


def connection(broker: Broker) -> Iterator[Finding]:
    """How a connection that broke is noticed, and made again."""
    rabbit = broker.rabbit
    seconds = rabbit.heartbeat_timeout_threshold
    if seconds <= 0:
        yield error(
            f'{_GROUP} heartbeat_timeout_threshold',
            seconds,
            'a broker that falls silent is never noticed, and sockets wait without end: one '
            'partition of the network can stop placing until somebody restarts the process',
            f'Set it to {transport.HEARTBEAT_SECONDS}',
        )
    elif seconds > 60:
        yield warning(
            f'{_GROUP} heartbeat_timeout_threshold',
            seconds,
            'a broker that falls silent is noticed only after so many seconds: so long no '
            'message comes and the thread that answers may stand still. And calls that a stopped '
            'process had taken are redelivered only then, when callers of Nova have given up',
            f'Set it to {transport.HEARTBEAT_SECONDS}',
        )
    elif seconds < 5:
        yield warning(
            f'{_GROUP} heartbeat_timeout_threshold',
            seconds,
            'a process that is busy for a moment is taken for dead, and its connections end',
            f'Set it to {transport.HEARTBEAT_SECONDS}',
        )
    if rabbit.heartbeat_rate <= 0:
        yield error(
            f'{_GROUP} heartbeat_rate',
            rabbit.heartbeat_rate,
            'no connection can be made: the library divides by it',
            'Set it to 3',
        )
    if rabbit.rabbit_interval_max > 60:
        yield warning(
            f'{_GROUP} rabbit_interval_max',
            rabbit.rabbit_interval_max,
            'after an outage of the broker a process may take this many seconds to try again',
            'Set it to 30 or less',
        )
    yield from _prefetch(rabbit.rabbit_qos_prefetch_count)
    if rabbit.kombu_compression:
        yield warning(
            f'{_GROUP} kombu_compression',
            rabbit.kombu_compression,
            'compressed messages are taken off one by one and decoded twice',
            'Remove it: messages have some kB',
        )


def _prefetch(most: int) -> Iterator[Finding]:
    option = f'{_GROUP} rabbit_qos_prefetch_count'
    instead = f'Set it to {transport.PREFETCH}'
    if most == 0 or most > PREFETCH_MOST:
        yield warning(
            option,
            most,
            'a scheduler that is stopped or stuck goes on being sent '
            + (f'{most}' if most else 'any number of')
            + ' messages of each topic, and nobody else answers them until its connection ends',
            instead,
        )
    elif most < transport.PREFETCH:
        pace = most / server.CASTS_GATHER_SECONDS
        yield (error if most < 10 else warning)(
            option,
            most,
            'reports are gathered for a moment and acknowledged together: a scheduler takes at '
            f'most {pace:.0f} of them a second, those of {60 * pace:.0f} hosts that report once a '
            'minute',
            instead,
        )


def pool(conf: Any, broker: Broker) -> Iterator[Finding]:
    """Connections for sending, against the threads that send."""
    most = broker.rabbit.rpc_conn_pool_size
    # Threads of each topic and its self-ping, the one that places, the timer and health checks.
    topics = len(OWN_TOPICS) + conf.rpc.nova_enabled
    needed = topics * (conf.rpc.worker_threads + 1) + 3
    if most < needed:
        yield warning(
            f'{_GROUP} rpc_conn_pool_size',
            most,
            f'{needed} threads may answer at a time ({topics} topics with [rpc] worker_threads = '
            f'{conf.rpc.worker_threads}): the thread that places may wait for a connection, '
            'without a bound',
            f'Set it to {needed}',
        )


def queues(broker: Broker) -> Iterator[Finding]:
    """How queues are declared."""
    rabbit = broker.rabbit
    if rabbit.rabbit_ha_queues:
        both = rabbit.rabbit_quorum_queue or rabbit.rabbit_transient_quorum_queue
        yield error(
            f'{_GROUP} rabbit_ha_queues',
            True,
            'a queue is mirrored or quorum, not both: none can be declared'
            if both
            else 'mirrored queues lose confirmed messages, and RabbitMQ 4 has none',
            'Remove it; set rabbit_quorum_queue for queues that survive a broker node',
        )
    if rabbit.amqp_auto_delete:
        yield (error if rabbit.rabbit_quorum_queue else warning)(
            f'{_GROUP} amqp_auto_delete',
            True,
            'the queues of the topics go with the last scheduler: what waits there while all of '
            'them start again is lost'
            + ('; and quorum queues keep no such promise' if rabbit.rabbit_quorum_queue else ''),
            'Remove it',
        )
    if rabbit.rabbit_stream_fanout and not (
        rabbit.rabbit_qos_prefetch_count > 0 and rabbit.rabbit_transient_quorum_queue
    ):
        yield error(
            f'{_GROUP} rabbit_stream_fanout',
            True,
            'no connection can be made: the library wants rabbit_transient_quorum_queue and '
            'rabbit_qos_prefetch_count with it',
            'Remove it: Gantt sends nothing to all',
        )
    if rabbit.rabbit_quorum_queue and not rabbit.rabbit_transient_quorum_queue:
        yield warning(
            f'{_GROUP} rabbit_transient_quorum_queue',
            False,
            'reply queues stay classic while those of the topics are quorum: answers under way '
            'are lost with the broker node, and RabbitMQ 4.3 refuses such queues',
            'Set it to true, and use_queue_manager with it',
        )
    if rabbit.rabbit_transient_quorum_queue and not rabbit.use_queue_manager:
        yield warning(
            f'{_GROUP} use_queue_manager',
            False,
            'each start of a process makes quorum queues of new names; the names of those that '
            'went fill the memory of the broker',
            'Set it to true, and [oslo_concurrency] lock_path to a directory',
        )
    seconds = rabbit.rabbit_transient_queues_ttl
    if not seconds:
        yield warning(
            f'{_GROUP} rabbit_transient_queues_ttl',
            seconds,
            'reply queues of processes that are gone stay in the broker for ever',
            'Set it to 1800',
        )
    elif seconds < 2 * rabbit.heartbeat_timeout_threshold:
        yield warning(
            f'{_GROUP} rabbit_transient_queues_ttl',
            seconds,
            'the reply queue of a caller that loses its connection may go before it has noticed',
            'Set it to 1800',
        )


def queue_names(conf: Any, broker: Broker) -> Iterator[Finding]:
    """What the library's queue manager needs."""
    if not broker.rabbit.use_queue_manager:
        return
    if not lockutils.get_lock_path(conf):
        yield error(
            '[oslo_concurrency] lock_path',
            '(none)',
            'use_queue_manager takes a lock there: no queue can be declared',
            'Set it to a directory that this process may write, e.g. /var/lib/gantt/lock',
        )


def replies(conf: Any, broker: Broker) -> Iterator[Finding]:
    """How an answer without a reader, and a connection without messages, is noticed."""
    if not conf.rpc.self_ping_seconds:
        yield warning(
            '[rpc] self_ping_seconds',
            0,
            'a connection that is open and carries nothing is not noticed: the process hears '
            'no call until somebody restarts it',
            'Set it to 10',
        )
    if conf.rpc.reply_channel == 'stock' and not broker.rabbit.direct_mandatory_flag:
        yield error(
            f'{_GROUP} direct_mandatory_flag',
            False,
            'a reply whose queue is missing is thrown away by the broker without a word: it is '
            'neither tried again nor counted',
            'Remove it, or set [rpc] reply_channel to own, which does not read it',
        )


def nova(conf: Any) -> Iterator[Finding]:
    """The topic of Nova."""
    rpc = conf.rpc
    if not rpc.nova_enabled:
        for name in ('nova_transport_url', 'nova_rabbit_options'):
            if rpc[name]:
                yield note(
                    f'[rpc] {name}',
                    '(set)',
                    'nova_enabled is false: it is read by gantt-shadow only',
                    'Keep it where gantt-shadow runs; else remove it, or set nova_enabled',
                )
        return
    if not rpc.nova_transport_url:
        yield warning(
            '[rpc] nova_transport_url',
            '(none)',
            "Nova's topic is listened to on the broker and virtual host of transport_url: calls of "
            'a Nova that has its own are never heard',
            'Set it to transport_url of Nova, also where both are the same',
        )
    if rpc.nova_topic in OWN_TOPICS:
        yield error(
            '[rpc] nova_topic',
            rpc.nova_topic,
            'it is a topic of Gantt itself: queues are named by topic alone, and each of the two '
            'would get about half of the messages',
            'Set it to the topic that nova-conductor calls; scheduler is its default',
        )
    if rpc.nova_budget_seconds > 45:
        yield note(
            '[rpc] nova_budget_seconds',
            rpc.nova_budget_seconds,
            'it is cut to three quarters of the time after which a caller gives up: 45 s with '
            'the rpc_response_timeout that Nova has by default',
            'Raise rpc_response_timeout of Nova with it',
        )
