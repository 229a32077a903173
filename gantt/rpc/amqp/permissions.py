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
NOTHING = '^$'
#: Default topic of Nova's notifications, and the pattern of their priorities.
NOTIFICATIONS, PRIORITIES = 'notifications', r'\.(info|error)'

#: Role -> the programs that have it.
ROLES = {
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
USUAL = ('scheduler', 'planner', 'conductor', 'api', 'operator')

_SPECIAL = re.compile(r'([\\^$.|?*+()\[\]{}])')


class Topics(msgspec.Struct, frozen=True, kw_only=True):
    """Routing keys of one topic exchange."""

    exchange: str
    write: str
    read: str


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Permissions of a user in one virtual host."""

    vhost: str
    configure: str
    write: str
    read: str
    topics: tuple[Topics, ...] = ()


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user of the broker.

    :ivar name: its name at the broker
    :ivar about: its role, or ``compute/<host>``
    :ivar nova: permissions where Nova's queues are; None: none there
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
                configure=_either(gantt.configure, nova.configure),
                write=_either(gantt.write, nova.write),
                read=_either(gantt.read, nova.read),
                topics=gantt.topics + nova.topics,
            )
        ]


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """Names that users and their permissions are built from.

    :ivar prefix: prefix of users' names
    :ivar vhost: virtual host of Gantt's own queues
    :ivar nova_vhost: that of Nova's queues; None: Nova's topic is not served
    """

    prefix: str = 'gantt'
    vhost: str = '/'
    dead_letter_queue: str = ''
    nova_vhost: str | None = None
    nova_exchange: str = 'nova'
    nova_topic: str = 'scheduler'
    notifications: tuple[str, ...] = (NOTIFICATIONS,)


def names_from(rpc: Any, prefix: str, vhost: str, nova_vhost: str | None) -> Names:
    """Return the names that the configuration has.

    :param rpc: the options of [rpc]
    """
    return Names(
        prefix=prefix,
        vhost=vhost,
        nova_vhost=nova_vhost,
        dead_letter_queue=rpc.dead_letter_queue,
        nova_exchange=rpc.nova_exchange,
        nova_topic=rpc.nova_topic,
        notifications=(NOTIFICATIONS, *rpc.nova_versioned_topics),
    )


def users(names: Names, roles: Iterable[str], hosts: Iterable[str] = ()) -> list[User]:
    """Return the users of these roles, and one for each host.

    :param roles: keys of :data:`ROLES`
    :raises Misconfigured: a queue of one host has the name of one of another
    """
    hosts = list(dict.fromkeys(hosts))
    _check_apart(hosts)
    return [
        *(_MAKERS[role](names, role) for role in dict.fromkeys(roles)),
        *(_compute(names, host) for host in hosts),
    ]


def _scheduler(names: Names, role: str) -> User:
    name = f'{names.prefix}-{role}'
    scheduler_topics = (wire.SCHEDULER_TOPIC, wire.CLAIMS_TOPIC, wire.STATS_TOPIC)
    topics = _one_of(*scheduler_topics, wire.PLANNER_TOPIC)  # gantt-standalone plans as well
    parts = [_EXCHANGE, _DOOR, rf'{topics}(\..+|_fanout.*)?', _replies(name)]
    if names.dead_letter_queue:
        parts.append(_plain(names.dead_letter_queue))
    keys = rf'^{topics}(\..+)?$'
    both = [_keys(keys, keys, exchange) for exchange in (wire.EXCHANGE, wire.HOSTS_EXCHANGE)]
    grant = _grant(names.vhost, parts, [*parts, DEFAULT_EXCHANGE], parts, *both)
    return User(name=name, about=role, own=grant, nova=_of_nova(names, name))


def _planner(names: Names, role: str) -> User:
    """Return a user that listens to the topic of plans, and to nothing else."""
    name = f'{names.prefix}-{role}'
    topic = _plain(wire.PLANNER_TOPIC)
    parts = [_EXCHANGE, rf'{topic}(\..+|_fanout.*)?', _replies(name)]
    if names.dead_letter_queue:
        parts.append(_plain(names.dead_letter_queue))
    keys = rf'^{topic}(\..+)?$'
    grant = _grant(names.vhost, parts, [*parts, DEFAULT_EXCHANGE], parts, _keys(keys, keys))
    return User(name=name, about=role, own=grant)


def _of_nova(names: Names, name: str) -> Grant | None:
    """Return permissions to replace nova-scheduler; its notifications declare their queues."""
    if names.nova_vhost is None:
        return None
    exchange, topic = _plain(names.nova_exchange), _plain(names.nova_topic)
    notices = f'{_one_of(*names.notifications)}{PRIORITIES}'
    parts = [exchange, rf'{topic}(\..+|_fanout.*)?', notices, _replies(name)]
    keys = rf'^({topic}(\..+)?|{notices})$'
    return _grant(
        names.nova_vhost,
        parts,
        [*parts, DEFAULT_EXCHANGE],
        parts,
        _keys(keys, keys, names.nova_exchange),
    )


def _caller(names: Names, role: str, *topics: str) -> User:
    """Return a user that calls ``topics``, regular expressions, and extends claims."""
    name = f'{names.prefix}-{role}'
    answers = _replies(name)
    keys = f'^({"|".join(topics)})$'
    claims = _keys(f'^{_plain(wire.CLAIMS_TOPIC)}$', exchange=wire.HOSTS_EXCHANGE)
    write = [_EXCHANGE, _DOOR, answers]
    grant = _grant(names.vhost, [answers], write, [answers], _keys(keys), claims)
    return User(name=name, about=role, own=grant)


def _services() -> list[str]:
    """Return keys for any server of a topic, and for one of them, by its name."""
    topics = (wire.SCHEDULER_TOPIC, wire.PLANNER_TOPIC)
    return [rf'{_plain(topic)}(\..+)?' for topic in topics]


def _conductor(names: Names, role: str) -> User:
    return _caller(names, role, *_services(), rf'{_plain(TOPIC_PREFIX)}\..+')


def _api(names: Names, role: str) -> User:
    return _caller(names, role, *_services())


def _source(names: Names, role: str) -> User:
    name = f'{names.prefix}-{role}'
    answers = _replies(name)
    grant = _grant(names.vhost, [answers], [_DOOR, answers], [answers], _REPORTS)
    return User(name=name, about=role, own=grant)


def _operator(names: Names, role: str) -> User:
    """Return a user that pings the schedulers, and reads and empties the dead letters."""
    name = f'{names.prefix}-{role}'
    answers = _replies(name)
    read = [answers, *([_plain(names.dead_letter_queue)] if names.dead_letter_queue else [])]
    keys = _keys(f'^{_plain(wire.SCHEDULER_TOPIC)}$')
    grant = _grant(names.vhost, [answers], [_EXCHANGE, answers], read, keys)
    return User(name=name, about=role, own=grant)


def _shadow(names: Names, role: str) -> User:
    """Return a user that requests dry runs, and whose queue gets copies of Nova's messages."""
    queue = rf'{_plain("gantt-shadow.")}.+'
    exchange, topic = _plain(names.nova_exchange), _plain(names.nova_topic)
    notification_pattern = f'{_one_of(*names.notifications)}{PRIORITIES}'
    nova = _grant(
        names.vhost if names.nova_vhost is None else names.nova_vhost,
        [queue],
        [queue],
        [queue, exchange, f'{topic}_fanout'],
        _keys(NOTHING, f'^({topic}|{notification_pattern})$', names.nova_exchange),
    )
    return msgspec.structs.replace(_api(names, role), nova=nova)


def _compute(names: Names, host: str) -> User:
    """Return a user that reports on the two topics of hosts, and listens to its own only."""
    name, topic = f'{names.prefix}-compute.{host}', _plain(topic_of(host))
    return _builder(names, name, f'compute/{host}', topic, rf'\.{_plain(host)}')


def _farm(names: Names, role: str) -> User:
    name, topic = f'{names.prefix}-{role}', rf'{_plain(TOPIC_PREFIX)}\.[^/]+'
    return _builder(names, name, role, topic, r'\.[^/]+')


def _builder(names: Names, name: str, about: str, topic: str, server: str) -> User:
    """Return a user that builds guests.

    :param topic: regular expression of its topics
    :param server: that of the suffix for one process
    """
    answers = _replies(name)
    # The library's queues and exchange of a topic: shared, of this server, and of all.
    queues = f'{topic}({server}|_fanout(_.+)?)?'
    grant = _grant(
        names.vhost,
        [queues, answers],
        # Not the exchange of builds: it leads to the queues of others, whatever keys are allowed.
        [_DOOR, queues, answers],
        [_EXCHANGE, queues, answers],
        _keys(NOTHING, f'^{topic}({server})?$'),
        _REPORTS,
    )
    return User(name=name, about=about, own=grant)


_MAKERS = {
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
    vhost: str, configure: list[str], write: list[str], read: list[str], *topics: Topics
) -> Grant:
    return Grant(
        vhost=vhost, configure=_any(configure), write=_any(write), read=_any(read), topics=topics
    )


def _keys(write: str, read: str = NOTHING, exchange: str = wire.EXCHANGE) -> Topics:
    return Topics(exchange=exchange, write=write, read=read)


def _replies(user: str) -> str:
    return f'{_plain(reply_prefix(user))}.+'


def _one_of(*names: str) -> str:
    return f'({"|".join(map(_plain, names))})'


def _any(parts: list[str]) -> str:
    return f'^({"|".join(parts)})$'


def _either(one: str, other: str) -> str:
    return _any([one[1:-1], other[1:-1]])


def _plain(name: str) -> str:
    """Return a regular expression that matches this name alone."""
    return _SPECIAL.sub(r'\\\1', name)


def _check_apart(hosts: list[str]) -> None:
    """Check that no queue of a host would belong to another.

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


_EXCHANGE, _DOOR = _plain(wire.EXCHANGE), _plain(wire.HOSTS_EXCHANGE)
#: Routing keys of hosts, and of report sources.
_REPORTS = _keys(f'^{_one_of(wire.CLAIMS_TOPIC, wire.STATS_TOPIC)}$', exchange=wire.HOSTS_EXCHANGE)
