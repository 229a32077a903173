# SPDX-License-Identifier: Apache-2.0
"""A waitress server on a thread: for ``gantt-api``, the demo and the tests."""

import functools
import logging
import resource
import threading
import time
from collections.abc import Callable

import waitress
from waitress.server import BaseWSGIServer, MultiSocketServer

from gantt import exceptions, private_names
from gantt.http import fair_tasks, settings
from gantt.http.middleware import Wsgi

_POLL_SECONDS = 0.02
#: Bytes that waitress reads before the application can refuse a body itself.
_READ_BYTES_MAX = 16 << 20
#: Bytes of a connection's body that are held in memory: the rest waits in a file.
_BODY_MEMORY_BYTES = 8192
#: Bytes read at once: after each read the one reading thread waits for the interpreter's lock.
_RECEIVE_BYTES = 1 << 16
#: Bytes from which on a part of an answer is sent: more than its head has, so that the caller, who
#: would wake for the head alone, wakes once.
_SEND_BYTES_MIN = 1024
#: Number of open files of a process besides those of connections.
_RESERVED_FILES = 256
#: Logger of a line for each request that waits for a thread: too many under load.
_QUEUE_LOG = logging.getLogger('waitress.queue')


class HttpServer:
    """A waitress server on a thread of its own, which loses no request at its end."""

    def __init__(
        self,
        app: Wsgi,
        host: str,
        port: int,
        threads: int = 16,
        *,
        connections_max: int = 500,
        idle_seconds: int = 60,
    ) -> None:
        """Bind the address.

        :param port: 0 takes a free one, see ``port`` of the object
        :param connections_max: most connections open at once; further ones wait
        :param idle_seconds: seconds without data after which a connection is closed
        :raises Misconfigured: the address cannot be bound, or the release of waitress is another
        """
        private_names.check('waitress')
        owners, sockets = fair_tasks.TokenOwners(), fair_tasks.PolledSockets()
        _QUEUE_LOG.setLevel(logging.ERROR)
        _raise_file_limit(2 * connections_max + _RESERVED_FILES)
        try:
            server = waitress.create_server(
                fair_tasks.remembering_projects(app, owners),
                sockets,
                host=host,
                port=port,
                threads=threads,
                ident='gantt',
                connection_limit=connections_max,
                # select() knows descriptors below 1024 only, and there are others than these.
                asyncore_use_poll=True,
                channel_timeout=idle_seconds,
                cleanup_interval=max(1, min(30, idle_seconds // 2)),
                max_request_body_size=_READ_BYTES_MAX,
                inbuf_overflow=_BODY_MEMORY_BYTES,
                recv_bytes=_RECEIVE_BYTES,
                clear_untrusted_proxy_headers=False,
            )
        except OSError as e:
            raise exceptions.Misconfigured(
                option='[api] port',
                problem=f'cannot listen on {host}:{port}: {e.strerror or e}',
                fix='Choose a free port, or stop what listens there',
            ) from None
        # Not by the argument, which warns that a later release may not have it.
        server.adj.send_bytes = _SEND_BYTES_MIN
        self._server = server
        # Nothing waits yet, and its threads read the attribute each time.
        dispatcher = server.task_dispatcher
        dispatcher.queue = fair_tasks.FairTasks(
            owners,
            settings.placement_threads(threads),
            settings.threads_of_one_project(threads),
            dispatcher,
            sockets,
        )
        self.host = host
        self.port: int = self._listeners[0].socket.getsockname()[1]
        self._thread = threading.Thread(target=server.run, name='http', daemon=True)

    @property
    def _listeners(self) -> list[BaseWSGIServer]:
        server = self._server
        if isinstance(server, MultiSocketServer):
            return [
                listener for listener in server.map.values() if isinstance(listener, BaseWSGIServer)
            ]
        return [server]

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Refuse new connections and finish the others; return whether that was in time."""
        listeners = self._listeners
        for listener in listeners:
            _run_in_loop(listener, functools.partial(_stop_accepting, listener))
        end = time.monotonic() + seconds
        while self._is_busy(listeners) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        done = not self._is_busy(listeners)
        for listener in listeners:
            listener.task_dispatcher.shutdown(timeout=1)
            _run_in_loop(listener, functools.partial(_close_connections, listener))
        self._thread.join(5)
        return done

    @staticmethod
    def _is_busy(listeners: list[BaseWSGIServer]) -> bool:
        return any(
            channel.requests or channel.total_outbufs_len
            for listener in listeners
            for channel in list(listener.active_channels.values())
        )


def _raise_file_limit(most: int) -> None:
    """Raise the limit of open files of this process, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _run_in_loop(listener: BaseWSGIServer, act: Callable[[], None]) -> None:
    """Let the thread of waitress's loop run ``act``, soon.

    The wake-up is written under the lock that the loop takes to run ``act``: an ``act`` that closes
    the trigger cannot run before, and no write meets a descriptor that was reused by then.
    """
    with listener.trigger.lock:
        listener.trigger.thunks.append(act)
        listener.trigger.pull_trigger()


def _stop_accepting(listener: BaseWSGIServer) -> None:
    listener.del_channel(listener._map)
    listener.socket.close()


def _close_connections(listener: BaseWSGIServer) -> None:
    for channel in list(listener.active_channels.values()):
        channel.handle_close()
    listener.trigger.handle_close()
