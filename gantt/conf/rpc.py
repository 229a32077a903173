# SPDX-License-Identifier: Apache-2.0
"""[rpc]: what comes over the message broker, on our own topics and on Nova's.

The broker itself is named by ``transport_url`` in [DEFAULT]; queue types, TLS
and heartbeats are set in [oslo_messaging_rabbit].
"""

from oslo_config import cfg

from gantt.conf import FloatOpt

GROUP = cfg.OptGroup('rpc')

OPTS = [
    cfg.IntOpt(
        'start_wait_seconds',
        default=60,
        min=0,
        max=3600,
        help='How long a process waits at start for a broker that does not answer, and for such a '
        'database, before it gives up with exit code 1. Each failed try is logged. 0: one try. A '
        'broker that refuses the user, the password or the virtual host, and a database that '
        'refuses the user or has no such name, is not tried again.',
    ),
    cfg.IntOpt(
        'payload_bytes_max',
        default=1 << 20,
        min=4096,
        max=64 << 20,
        help='Largest message that is accepted, in bytes. A larger one is refused unread. '
        'Requests and claim updates are refused from 131072 bytes on, requests of Nova from '
        '262144 on, whatever the value. A '
        'full report of a host with 1000 guests has about 150 kB. Set the limit of the broker '
        '(max_message_size) as well: it protects the network and the memory of the receiver.',
    ),
    cfg.IntOpt(
        'worker_threads',
        default=4,
        min=1,
        max=64,
        help='Threads per topic for methods that wait for the database one by one, such as claim '
        'updates. select_destinations, registrations and reports do not use them.',
    ),
    cfg.IntOpt(
        'worker_queue_limit',
        default=1000,
        min=1,
        max=100_000,
        help='How many messages per topic may wait for those threads. Beyond it the sender is '
        'answered "busy".',
    ),
    cfg.IntOpt(
        'reply_retry_seconds',
        default=20,
        min=0,
        max=300,
        help='How long a reply is tried again when the reply queue of the caller is missing or '
        'the broker is away. A caller that asks again under the same request id gets the same '
        'answer, so a lost reply loses nothing.',
    ),
    cfg.IntOpt(
        'reply_backlog',
        default=2000,
        min=1,
        max=100_000,
        help='How many replies and postponed requests may wait for another try.',
    ),
    FloatOpt(
        'self_ping_seconds',
        default=10.0,
        min=0,
        max=3600,
        help='How often a scheduler process calls itself over the broker, on each topic. A '
        'connection may be stuck although it is open; only a message shows it. 0: never, and '
        'a process that receives nothing stays so until somebody restarts it.',
    ),
    FloatOpt(
        'self_ping_wait_seconds',
        default=5.0,
        min=0.1,
        max=600,
        help='How long such a call waits for its answer.',
    ),
    cfg.IntOpt(
        'self_ping_failures',
        default=3,
        min=1,
        max=1000,
        help='After so many failures in a row, each time with a broker that confirms a message '
        'on a new connection, the process answers what it has accepted, exits 1, and is to be '
        'started again by its supervisor, as workers are. A topic that has had no answer since '
        'the start is no reason to end. The health check fails meanwhile.',
    ),
    cfg.StrOpt(
        'dead_letter_queue',
        default='',
        max_length=200,
        help='Queue of the broker that keeps messages which nobody can handle: too large, not '
        'decodable, of an unknown method or version, with a wrong field. "gantt-manage '
        'dead-letters list" shows them. Empty: they are logged with their first characters, '
        'counted and gone. Values of tokens and passwords are not kept; everything else is, '
        'readable for whoever may read the queue.',
    ),
    cfg.IntOpt(
        'dead_letters_max',
        default=1000,
        min=1,
        max=1_000_000,
        help='How many messages dead_letter_queue keeps; the oldest go first. Of each at most '
        '64 KiB are kept. One project, or one host, has a twentieth of them from each scheduler '
        'process; what it sends beyond that is counted and gone. The queue is declared with it: '
        'delete the queue to change it.',
    ),
    cfg.IntOpt(
        'dead_letter_seconds',
        default=604_800,
        min=60,
        max=4_000_000,
        help='How long dead_letter_queue keeps a message. The queue is declared with it: delete '
        'the queue to change it.',
    ),
    cfg.IntOpt(
        'drain_seconds',
        default=20,
        min=0,
        max=3600,
        help='How long a stopping process waits for the answers of what it had accepted.',
    ),
    FloatOpt(
        'dictionary_cpu_allocation_ratio',
        default=4.0,
        min=0.01,
        max=1000,
        help='VCPU overcommit of hosts whose reports are of a foreign form and do not state it.',
    ),
    FloatOpt(
        'dictionary_ram_allocation_ratio',
        default=1.0,
        min=0.01,
        max=1000,
        help='Memory overcommit of hosts whose reports are of a foreign form and do not state it.',
    ),
    FloatOpt(
        'dictionary_disk_allocation_ratio',
        default=1.0,
        min=0.01,
        max=1000,
        help='Disk overcommit of hosts whose reports are of a foreign form and do not state it.',
    ),
    cfg.BoolOpt(
        'nova_enabled',
        default=False,
        help='Listen on the topic of nova-scheduler as well, in its place. Stop nova-scheduler '
        'first: two services that listen on one topic share its queue, and each gets about half '
        'of the calls.',
    ),
    cfg.StrOpt(
        'nova_transport_url',
        secret=True,
        help='Broker of Nova, e.g. rabbit://user:password@controller:5672/. Not set: the broker '
        'and virtual host of transport_url.',
    ),
    cfg.DictOpt(
        'nova_rabbit_options',
        default={},
        help='Options of [oslo_messaging_rabbit] that Nova sets otherwise than this service, as '
        'name:value pairs, e.g. rabbit_quorum_queue:false. Queues are declared by both sides and '
        'must be declared alike, or the broker refuses.',
    ),
    cfg.StrOpt('nova_exchange', default='nova', help='control_exchange of Nova.'),
    cfg.StrOpt('nova_topic', default='scheduler', help='Topic that nova-conductor calls.'),
    cfg.IntOpt(
        'nova_budget_seconds',
        default=45,
        min=1,
        max=600,
        help='How long a request of Nova may wait here for room, or for the state of hosts, before '
        'it is answered NoValidHost. Never more than three quarters of the time after which the '
        'caller gives up without a sign of life (long_rpc_timeout and rpc_response_timeout of '
        'Nova).',
    ),
    cfg.IntOpt(
        'nova_lease_seconds',
        default=900,
        min=60,
        max=86_400,
        help='How long a claim for a host that Nova runs is kept until the host is seen to '
        'run the instance. Longer than the slowest build.',
    ),
    cfg.IntOpt(
        'nova_max_attempts',
        default=3,
        min=1,
        max=20,
        help='Hosts per instance in an answer to Nova: the chosen one and alternates. As '
        '[scheduler] max_attempts of Nova.',
    ),
    cfg.StrOpt(
        'nova_notification_format',
        default='unversioned',
        choices=[
            ('unversioned', 'the older form, the default of Nova'),
            ('versioned', 'the newer form'),
            ('both', 'each notification in both forms'),
            ('none', 'no notifications'),
        ],
        help='Form of the notifications scheduler.select_destinations.start and .end, as '
        '[notifications] notification_format of Nova. They are sent where driver in '
        '[oslo_messaging_notifications] is set, e.g. to messagingv2, and only for requests of '
        'Nova. What cannot be sent is dropped and counted: placing never waits for it.',
    ),
    cfg.ListOpt(
        'nova_versioned_topics',
        default=['versioned_notifications'],
        help='Topics of the versioned notifications, as [notifications] '
        'versioned_notifications_topics of Nova.',
    ),
    cfg.IntOpt(
        'nova_clock_skew_seconds',
        default=30,
        min=0,
        max=3600,
        help='How far the clocks of the hosts of Nova and of this host may differ. Used to tell '
        'whether a call was queued before this process listened and its caller has given up, and '
        'whether a message that a host no longer has an instance is about an earlier stay of it.',
    ),
]
