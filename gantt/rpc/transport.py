# SPDX-License-Identifier: Apache-2.0
"""Transports from the configuration, and the wait for a broker that is away.

The configuration object must be the process's global one: oslo.messaging
registers two of its groups only there and reads them from what it is given
(tests register them by the library's ConfFixture).
"""

import logging
import time
import urllib.parse
from typing import Any

import oslo_messaging as om

from gantt import exceptions
from gantt.rpc import driver, memory, refusals
from gantt.rpc.driver import masked

LOG = logging.getLogger(__name__)

EXCHANGE = 'gantt'
IN_PROCESS_URL = 'kombu+memory:///'

#: Modules whose exceptions a client rebuilds from a reply.
REMOTE_ERRORS = ['gantt.exceptions']

#: Publishing is tried again so often before a client is told (never without end).
PUBLISH_RETRIES = 2


#: Longest pause of a service between two tries to reach a broker that is away.  With the
#: library's 30 s nobody would answer for half a minute after a longer outage.
RECONNECT_SECONDS_MOST = 3
#: Messages that a consumer may have unacknowledged.  They are acknowledged as soon as they are
#: taken into a queue of this process, so that this bounds no rate; it bounds what a process
#: takes that is stopped, or stuck, and that others cannot answer until its connection ends.
PREFETCH = 64
#: After so long without a byte the broker takes a peer for dead and delivers to others what it
#: had not acknowledged.  Nova's callers give up after 60 s without a sign of life: a call that a
#: stopped scheduler had taken is redelivered well before.  The broker's manual advises 5 to 20.
HEARTBEAT_SECONDS = 20


def own_transport(conf: Any, url: str | None = None) -> om.transport.RPCTransport:
    """The transport of our own topics.

    :param url: in place of ``transport_url``
    :raises Misconfigured: the URL cannot be read
    """
    return _transport(conf, url or driver.transport_url(conf), 'transport_url')


def nova_transport(conf: Any, url: str | None = None) -> om.transport.RPCTransport:
    """The transport of Nova's topic, with Nova's queue settings.

    :param url: broker where [rpc] nova_transport_url is not set
    :raises Misconfigured: the URL or an option for it cannot be read
    """
    return _transport(conf, nova_url(conf, url), '[rpc] nova_transport_url')


def nova_url(conf: Any, url: str | None = None) -> str:
    """Nova's broker with Nova's queue settings.

    :param url: broker where [rpc] nova_transport_url is not set
    """
    url = conf.rpc.nova_transport_url or url or driver.transport_url(conf)
    options = dict(conf.rpc.nova_rabbit_options)
    if not options:
        return url
    joint = '&' if '?' in url else '?'
    return f'{url}{joint}{urllib.parse.urlencode(options)}'


def _transport(conf: Any, url: str, option: str) -> om.transport.RPCTransport:
    if url.startswith('kombu+memory:'):
        memory.install()
    try:
        made = om.get_rpc_transport(conf, url=url, allowed_remote_exmods=REMOTE_ERRORS)
    except (om.InvalidTransportURL, om.DriverLoadFailure) as e:
        raise exceptions.Misconfigured(
            option=option,
            problem=f'{masked(url)} cannot be used: {_without_secret(str(e), url)}',
            fix='Expected e.g. rabbit://user:password@host:5672/vhost',
        ) from None
    except Exception as e:  # the driver raises what oslo.config does for a query it cannot read
        raise exceptions.Misconfigured(
            option=option,
            problem=f'{masked(url)}: {_without_secret(str(e), url)}',
            fix='Name options of [oslo_messaging_rabbit] only',
        ) from None
    if not driver.speaks_amqp(made):
        made.cleanup()
        raise exceptions.Misconfigured(
            option=option, problem=f'{masked(url)} is none of RabbitMQ, the only broker of Gantt',
            fix='Expected e.g. rabbit://user:password@host:5672/vhost',
        )  # fmt: skip
    return made


def service_defaults(conf: Any) -> None:
    """Other defaults of [oslo_messaging_rabbit] than the library's, for services.

    Back within seconds of the broker (ten thousand hosts that come back at once are a herd),
    a bounded prefetch, and a heartbeat after which what a dead process held is redelivered in
    time.  Call it after a transport was made, which registers the options.
    """
    for name, value in (
        ('rabbit_interval_max', RECONNECT_SECONDS_MOST),
        ('rabbit_qos_prefetch_count', PREFETCH),
        ('heartbeat_timeout_threshold', HEARTBEAT_SECONDS),
    ):
        conf.set_default(name, value, group='oslo_messaging_rabbit')


def _without_secret(text: str, url: str) -> str:
    return text.replace(url, masked(url))


def address(transport: om.transport.RPCTransport) -> str:
    """The masked URL of a transport."""
    return masked(str(transport._driver._url))


def wait_for_broker(
    transport: om.transport.RPCTransport, seconds: float, option: str = 'transport_url'
) -> None:
    """Return when the broker takes a connection.

    :param seconds: how long to try; 0 means once
    :param option: where its address comes from
    :raises BrokerUnavailable: it did not; nothing was started
    """
    end = time.monotonic() + seconds
    where = address(transport)
    while True:
        try:
            driver.probe(transport)
            return
        except Exception as e:  # sockets, AMQP, TLS: whatever keeps us out is the reason
            left, said = end - time.monotonic(), refusals.said(e)
            if left <= 0:
                raise _kept_out(where, f'{said} (tried for {seconds:.0f} s)', option) from None
            LOG.warning(
                'The message broker at %s %s; trying for %.0f s more: %s',
                where,
                'runs and refuses us' if refusals.wrong_in_url(said) else 'does not answer',
                left,
                said,
            )
            time.sleep(min(2.0, left))


def _kept_out(where: str, problem: str, option: str) -> exceptions.BrokerUnavailable:
    wrong = refusals.wrong_in_url(problem)
    if not wrong:
        problem = f'{problem}; start it, or correct {option}'
        return exceptions.BrokerUnavailable(url=where, problem=problem)
    return exceptions.BrokerUnavailable(
        f'the message broker at {where} runs and refuses us: {problem}; '
        f'correct in {option} {wrong}',
        url=where,
        problem=problem,
    )
