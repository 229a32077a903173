# SPDX-License-Identifier: Apache-2.0
"""Refusals of a broker that runs, and remedies for them."""

import re
import shlex
from typing import Any

#: Prefix that the libraries put before the broker's own text: an address that is logged
#: anyway, the number of tries ("inf"), and the method that failed, (0, 0) for none.
_LIBRARY_PREFIX = re.compile(
    r'^(Unable to connect to AMQP server on \S+ after \S+ tries: )?(\(0, 0\): )?'
)
#: RabbitMQ's answer to a connection -> the wrong part of the url.
_URL_PART_BY_REFUSAL = {
    'ACCESS_REFUSED': 'the user or the password',
    'NOT_ALLOWED': 'the virtual host, which is what follows the last "/", or its permissions',
}
#: RabbitMQ's text of refusals that pass without a change of the url.
_TEMPORARY_REFUSAL = re.compile(r'limit \(\d+\) is reached|is down')
#: AMQP's codes of a channel that is closed.
_FORBIDDEN_REFUSAL = re.compile(r'\(403\)|ACCESS_REFUSED')
_PRECONDITION_REFUSAL = re.compile(r'\(406\)|PRECONDITION_FAILED')


def refusal_text(error: object) -> str:
    """Return the broker's own text of an error, or the error's type where it has none."""
    return _LIBRARY_PREFIX.sub('', str(error)) or type(error).__name__


def wrong_url_part(problem: object) -> str:
    """Return the part of the url that the broker does not accept, for a message to people.

    :param problem: the error of a connection to the broker
    :returns: e.g. 'the user or the password'; '': nothing in the url is refused, or the refusal
        passes by itself (a limit is reached, a node is down)
    """
    if _TEMPORARY_REFUSAL.search(str(problem)):
        return ''
    return next(
        (part for refusal, part in _URL_PART_BY_REFUSAL.items() if refusal in str(problem)), ''
    )


def remedy_of_queues(problem: str, url: Any) -> str:
    """Return a remedy where the queues of a topic cannot be declared.

    :param problem: the broker's text
    :param url: the library's url of the broker
    """
    if _FORBIDDEN_REFUSAL.search(problem):
        user = url.hosts[0].username if url.hosts else ''
        # An empty host or user in the url is the broker's default one.
        names = shlex.quote(url.virtual_host or '/'), shlex.quote(user or 'guest')
        return (
            'The user has no permission to configure, write and read there; "gantt-manage broker '
            f'users" gives each role what it needs, "rabbitmqctl list_user_permissions {names[1]}" '
            f'shows what it has in {names[0]}'
        )
    if _PRECONDITION_REFUSAL.search(problem):
        return (
            'The queue exists with other settings: use those (for the topic of Nova in [rpc] '
            'nova_rabbit_options), or delete the queue'
        )
    return 'The logs of this process and of the broker say more'
