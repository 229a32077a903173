# SPDX-License-Identifier: Apache-2.0
"""Transports from the configuration, the wait for a broker that is away, and one in the process.

kombu's memory transport polls: once a second, which delays messages as long, or, as oslo.messaging
sets it, without a pause, which costs a whole core.  Here each message put wakes all listeners: the
URL ``kombu+memory:///`` means this transport in this process.
"""

import contextlib
import logging
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import oslo_messaging as om
from kombu import transport as kombu_transport
from kombu.transport import memory, virtual
from oslo_messaging import opts as library_options

from gantt import exceptions
from gantt.conf import clear_text
from gantt.rpc.amqp import queues, refusals
from gantt.rpc.amqp.caller import RpcCaller
from gantt.rpc.amqp.connection import BROKER_ERRORS, IN_PROCESS_SCHEME, Connection


class _MessageCount:
    """A count of the messages published; a listener waits until it changes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.count = 0

    def count_message(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait(self, seen: int, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.count != seen, seconds)


NEW_MESSAGE_SIGNAL = _MessageCount()


class Channel(memory.Channel):
    """A channel whose messages wake the listeners."""

    queues: dict[str, Any] = {}

    def basic_publish(self, *args: Any, **kwargs: Any) -> None:
        """Publish a message."""
        super().basic_publish(*args, **kwargs)
        NEW_MESSAGE_SIGNAL.count_message()

    def basic_reject(self, *args: Any, **kwargs: Any) -> None:
        """Reject a message, which may put it back."""
        super().basic_reject(*args, **kwargs)
        NEW_MESSAGE_SIGNAL.count_message()


class InProcessTransport(memory.Transport):
    """The memory transport, with waiting in place of polling."""

    Channel = Channel
    global_state = virtual.BrokerState()

    def drain_events(self, connection: Any, timeout: float | None = None, **kwargs: Any) -> None:
        """Deliver one message, or raise TimeoutError after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            seen_count = NEW_MESSAGE_SIGNAL.count
            try:
                super().drain_events(connection, timeout=0)
                return
            except TimeoutError:
                remaining = 1.0 if end is None else end - time.monotonic()
                if remaining <= 0:
                    raise
                NEW_MESSAGE_SIGNAL.wait(seen_count, min(remaining, 1.0))


def _is_meaningful_log(record: logging.LogRecord) -> bool:
    """Filter log messages about host name and heartbeat, which mean nothing here."""
    noise = ('No hostname was supplied', 'Heartbeat support requested')
    return not str(record.msg).startswith(noise)


def install_in_process() -> None:
    """Let ``memory`` URLs of this process use this transport."""
    kombu_transport.TRANSPORT_ALIASES['memory'] = f'{__name__}:InProcessTransport'
    for name in ('kombu.connection', 'oslo.messaging._drivers.impl_rabbit'):
        logging.getLogger(name).addFilter(_is_meaningful_log)  # adding it twice adds it once


LOG = logging.getLogger(__name__)

IN_PROCESS_URL = f'{IN_PROCESS_SCHEME}:///'
#: Schemes of a URL, as oslo.messaging has them, that lead to RabbitMQ or nowhere.
_SCHEMES = ('rabbit', 'kombu', 'kombu+amqp', IN_PROCESS_SCHEME)
_RABBIT_OPTION_GROUP = 'oslo_messaging_rabbit'

#: Retries of publishing before a client gets an error (never without end).
PUBLISH_RETRIES = 2

#: Longest pause of a service between two tries to reach a broker that is away.  With the
#: 30 s of oslo.messaging calls would stay unanswered for half a minute after a longer outage.
RECONNECT_SECONDS_MOST = 3
#: Messages that a consumer may have unacknowledged.  They are acknowledged as soon as they are
#: taken into a queue of this process, so that this bounds no rate; it bounds what a process
#: takes that is stopped, or stuck, and that others cannot answer until its connection ends.
PREFETCH_COUNT = 64
#: Seconds without a byte after which the broker takes a peer for dead and delivers to others
#: what it had not acknowledged.  Nova's callers give up after 60 s without a sign of life: a
#: call that a stopped scheduler had taken is redelivered well before.  The broker's manual advises
#: 5 to 20.
HEARTBEAT_SECONDS = 20


def register_opts(conf: Any) -> None:
    """Register the options of oslo.messaging that lead to the broker."""
    for group, opts in library_options.list_opts():
        if group in (None, _RABBIT_OPTION_GROUP):
            conf.register_opts(opts, group=group)


def configured_url(conf: Any) -> str:
    """Return ``transport_url``."""
    register_opts(conf)
    url: str = conf.transport_url
    return url


def caller_seconds(conf: Any) -> float:
    """Return how long callers configured as this process wait: ``rpc_response_timeout``."""
    register_opts(conf)
    return float(conf.rpc_response_timeout)


def masked(url: str) -> str:
    """Return a broker URL for people: without passwords and options."""
    scheme, sep, location = url.partition('://')
    if not sep:
        return scheme.partition(':')[0] + ':'
    hosts, slash, path = location.partition('/')
    shown = []
    for host in hosts.split(','):
        user, at_sign, address = host.rpartition('@')
        shown.append(f'{user.partition(":")[0]}:***@{address}' if at_sign else address)
    return f'{scheme}://{",".join(shown)}{slash}{path.partition("?")[0]}'


class RabbitOptions:
    """[oslo_messaging_rabbit], and what the query of a URL sets in place of it.

    :raises Exception: the query has no such option, or no such value
    """

    def __init__(self, conf: Any, query: dict[str, str]) -> None:
        self._group = conf[_RABBIT_OPTION_GROUP]
        types = {
            opt.dest: opt.type for opt in dict(library_options.list_opts())[_RABBIT_OPTION_GROUP]
        }
        if unknown := query.keys() - types.keys():
            raise ValueError(f'no such option: {", ".join(sorted(unknown))}')
        self._from_url = {name: types[name](value) for name, value in query.items()}

    def __getattr__(self, name: str) -> Any:
        from_url = self.__dict__['_from_url']
        return from_url[name] if name in from_url else getattr(self.__dict__['_group'], name)

    __getitem__ = __getattr__


class Transport:
    """A broker, and the connections of this process to it.  Any thread.

    :ivar url: as oslo.messaging reads it
    :ivar rabbit: options of [oslo_messaging_rabbit] in force
    :ivar caller: sender of calls and casts
    :raises Exception: the URL or an option cannot be used
    """

    def __init__(self, conf: Any, url: str) -> None:
        self.conf = conf
        self.url = om.TransportURL.parse(conf, url)
        if self.url.transport not in _SCHEMES:
            raise ValueError('expected a URL of RabbitMQ, the only broker of Gantt')
        register_opts(conf)
        self.rabbit = RabbitOptions(conf, self.url.query)
        if self.rabbit.rpc_conn_pool_size < self.rabbit.conn_pool_min_size:
            raise ValueError('rpc_conn_pool_size is less than conn_pool_min_size')
        self.is_in_process = self.url.transport == IN_PROCESS_SCHEME
        if self.is_in_process:
            install_in_process()
        Connection(self.url, self.rabbit)  # whether it can be made of them
        self.address = masked(str(self.url))
        self.caller = RpcCaller(self)
        self._connection_slots = threading.BoundedSemaphore(self.rabbit.rpc_conn_pool_size)
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._keeper_thread: threading.Thread | None = None

    @property
    def user(self) -> str:
        """User of the broker."""
        return (self.url.hosts[0].username if self.url.hosts else '') or 'guest'

    def connection(self) -> Connection:
        """Return a new connection, not open yet, for one owner.

        :raises ValueError: options exclude each other
        """
        queues.check_rabbit_options(self.rabbit)
        return Connection(self.url, self.rabbit)

    @contextlib.contextmanager
    def opened(self) -> Iterator[Connection]:
        """Yield a new connection, closed at the end.

        :raises Exception: any error of it; the message is for people
        """
        connection = self.connection()
        try:
            connection.open()
            yield connection
        except BROKER_ERRORS:
            connection.drop()
            raise
        finally:
            connection.close()

    # -- connections for sending -----------------------------------------------------------------
    @contextlib.contextmanager
    def sender(self) -> Iterator[Connection]:
        """Yield a connection for sending that only this thread uses.

        :raises BrokerUnavailable: none can be opened now, or what is done inside fails
        """
        try:
            with self._take_connection() as connection:
                yield connection
        except BROKER_ERRORS as e:
            raise self.unavailable(e) from None

    def probe(self) -> None:
        """Open (or reuse) one connection for sending.

        :raises Exception: any error of it; the message is for people
        """
        with self._take_connection():
            pass

    @contextlib.contextmanager
    def _take_connection(self) -> Iterator[Connection]:
        with self._connection_slots:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                connection = self.connection()
                connection.open()
            try:
                yield connection
            except BROKER_ERRORS:
                connection.drop()
                raise
            finally:
                self._release(connection)

    def _release(self, connection: Connection) -> None:
        if not connection.is_open or self._closed.is_set():
            connection.drop()
            return
        connection.used_at = time.monotonic()
        with self._lock:
            self._idle.append(connection)
            if self._keeper_thread is None and not self.is_in_process:
                self._keeper_thread = threading.Thread(
                    target=self._keep_idle_alive, name='rpc-heartbeats', daemon=True
                )
                self._keeper_thread.start()

    def _keep_idle_alive(self) -> None:
        """Keep idle connections alive, and drop those that broke or were idle for long."""
        rabbit = self.rabbit
        seconds = rabbit.heartbeat_timeout_threshold / max(1, rabbit.heartbeat_rate) / 2 or 60.0
        while not self._closed.wait(seconds):
            for _ in range(len(self._idle)):
                with self._lock:
                    if not self._idle:
                        break
                    connection = self._idle.pop(0)
                    is_spare = len(self._idle) >= rabbit.conn_pool_min_size
                if is_spare and time.monotonic() - connection.used_at > rabbit.conn_pool_ttl:
                    connection.close()
                    continue
                try:
                    connection.keep_alive()
                except Exception as e:  # the broker has been silent for too long, or is away
                    LOG.info(
                        'Idle connection to the broker broke: error=%s', refusals.refusal_text(e)
                    )
                    connection.drop()
                    continue
                with self._lock:
                    self._idle.append(connection)

    def drop_senders(self) -> None:
        """Drop the idle connections for sending, whatever they still wait for.

        Where one is broken the others are, too, and sending fails at once on a new one.
        """
        with self._lock:
            dropped, self._idle = self._idle, []
        for connection in dropped:
            connection.drop()

    def cleanup(self) -> None:
        """Close all connections."""
        self._closed.set()
        self.caller.stop()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    # -- questions to the broker -----------------------------------------------------------------
    def unavailable(self, error: Exception) -> exceptions.BrokerUnavailable:
        """Return the error that the broker does not answer, with its address."""
        return exceptions.BrokerUnavailable(url=self.address, problem=refusals.refusal_text(error))

    def server_version(self) -> str:
        """Return the version that the broker reports.

        :raises Exception: any error of a connection; the message is for people
        """
        with self._take_connection() as connection:
            version = connection.raw.server_properties.get('version', '')
        return version.decode() if isinstance(version, bytes) else str(version)

    def consumers(self, queue: str) -> int:
        """Return how many consumers a queue has, those of this process included.

        :raises BrokerUnavailable: the broker does not answer the query
        """
        with self.sender() as connection, queues.channel_of(connection) as channel:
            return int(channel.queue_declare(queue, passive=True).consumer_count)

    def renew(self) -> None:
        """Make new connections for sending and for answers.

        A thread that has an old one goes on with it.  (A process of our own that receives nothing
        is replaced as a whole; a client lives in another program's process.)
        """
        self.drop_senders()
        self.caller.renew()


def own_transport(conf: Any, url: str | None = None, *, guarded: bool = True) -> Transport:
    """Return the transport of our own topics.

    :param url: in place of ``transport_url``
    :param guarded: False: TLS is not required even with strict_transport, as the broker is only
        inspected
    :raises Misconfigured: the URL cannot be read, or the way there is refused
    """
    return _transport(conf, url or configured_url(conf), 'transport_url', guarded)


def nova_transport(conf: Any, url: str | None = None, *, guarded: bool = True) -> Transport:
    """Return the transport of Nova's topic, with Nova's queue settings.

    :param url: broker where [rpc] nova_transport_url is not set
    :param guarded: as for :func:`own_transport`
    :raises Misconfigured: the URL or an option for it cannot be read, or the way is refused
    """
    return _transport(conf, nova_url(conf, url), '[rpc] nova_transport_url', guarded)


def stay_in_process(conf: Any) -> None:
    """Let messages stay in this process where the configuration names no broker."""
    register_opts(conf)
    conf.set_default('transport_url', IN_PROCESS_URL)


def nova_url(conf: Any, url: str | None = None) -> str:
    """Return the URL of Nova's broker with Nova's queue settings.

    :param url: broker where [rpc] nova_transport_url is not set
    """
    url = conf.rpc.nova_transport_url or url or configured_url(conf)
    options = dict(conf.rpc.nova_rabbit_options)
    if not options:
        return url
    joint = '&' if '?' in url else '?'
    return f'{url}{joint}{urllib.parse.urlencode(options)}'


def _transport(conf: Any, url: str, option: str, guarded: bool) -> Transport:
    fix = 'Expected e.g. rabbit://user:password@host:5672/vhost'
    try:
        rpc_transport = Transport(conf, url)
    except om.InvalidTransportURL as e:
        problem = f'{masked(url)} cannot be used: {_without_secret(str(e), url)}'
        raise exceptions.Misconfigured(option=option, problem=problem, fix=fix) from None
    except Exception as e:  # the options' types raise any error for a query that they cannot read
        problem = f'{masked(url)}: {_without_secret(str(e), url)}'
        if url.partition('?')[2]:
            fix = 'Name options of [oslo_messaging_rabbit] only'
        raise exceptions.Misconfigured(option=option, problem=problem, fix=fix) from None
    if guarded:
        hosts = [] if rpc_transport.is_in_process else rpc_transport.url.hosts
        names = [host.hostname for host in hosts]
        exposure = clear_text.broker_exposure(names, rpc_transport.rabbit, rpc_transport.address)
        clear_text.warn_of_exposures(conf, exposure)
    return rpc_transport


def transports(conf: Any, *, guarded: bool = True) -> Iterator[tuple[str, Transport]]:
    """Yield each broker of a configuration: the option that names it, and a transport to clean up.

    :param guarded: as for :func:`own_transport`
    :raises Misconfigured: a URL cannot be read
    """
    yield 'transport_url', own_transport(conf, guarded=guarded)
    if conf.rpc.nova_enabled and (conf.rpc.nova_transport_url or conf.rpc.nova_rabbit_options):
        yield '[rpc] nova_transport_url', nova_transport(conf, guarded=guarded)


def service_defaults(conf: Any) -> None:
    """Set other defaults of [oslo_messaging_rabbit] than oslo.messaging's, for services.

    Reconnection within seconds of the broker's return (ten thousand hosts that come back at once
    are a herd), a bounded prefetch, and a heartbeat after which what a dead process held is
    redelivered in time.
    """
    register_opts(conf)
    for name, value in (
        ('rabbit_interval_max', RECONNECT_SECONDS_MOST),
        ('rabbit_qos_prefetch_count', PREFETCH_COUNT),
        ('heartbeat_timeout_threshold', HEARTBEAT_SECONDS),
    ):
        conf.set_default(name, value, group='oslo_messaging_rabbit')


def _without_secret(text: str, url: str) -> str:
    return text.replace(url, masked(url))


def wait_for_broker(
    transport: Transport,
    seconds: float,
    option: str = 'transport_url',
    is_stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until the broker takes a connection.

    :param seconds: how long to try a broker that does not answer; 0 means once
    :param option: the option that has its address
    :param is_stopping: returns whether to give up, called several times a second
    :returns: False where it gave up
    :raises BrokerUnavailable: it does not answer in time, or refuses us; nothing was started
    """
    end = time.monotonic() + seconds
    broker_address = transport.address
    while not is_stopping():
        try:
            transport.probe()
            return True
        except Exception as e:  # sockets, AMQP, TLS: whatever keeps us out is the reason
            seconds_left, reason = end - time.monotonic(), refusals.refusal_text(e)
            wrong_part = refusals.wrong_url_part(reason)
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
                'The message broker does not answer; the start waits for it: broker=%s '
                'seconds_left=%.0f error=%s',
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
