# SPDX-License-Identifier: Apache-2.0
"""Transports from the configuration, and the wait for a broker that is away.

The configuration object must be the process's global one: oslo.messaging
registers two of its groups only there and reads them from what it is given
(tests register them by the library's ConfFixture).
"""

import logging
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import oslo_messaging as om

from gantt import exceptions
from gantt.conf import clear_text
from gantt.rpc.amqp import driver, in_process, least_privilege, private_names, refusals
from gantt.rpc.amqp.driver import masked

LOG = logging.getLogger(__name__)

IN_PROCESS_URL = 'kombu+memory:///'

#: Modules whose exceptions a client rebuilds from a reply.
REMOTE_ERRORS = ['gantt.exceptions']

#: Retries of publishing before a client gets an error (never without end).
PUBLISH_RETRIES = 2


#: Longest pause of a service between two tries to reach a broker that is away.  With the
#: library's 30 s calls would stay unanswered for half a minute after a longer outage.
RECONNECT_SECONDS_MOST = 3
#: Messages that a consumer may have unacknowledged.  They are acknowledged as soon as they are
#: taken into a queue of this process, so that this bounds no rate; it bounds what a process
#: takes that is stopped, or stuck, and that others cannot answer until its connection ends.
PREFETCH = 64
#: Seconds without a byte after which the broker takes a peer for dead and delivers to others
#: what it had not acknowledged.  Nova's callers give up after 60 s without a sign of life: a
#: call that a stopped scheduler had taken is redelivered well before.  The broker's manual advises
#: 5 to 20.
HEARTBEAT_SECONDS = 20


def own_transport(
    conf: Any, url: str | None = None, *, guarded: bool = True
) -> om.transport.RPCTransport:
    """Return the transport of our own topics.

    :param url: in place of ``transport_url``
    :param guarded: False: the way there is not checked, as it is only inspected
    :raises Misconfigured: the URL cannot be read, or the way there is refused
    """
    return _transport(conf, url or driver.transport_url(conf), 'transport_url', guarded)


def nova_transport(
    conf: Any, url: str | None = None, *, guarded: bool = True
) -> om.transport.RPCTransport:
    """Return the transport of Nova's topic, with Nova's queue settings.

    :param url: broker where [rpc] nova_transport_url is not set
    :param guarded: as for :func:`own_transport`
    :raises Misconfigured: the URL or an option for it cannot be read, or the way is refused
    """
    return _transport(conf, nova_url(conf, url), '[rpc] nova_transport_url', guarded)


def stay_in_process(conf: Any) -> None:
    """Let messages stay in this process where the configuration names no broker."""
    driver.transport_url(conf)  # registers the option
    conf.set_default('transport_url', IN_PROCESS_URL)


def nova_url(conf: Any, url: str | None = None) -> str:
    """Return the URL of Nova's broker with Nova's queue settings.

    :param url: broker where [rpc] nova_transport_url is not set
    """
    url = conf.rpc.nova_transport_url or url or driver.transport_url(conf)
    options = dict(conf.rpc.nova_rabbit_options)
    if not options:
        return url
    joint = '&' if '?' in url else '?'
    return f'{url}{joint}{urllib.parse.urlencode(options)}'


def _transport(conf: Any, url: str, option: str, guarded: bool) -> om.transport.RPCTransport:
    private_names.check()
    if url.startswith('kombu+memory:'):
        in_process.install()
    fix = 'Expected e.g. rabbit://user:password@host:5672/vhost'
    try:
        rpc_transport = om.get_rpc_transport(conf, url=url, allowed_remote_exmods=REMOTE_ERRORS)
        if driver.speaks_amqp(rpc_transport):
            problem = ''
        else:
            rpc_transport.cleanup()
            problem = f'{masked(url)} is none of RabbitMQ, the only broker of Gantt'
    except (om.InvalidTransportURL, om.DriverLoadFailure) as e:
        problem = f'{masked(url)} cannot be used: {_without_secret(str(e), url)}'
    except Exception as e:  # the driver raises what oslo.config does for a query it cannot read
        problem = f'{masked(url)}: {_without_secret(str(e), url)}'
        fix = 'Name options of [oslo_messaging_rabbit] only'
    if problem:
        raise exceptions.Misconfigured(option=option, problem=problem, fix=fix)
    least_privilege.needs_little(rpc_transport)
    if guarded:
        try:
            clear_text.guard(conf, _exposed(rpc_transport))
        except exceptions.Misconfigured:
            rpc_transport.cleanup()
            raise
    return rpc_transport


def carriers(conf: Any, *, guarded: bool = True) -> Iterator[tuple[str, om.transport.RPCTransport]]:
    """Yield each broker of a configuration: the option that names it, and a transport to clean up.

    :param guarded: as for :func:`own_transport`
    :raises Misconfigured: a URL cannot be read
    """
    yield 'transport_url', own_transport(conf, guarded=guarded)
    if conf.rpc.nova_enabled and (conf.rpc.nova_transport_url or conf.rpc.nova_rabbit_options):
        yield '[rpc] nova_transport_url', nova_transport(conf, guarded=guarded)


def _exposed(made: om.transport.RPCTransport) -> clear_text.Exposure | None:
    broker_url, rabbit = driver.options(made)
    hosts = [] if driver.is_in_process(made) else [host.hostname for host in broker_url.hosts]
    return clear_text.of_broker(hosts, rabbit, address(made))


def service_defaults(conf: Any) -> None:
    """Set other defaults of [oslo_messaging_rabbit] than the library's, for services.

    Reconnection within seconds of the broker's return (ten thousand hosts that come back at once
    are a herd), a bounded prefetch, and a heartbeat after which what a dead process held is
    redelivered in time.  Call it after a transport was created, which registers the options.
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
    """Return the masked URL of a transport."""
    return masked(str(transport._driver._url))


def _never() -> bool:
    return False


def wait_for_broker(
    transport: om.transport.RPCTransport,
    seconds: float,
    option: str = 'transport_url',
    is_stopping: Callable[[], bool] = _never,
) -> bool:
    """Wait until the broker takes a connection.

    :param seconds: how long to try a broker that does not answer; 0 means once
    :param option: where its address comes from
    :param is_stopping: returns whether to give up, called several times a second
    :returns: False where it gave up
    :raises BrokerUnavailable: it does not answer in time, or refuses us; nothing was started
    """
    end = time.monotonic() + seconds
    broker_address = address(transport)
    while not is_stopping():
        try:
            driver.probe(transport)
            return True
        except Exception as e:  # sockets, AMQP, TLS: whatever keeps us out is the reason
            seconds_left, reason = end - time.monotonic(), refusals.text_of(e)
            wrong_part = refusals.wrong_in_url(reason)
            if wrong_part:
                # Trying again changes nothing.
                raise exceptions.BrokerUnavailable(
                    f'the message broker at {broker_address} runs and refuses us: {reason}; '
                    f'correct in {option} {wrong_part}',
                    url=broker_address,
                    problem=reason,
                    correct=f'{option} {wrong_part}',
                ) from None
            if seconds_left <= 0:
                reason = f'{reason} (tried for {seconds:.0f} s); start it, or correct {option}'
                raise exceptions.BrokerUnavailable(
                    url=broker_address, problem=reason, correct=option
                ) from None
            LOG.warning(
                'The message broker at %s does not answer; trying for %.0f s more: %s',
                broker_address,
                seconds_left,
                reason,
            )
            _pause(min(2.0, seconds_left), is_stopping)
    return False


def _pause(seconds: float, is_stopping: Callable[[], bool]) -> None:
    # A signal whose handler returns does not end a sleep.
    end = time.monotonic() + seconds
    while not is_stopping() and (remaining := end - time.monotonic()) > 0:
        time.sleep(min(0.2, remaining))
