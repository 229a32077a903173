# SPDX-License-Identifier: Apache-2.0
"""Users of the message broker: one for each role and each compute host, with its permissions.

RabbitMQ compares three regular expressions of a user with the names of queues and
exchanges: to configure (declare, delete), to write (publish; bind a queue to something)
and to read (consume; bind something to a queue).  On a topic exchange two more are
compared with routing keys, of what is published and of what a queue is bound to.

A user with write permission on the default exchange reaches every queue by its name, so
only schedulers have it: they answer calls.  A compute host has not, therefore builds are
cast to it and their outcome comes as its updates of claims.  Nor may it write to the
exchange of builds: a "CC" header, or a binding to a queue or exchange of its own, evades
permissions for routing keys.  For schedulers, conductors and the API these are a guard against
mistakes; they are trusted with all topics.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.messages.base import TOPIC_PREFIX, topic_of
from gantt.rpc import wire
from gantt.rpc.amqp.queues import reply_prefix

#: RabbitMQ's name for the exchange without a name.
DEFAULT_EXCHANGE = r'amq\.default'
MATCH_NOTHING = '^$'
#: Default topic of Nova's notifications, and the pattern of their priorities.
NOTIFICATIONS_TOPIC, PRIORITIES_PATTERN = 'notifications', r'\.(info|error)'

#: Role -> the programs that have it.
PROGRAMS_BY_ROLE = {
    'scheduler': 'gantt-scheduler',
    'planner': 'gantt-planner',
    'conductor': 'asks for places and sends builds: a program with gantt.client',
    'api': 'gantt-api',
    'operator': 'gantt-manage and gantt-status: dead letters',
    'source': 'gantt-nova-source and gantt-report-source: speak for many hosts',
    'shadow': 'gantt-shadow',
    'farm': 'gantt-compute --fake: plays any host',
}
#: Roles that a site has by default; the others are for sites that run such a process.
DEFAULT_ROLES = ('scheduler', 'planner', 'conductor', 'api', 'operator')

_SPECIAL = re.compile(r'([\\^$.|?*+()\[\]{}])')


class TopicPermissions(msgspec.Struct, frozen=True, kw_only=True):
    """Patterns of the routing keys that a user may use on one topic exchange."""

    exchange: str
    write: str
    read: str


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Permissions of a user in one virtual host."""

    vhost: str
    configure: str
    write: str
    read: str
    topics: tuple[TopicPermissions, ...] = ()


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user of the broker.

    :ivar name: its name at the broker
    :ivar about: its role, or ``compute/<host>``
    :ivar nova: permissions in the virtual host of Nova's queues; None: the user has none there
    """

    name: str
    about: str
    own: Grant
    nova: Grant | None = None

    @property
    def grants(self) -> list[Grant]:
        """Permissions, at most one grant per virtual host: the broker keeps no more."""
        if self.nova is None:
            return [self.own]
        if self.nova.vhost != self.own.vhost:
            return [self.own, self.nova]
        gantt, nova = self.own, self.nova
        return [
            Grant(
                vhost=gantt.vhost,
                configure=_either_pattern(gantt.configure, nova.configure),
                write=_either_pattern(gantt.write, nova.write),
                read=_either_pattern(gantt.read, nova.read),
                topics=gantt.topics + nova.topics,
            )
        ]


class BrokerNames(msgspec.Struct, frozen=True, kw_only=True):
    """Names that users and their permissions are built from.

    :ivar prefix: prefix of users' names
    :ivar vhost: virtual host of Gantt's own queues
    :ivar nova_vhost: virtual host of Nova's queues; None: Nova's topic is not served
    """

    prefix: str = 'gantt'
    vhost: str = '/'
    dead_letter_queue: str = ''
    nova_vhost: str | None = None
    nova_exchange: str = 'nova'
    nova_topic: str = 'scheduler'
    notifications: tuple[str, ...] = (NOTIFICATIONS_TOPIC,)


def broker_names(rpc: Any, prefix: str, vhost: str, nova_vhost: str | None) -> BrokerNames:
    """Return the names that the configuration has.

    :param rpc: the options of [rpc]
    """
    return BrokerNames(
        prefix=prefix,
        vhost=vhost,
        nova_vhost=nova_vhost,
        dead_letter_queue=rpc.dead_letter_queue,
        nova_exchange=rpc.nova_exchange,
        nova_topic=rpc.nova_topic,
        notifications=(NOTIFICATIONS_TOPIC, *rpc.nova_versioned_topics),
    )


def users(names: BrokerNames, roles: Iterable[str], hosts: Iterable[str] = ()) -> list[User]:
    """Return the users of these roles, and one for each host.

    :param roles: keys of :data:`PROGRAMS_BY_ROLE`
    :raises Misconfigured: a queue of one host has the name of a queue of another host
    """
    hosts = list(dict.fromkeys(hosts))
    _check_host_queues_differ(hosts)
    return [
        *(_USER_BY_ROLE[role](names, role) for role in dict.fromkeys(roles)),
        *(_compute(names, host) for host in hosts),
    ]


def _scheduler(names: BrokerNames, role: str) -> User:
    name = f'{names.prefix}-{role}'
    scheduler_topics = (wire.SCHEDULER_TOPIC, wire.CLAIMS_TOPIC, wire.STATS_TOPIC)
    topics = _one_of_pattern(
        *scheduler_topics, wire.PLANNER_TOPIC
    )  # gantt-standalone plans as well
    parts = [
        _EXCHANGE_PATTERN,
        _HOSTS_EXCHANGE_PATTERN,
        rf'{topics}(\..+|_fanout.*)?',
        _reply_queues(name),
    ]
    if names.dead_letter_queue:
        parts.append(_exact_pattern(names.dead_letter_queue))
    keys = rf'^{topics}(\..+)?$'
    both = [
        _topic_permissions(keys, keys, exchange)
        for exchange in (wire.EXCHANGE, wire.HOSTS_EXCHANGE)
    ]
    grant = _grant(names.vhost, parts, [*parts, DEFAULT_EXCHANGE], parts, *both)
    return User(name=name, about=role, own=grant, nova=_nova_grant(names, name))


def _planner(names: BrokerNames, role: str) -> User:
    """Return a user that listens to the topic of plans, and to nothing else."""
    name = f'{names.prefix}-{role}'
    topic = _exact_pattern(wire.PLANNER_TOPIC)
    parts = [_EXCHANGE_PATTERN, rf'{topic}(\..+|_fanout.*)?', _reply_queues(name)]
    if names.dead_letter_queue:
        parts.append(_exact_pattern(names.dead_letter_queue))
    keys = rf'^{topic}(\..+)?$'
    grant = _grant(
        names.vhost, parts, [*parts, DEFAULT_EXCHANGE], parts, _topic_permissions(keys, keys)
    )
    return User(name=name, about=role, own=grant)


def _nova_grant(names: BrokerNames, name: str) -> Grant | None:
    """Return permissions to serve Nova's topic and declare queues of notifications."""
    if names.nova_vhost is None:
        return None
    exchange, topic = _exact_pattern(names.nova_exchange), _exact_pattern(names.nova_topic)
    notices = f'{_one_of_pattern(*names.notifications)}{PRIORITIES_PATTERN}'
    parts = [exchange, rf'{topic}(\..+|_fanout.*)?', notices, _reply_queues(name)]
    keys = rf'^({topic}(\..+)?|{notices})$'
    return _grant(
        names.nova_vhost,
        parts,
        [*parts, DEFAULT_EXCHANGE],
        parts,
        _topic_permissions(keys, keys, names.nova_exchange),
    )


def _caller(names: BrokerNames, role: str, *topics: str) -> User:
    """Return a user that calls ``topics``, regular expressions, and extends claims."""
    name = f'{names.prefix}-{role}'
    answers = _reply_queues(name)
    keys = f'^({"|".join(topics)})$'
    claims = _topic_permissions(
        f'^{_exact_pattern(wire.CLAIMS_TOPIC)}$', exchange=wire.HOSTS_EXCHANGE
    )
    write = [_EXCHANGE_PATTERN, _HOSTS_EXCHANGE_PATTERN, answers]
    grant = _grant(names.vhost, [answers], write, [answers], _topic_permissions(keys), claims)
    return User(name=name, about=role, own=grant)


def _services() -> list[str]:
    """Return routing keys of the service topics: any server's, and one server's, by its name."""
    topics = (wire.SCHEDULER_TOPIC, wire.PLANNER_TOPIC)
    return [rf'{_exact_pattern(topic)}(\..+)?' for topic in topics]


def _conductor(names: BrokerNames, role: str) -> User:
    return _caller(names, role, *_services(), rf'{_exact_pattern(TOPIC_PREFIX)}\..+')


def _api(names: BrokerNames, role: str) -> User:
    return _caller(names, role, *_services())


def _source(names: BrokerNames, role: str) -> User:
    name = f'{names.prefix}-{role}'
    answers = _reply_queues(name)
    grant = _grant(
        names.vhost, [answers], [_HOSTS_EXCHANGE_PATTERN, answers], [answers], _REPORTS_PERMISSIONS
    )
    return User(name=name, about=role, own=grant)


def _operator(names: BrokerNames, role: str) -> User:
    """Return a user that pings the schedulers, and reads and empties the dead letters."""
    name = f'{names.prefix}-{role}'
    answers = _reply_queues(name)
    read = [
        answers,
        *([_exact_pattern(names.dead_letter_queue)] if names.dead_letter_queue else []),
    ]
    keys = _topic_permissions(f'^{_exact_pattern(wire.SCHEDULER_TOPIC)}$')
    grant = _grant(names.vhost, [answers], [_EXCHANGE_PATTERN, answers], read, keys)
    return User(name=name, about=role, own=grant)


def _shadow(names: BrokerNames, role: str) -> User:
    """Return a user that requests dry runs, and whose queue gets copies of Nova's messages."""
    queue = rf'{_exact_pattern("gantt-shadow.")}.+'
    exchange, topic = _exact_pattern(names.nova_exchange), _exact_pattern(names.nova_topic)
    notification_pattern = f'{_one_of_pattern(*names.notifications)}{PRIORITIES_PATTERN}'
    nova = _grant(
        names.vhost if names.nova_vhost is None else names.nova_vhost,
        [queue],
        [queue],
        [queue, exchange, f'{topic}_fanout'],
        _topic_permissions(
            MATCH_NOTHING, f'^({topic}|{notification_pattern})$', names.nova_exchange
        ),
    )
    return msgspec.structs.replace(_api(names, role), nova=nova)


def _compute(names: BrokerNames, host: str) -> User:
    """Return a user that reports on the two topics of hosts, and listens to its own only."""
    name, topic = f'{names.prefix}-compute.{host}', _exact_pattern(topic_of(host))
    return _builder(names, name, f'compute/{host}', topic, rf'\.{_exact_pattern(host)}')


def _farm(names: BrokerNames, role: str) -> User:
    name, topic = f'{names.prefix}-{role}', rf'{_exact_pattern(TOPIC_PREFIX)}\.[^/]+'
    return _builder(names, name, role, topic, r'\.[^/]+')


def _builder(names: BrokerNames, name: str, about: str, topic: str, server: str) -> User:
    """Return a user that builds guests.

    :param topic: regular expression of its topics
    :param server: regular expression of the suffix for one process
    """
    answers = _reply_queues(name)
    # The library's queues and exchange of a topic: shared, of this server, and of all.
    queues = f'{topic}({server}|_fanout(_.+)?)?'
    grant = _grant(
        names.vhost,
        [queues, answers],
        # Not the exchange of builds: it leads to the queues of others, whatever keys are allowed.
        [_HOSTS_EXCHANGE_PATTERN, queues, answers],
        [_EXCHANGE_PATTERN, queues, answers],
        _topic_permissions(MATCH_NOTHING, f'^{topic}({server})?$'),
        _REPORTS_PERMISSIONS,
    )
    return User(name=name, about=about, own=grant)


_USER_BY_ROLE = {
    'scheduler': _scheduler,
    'planner': _planner,
    'conductor': _conductor,
    'api': _api,
    'operator': _operator,
    'source': _source,
    'shadow': _shadow,
    'farm': _farm,
}


def _grant(
    vhost: str, configure: list[str], write: list[str], read: list[str], *topics: TopicPermissions
) -> Grant:
    return Grant(
        vhost=vhost,
        configure=_any_pattern(configure),
        write=_any_pattern(write),
        read=_any_pattern(read),
        topics=topics,
    )


def _topic_permissions(
    write: str, read: str = MATCH_NOTHING, exchange: str = wire.EXCHANGE
) -> TopicPermissions:
    return TopicPermissions(exchange=exchange, write=write, read=read)


def _reply_queues(user: str) -> str:
    return f'{_exact_pattern(reply_prefix(user))}.+'


def _one_of_pattern(*names: str) -> str:
    return f'({"|".join(map(_exact_pattern, names))})'


def _any_pattern(parts: list[str]) -> str:
    return f'^({"|".join(parts)})$'


def _either_pattern(pattern: str, other: str) -> str:
    return _any_pattern([pattern[1:-1], other[1:-1]])


def _exact_pattern(name: str) -> str:
    """Return a regular expression that matches only this name."""
    return _SPECIAL.sub(r'\\\1', name)


def _check_host_queues_differ(hosts: list[str]) -> None:
    """Check that no queue of one host would have the name of another host's queue.

    :raises Misconfigured: one would
    """
    all_hosts = set(hosts)
    for host in hosts:
        prefixes = {host[: match.start()] for match in re.finditer('_fanout', host)}
        middle = len(host) // 2
        if host[middle : middle + 1] == '.' and host[:middle] == host[middle + 1 :]:
            prefixes.add(host[:middle])
        for other_host in sorted(prefixes & all_hosts):
            raise exceptions.Misconfigured(
                option='--host',
                problem=f'{topic_of(host)} would be a queue of host {other_host}, too',
                fix=f'Give one of {host} and {other_host} another name',
            )


_EXCHANGE_PATTERN, _HOSTS_EXCHANGE_PATTERN = (
    _exact_pattern(wire.EXCHANGE),
    _exact_pattern(wire.HOSTS_EXCHANGE),
)
#: Routing keys of hosts, and of report sources.
_REPORTS_PERMISSIONS = _topic_permissions(
    f'^{_one_of_pattern(wire.CLAIMS_TOPIC, wire.STATS_TOPIC)}$', exchange=wire.HOSTS_EXCHANGE
)
