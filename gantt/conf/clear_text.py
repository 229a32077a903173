# SPDX-License-Identifier: Apache-2.0
"""Checks of connections in clear text, or without proof of the server.

It is said loudly when a process starts, is an error for the doctor, and with
``[DEFAULT] strict_transport`` the process does not start.
"""

import logging
from typing import Any, NamedTuple

from gantt import exceptions

LOG = logging.getLogger(__name__)

#: Addresses that no other machine can listen in on.
_LOOPBACK_NAMES = ('', 'localhost', '::1')
_VERIFYING_SSL_MODES = ('verify-ca', 'verify-full')


class Exposure(NamedTuple):
    """A connection or listener without TLS, or without proof of who the server is.

    :ivar option: the option that is to be changed
    :ivar value: value of the option, without secrets
    :ivar problem: who on the network may read or forge what
    """

    option: str
    value: str
    problem: str
    fix: str


def is_local(host: str | None) -> bool:
    """Return whether a host is this machine, or a socket on it."""
    host = host or ''
    return host in _LOOPBACK_NAMES or host.startswith(('127.', '/'))


def broker_exposure(hosts: list[str | None], rabbit: Any, shown: str) -> Exposure | None:
    """Return the exposure of the connection to a broker; None: it is local, or verified TLS.

    :param hosts: host names of the broker's nodes
    :param rabbit: options of [oslo_messaging_rabbit] in force
    :param shown: the broker's url, without its password
    """
    if all(map(is_local, hosts)):
        return None
    if not rabbit.ssl:
        return Exposure(
            '[oslo_messaging_rabbit] ssl',
            'False',
            f'to {shown} the password and every message cross the network in clear, and whoever '
            'answers at that address is believed',
            'Set ssl = true and ssl_ca_file',
        )
    if not rabbit.ssl_ca_file:
        return Exposure(
            '[oslo_messaging_rabbit] ssl_ca_file',
            '(none)',
            f'the name in the certificate is not compared with that of the broker at {shown}: '
            'whoever has any certificate of a public authority may be the broker',
            'Name the file of the authority that signed the certificate of the broker',
        )
    return None


def database_exposure(url: Any, parameters: str = '') -> Exposure | None:
    """Return the exposure of the connection to a database; None: there is none.

    :param url: SQLAlchemy's URL of the database :param parameters: [database] connection_parameters
    """
    if url.get_backend_name() == 'sqlite' or is_local(url.host):
        return None
    parameters_found = {
        **url.query,
        **dict(p.split('=', 1) for p in parameters.split('&') if '=' in p),
    }
    if url.get_backend_name() == 'postgresql':
        is_safe = parameters_found.get('sslmode') in _VERIFYING_SSL_MODES
        fix = 'Add ?sslmode=verify-full&sslrootcert=FILE'
    else:
        is_safe = 'ssl_ca' in parameters_found
        fix = 'Add ?ssl_ca=FILE'
    if is_safe:
        return None
    return Exposure(
        '[database] connection',
        url.render_as_string(hide_password=True),
        'whoever answers at that address is taken for the database, and may read along',
        fix,
    )


def listener_exposure(option: str, host: str, what: str) -> Exposure | None:
    """Return the exposure of an address that is listened on without TLS, if any.

    :param what: what crosses the network there, for the message
    """
    if is_local(host):
        return None
    return Exposure(
        option,
        host,
        f'{what} cross the network in clear',
        'Listen on 127.0.0.1, behind a proxy on this machine that speaks TLS',
    )


def api_exposure(conf: Any) -> Exposure | None:
    """Return the exposure of the address of gantt-api, if any."""
    return listener_exposure('[api] host', str(conf.api.host), 'tokens, requests and answers')


def metrics_exposure(conf: Any) -> Exposure | None:
    """Return the exposure of the address of metrics, if any."""
    crossing = 'figures and health, which anybody may ask for,'
    return listener_exposure('[DEFAULT] metrics_host', str(conf.metrics_host), crossing)


def warn_of_exposures(conf: Any, exposure: Exposure | None) -> None:
    """Warn of exposures at the start of a process.

    :raises Misconfigured: [DEFAULT] strict_transport is set
    """
    if exposure is None:
        return
    # A client in another program has no such option.
    if getattr(conf, 'strict_transport', False):
        raise exceptions.Misconfigured(
            option=exposure.option,
            problem=f'{exposure.value}: {exposure.problem}, and [DEFAULT] strict_transport is set',
            fix=exposure.fix,
        )
    LOG.warning('Connection is in clear text: option=%s value=%s problem=%s fix=%s', *exposure)
