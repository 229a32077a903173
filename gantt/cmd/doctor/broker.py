# SPDX-License-Identifier: Apache-2.0
"""Findings on a broker and the way to it, a row for each; see ``table``.

``[oslo_messaging_rabbit]`` has many options; here are those that affect this code.  The
library's reply time-outs, its executor, its default exchange and its retries of replies are
not: Gantt sets or replaces them itself.
"""

import os

from gantt.cmd.doctor.finding import error, note, warning
from gantt.rpc.amqp import transport
from gantt.rpc.server import server

#: More than that is no bound for the callers of a scheduler that is stopped.
PREFETCH_MOST = 1000
#: Passwords that everybody knows: the broker's own default, and that of the documents.
KNOWN_PASSWORDS = {'guest', 'RABBIT_PASS'}

#: Of the option that names it.
URL = (
    warning(
        '{option}',
        lambda v, c: not c.hosts,
        'no host is named: the broker of this machine is used, as user guest',
        'Set it to rabbit://user:password@host:5672/vhost',
    ),
    warning(
        '{option}',
        lambda v, c: any(host.password in KNOWN_PASSWORDS for host in c.hosts),
        'everybody knows this password',
        'Make a user of its own: rabbitmqctl add_user gantt PASSWORD',
    ),
    note(
        '{option}',
        lambda v, c: (
            c.ssl and c.rabbit.ssl_ca_file and len({host.hostname for host in c.hosts}) > 1
        ),
        'with several hosts every connection goes on comparing certificates with the host that '
        'it tried first',
        'Let the certificate of each broker node carry the names of all of them',
    ),
)

_FILES = ('ssl_ca_file', 'ssl_cert_file', 'ssl_key_file')

#: Of [oslo_messaging_rabbit], those in the url included.
RABBIT = (
    error(
        'ssl',
        lambda v, c: not v and any(host.port == 5671 for host in c.hosts),
        'port 5671 speaks TLS, and this process does not: it will not connect',
        'Set ssl = true and ssl_ca_file',
    ),
    *(
        error(
            name,
            lambda v, c, before=_FILES[:number]: (
                v and not c.ssl and not any(c.rabbit[one] for one in before)
            ),
            'ssl is false: the file is not used and everything crosses the network in clear',
            'Set ssl = true',
        )
        for number, name in enumerate(_FILES)
    ),
    *(
        error(
            name,
            lambda v, c: c.ssl and v and not os.access(v, os.R_OK),
            'this process cannot read the file',
            'Correct the path, or the owner and mode of the file',
        )
        for name in _FILES
    ),
    error(
        'ssl_version',
        lambda v, c: c.ssl and v.lower() == 'sslv23' and not c.rabbit.ssl_ca_file,
        'without ssl_ca_file nothing at all is verified then: anybody may be the broker',
        'Remove ssl_version, and set ssl_ca_file',
    ),
    warning(
        'ssl_version',
        lambda v, c: c.ssl and v and (v.lower() != 'sslv23' or c.rabbit.ssl_ca_file),
        'it holds the connection to old versions of TLS, which OpenSSL refuses by and by',
        'Remove it: the best version that both sides know is used then',
    ),
    error(
        'ssl_ca_file',
        lambda v, c: c.ssl and not v,
        'the name in the certificate is not compared with that of the broker: whoever has '
        'any certificate of a public authority may be the broker',
        'Name the file of the authority that signed the certificate of the broker',
    ),
    # How a connection that broke is noticed, and opened again.
    error(
        'heartbeat_timeout_threshold',
        lambda v, c: v <= 0,
        'a broker that falls silent is never noticed, and sockets wait without end: one '
        'partition of the network can stop placing until somebody restarts the process',
        f'Set it to {transport.HEARTBEAT_SECONDS}',
    ),
    warning(
        'heartbeat_timeout_threshold',
        lambda v, c: v > 60,
        'a broker that falls silent is noticed only after so many seconds: so long no message '
        'comes and the thread that answers may stand still. And calls that a stopped process had '
        'taken are redelivered only then, when callers of Nova have given up',
        f'Set it to {transport.HEARTBEAT_SECONDS}',
    ),
    warning(
        'heartbeat_timeout_threshold',
        lambda v, c: 0 < v < 5,
        'a process that is busy for a moment is taken for dead, and its connections end',
        f'Set it to {transport.HEARTBEAT_SECONDS}',
    ),
    error(
        'heartbeat_rate',
        lambda v, c: v <= 0,
        'no connection can be made: the library divides by it',
        'Set it to 3',
    ),
    warning(
        'rabbit_interval_max',
        lambda v, c: v > 60,
        'after an outage of the broker a process may take this many seconds to try again',
        'Set it to 30 or less',
    ),
    warning(
        'rabbit_qos_prefetch_count',
        lambda v, c: v == 0 or v > PREFETCH_MOST,
        'a scheduler that is stopped or stuck goes on being sent so many messages of each topic '
        '(0: any number), and nobody else answers them until its connection ends',
        f'Set it to {transport.PREFETCH}',
    ),
    *(
        row(
            'rabbit_qos_prefetch_count',
            lambda v, c, least=least, most=most: least <= v < most,
            'reports are gathered for a moment and acknowledged together: a scheduler takes at '
            f'most {{v}} of them in {server.CASTS_GATHER_SECONDS:g} s, and hosts report once a '
            'minute',
            f'Set it to {transport.PREFETCH}',
        )
        for row, least, most in ((error, 1, 10), (warning, 10, transport.PREFETCH))
    ),
    warning(
        'kombu_compression',
        lambda v, c: v,
        'compressed messages are taken off one by one and decoded twice',
        'Remove it: messages have some kB',
    ),
    warning(
        'rpc_conn_pool_size',
        lambda v, c: v < c.senders,
        '{senders} threads may answer at a time ({topics} topics with [rpc] worker_threads = '
        '{rpc.worker_threads}): the thread that places may wait for a connection, without a bound',
        'Set it to {senders}',
    ),
    # How queues are declared, and what the library's queue manager needs.
    error(
        'rabbit_ha_queues',
        lambda v, c: v,
        'mirrored queues lose confirmed messages, RabbitMQ 4 has none, and none can be declared '
        'together with quorum queues',
        'Remove it; set rabbit_quorum_queue for queues that survive a broker node',
    ),
    error(
        'amqp_auto_delete',
        lambda v, c: v and c.rabbit.rabbit_quorum_queue,
        'the queues of the topics go with the last scheduler: what waits there while all of them '
        'start again is lost; and quorum queues keep no such promise',
        'Remove it',
    ),
    warning(
        'amqp_auto_delete',
        lambda v, c: v and not c.rabbit.rabbit_quorum_queue,
        'the queues of the topics go with the last scheduler: what waits there while all of them '
        'start again is lost',
        'Remove it',
    ),
    error(
        'rabbit_stream_fanout',
        lambda v, c: (
            v
            and not (
                c.rabbit.rabbit_qos_prefetch_count > 0 and c.rabbit.rabbit_transient_quorum_queue
            )
        ),
        'no connection can be made: the library wants rabbit_transient_quorum_queue and '
        'rabbit_qos_prefetch_count with it',
        'Remove it: Gantt sends nothing to all',
    ),
    warning(
        'rabbit_transient_quorum_queue',
        lambda v, c: c.rabbit.rabbit_quorum_queue and not v,
        'reply queues stay classic while those of the topics are quorum: answers under way '
        'are lost with the broker node, and RabbitMQ 4.3 refuses such queues',
        'Set it to true, and use_queue_manager with it',
    ),
    warning(
        'use_queue_manager',
        lambda v, c: c.rabbit.rabbit_transient_quorum_queue and not v,
        'each start of a process makes quorum queues of new names; the names of those that went '
        'fill the memory of the broker',
        'Set it to true, and [oslo_concurrency] lock_path to a directory',
    ),
    warning(
        'rabbit_transient_queues_ttl',
        lambda v, c: not v,
        'reply queues of processes that are gone stay in the broker for ever',
        'Set it to 1800',
    ),
    warning(
        'rabbit_transient_queues_ttl',
        lambda v, c: 0 < v < 2 * c.rabbit.heartbeat_timeout_threshold,
        'the reply queue of a caller that loses its connection may go before it has noticed',
        'Set it to 1800',
    ),
    error(
        'direct_mandatory_flag',
        lambda v, c: not v and c.rpc.reply_channel == 'stock',
        'a reply whose queue is missing is thrown away by the broker without a word: it is '
        'neither tried again nor counted',
        'Remove it, or set [rpc] reply_channel to own, which does not read it',
    ),
)

#: Of other groups.
OURS = (
    error(
        '[oslo_concurrency] lock_path',
        lambda v, c: c.rabbit.use_queue_manager and not v,
        'use_queue_manager takes a lock there: no queue can be declared',
        'Set it to a directory that this process may write, e.g. /var/lib/gantt/lock',
    ),
    warning(
        '[rpc] self_ping_seconds',
        lambda v, c: not v,
        'a connection that is open and carries nothing is not noticed: the process gets no call '
        'until somebody restarts it',
        'Set it to 10',
    ),
)
