# SPDX-License-Identifier: Apache-2.0
"""The plain HTTP listener of a scheduler process: ``/metrics`` and ``/health``.

Read-only and without access control; what it shows has no secrets.
"""

import json
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref import simple_server

import prometheus_client
from prometheus_client import exposition

from gantt import exceptions
from gantt.conf import clear_text, listeners
from gantt.telemetry.metrics import MetricRegistry

HEALTH_PATH = '/health'

#: A silent peer is hung up on.
PEER_TIMEOUT_SECONDS = 10

#: The result of a health check: whether all is well, and the body of the answer.
Health = Callable[[], tuple[bool, dict[str, Any]]]


class ProbeListener:
    """A listener on a thread of its own."""

    def __init__(
        self,
        metrics: MetricRegistry,
        host: str,
        port: int,
        health: Health | None = None,
        option: str = '[DEFAULT] metrics_port',
    ) -> None:
        """Bind and serve.

        :param port: 0 takes a free one, see ``port`` of the object
        :param health: called for each ``/health``, in the thread of that connection; must
            end soon and not raise.  None: the path is not there
        :param option: option that sets the port
        :raises Misconfigured: the address cannot be bound
        """
        try:
            self._server = _bind(host, port, _listener_app(metrics, health))
        except OSError as e:
            raise exceptions.Misconfigured(
                option=option,
                problem=f'cannot listen on {host}:{port}: {e.strerror or e}',
                fix='Choose a port that no other process has, or 0 to have no listener',
            ) from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name='listener', daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Close the socket and join the thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def listen(
    metrics: MetricRegistry, conf: Any, group: str, number: int = 0, health: Health | None = None
) -> ProbeListener | None:
    """Start the configured listener; return None where none is configured.

    :param group: group of options, a key of ``conf.listeners.PROGRAMS``
    :param number: number of the worker process, each of which has a port of its own
    :raises Misconfigured: the address cannot be bound
    """
    ports = listeners.metrics(conf, group)
    if not ports.first:
        return None
    clear_text.warn_of_exposures(conf, clear_text.metrics_exposure(conf))
    return ProbeListener(metrics, ports.host, ports.first + number, health, ports.option)


class _SilentRequestHandler(simple_server.WSGIRequestHandler):
    """Logs no request."""

    timeout = PEER_TIMEOUT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def _bind(host: str, port: int, app: Any) -> simple_server.WSGIServer:
    family, *_, address = socket.getaddrinfo(host, port, flags=socket.AI_PASSIVE)[0]

    class ProbeServer(exposition.ThreadingWSGIServer):
        """A server for this address family only."""

        address_family = family

    return simple_server.make_server(str(address[0]), port, app, ProbeServer, _SilentRequestHandler)


def _listener_app(metrics: MetricRegistry, health: Health | None) -> Any:
    """Return the WSGI application; like Prometheus' own it shows metrics on any other path."""
    show = prometheus_client.make_wsgi_app(metrics.registry)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if health is None or environ.get('PATH_INFO', '').rstrip('/') != HEALTH_PATH:
            return show(environ, start_response)
        is_well, body = health()
        status = '200 OK' if is_well else '503 Service Unavailable'
        start_response(
            status, [('Content-Type', 'application/json'), ('Cache-Control', 'no-store')]
        )
        return [json.dumps(body).encode() + b'\n']

    return app
