# SPDX-License-Identifier: Apache-2.0
"""Protection against requests that a browser sends in the name of its user for other pages.

A page of another site can send many requests without a preflight (a form, a script with
``no-cors``), and by a name of its own that leads to this address (DNS rebinding) it can also read
the answers.  With tokens neither is of use, since the browser has none to add; under ``noauth``
every caller that reaches the address may do everything.
"""

import ipaddress
import socket
from urllib.parse import urlsplit

import falcon

from gantt import exceptions
from gantt.core.messages import base, quoting
from gantt.http.settings import HttpSettings

_SAFE_METHODS = ('GET', 'HEAD', 'OPTIONS')
#: Values of ``Sec-Fetch-Site``, which only the browser sets: our own page, or the user.
_OWN_FETCH_SITES = ('same-origin', 'none')
_LOCAL_NAME = 'localhost'


class ForeignOrigin(exceptions.Refused):
    """A page of another origin asks for a change."""

    code = 'gantt.foreign_origin'
    http_status = 403
    template = (
        'a page of origin {origin} may not change anything here; '
        '[api] cors_allowed_origins names those that may'
    )


class ForeignHost(exceptions.Refused):
    """Error for a request to a host name that this service does not have."""

    code = 'gantt.foreign_host'
    http_status = 421
    template = (
        'host {host} is not served here; without tokens only addresses, localhost and the names '
        'in [api] served_names are'
    )


class OriginCheck:
    """Falcon middleware: refuses changes by other origins, and foreign names if enabled.

    :param checks_host_names: whether host names are checked: without tokens, a page at a foreign
        name could do everything
    """

    def __init__(self, settings: HttpSettings, checks_host_names: bool) -> None:
        self._allowed = frozenset(settings.cors_allowed_origins)
        self._names: frozenset[str] | None = None
        if checks_host_names:
            names = (*settings.served_names, _LOCAL_NAME, socket.gethostname())
            self._names = frozenset(name.lower() for name in names)

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Check origin and host name.

        :raises ForeignOrigin, ForeignHost:
        """
        host = req.get_header('Host') or ''
        if self._names is not None and host and not self._is_served(host):
            raise ForeignHost(host=quoting.quoted(host, base.NAME_MAX))
        if req.method not in _SAFE_METHODS:
            self._check_origin(req, host)

    def _is_served(self, host: str) -> bool:
        try:
            name = (urlsplit(f'//{host}').hostname or '').rstrip('.')
        except ValueError:
            return False
        if name in (self._names or ()) or name.endswith(f'.{_LOCAL_NAME}'):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _check_origin(self, req: falcon.Request, host: str) -> None:
        origin, site = req.get_header('Origin'), req.get_header('Sec-Fetch-Site')
        if origin in self._allowed or '*' in self._allowed:
            return
        # Browsers omit Sec-Fetch-Site on plain HTTP to other machines: then the origin decides.
        ours = (
            site in _OWN_FETCH_SITES
            if site
            else origin is None or _has_same_host(origin, req, host)
        )
        if not ours:
            raise ForeignOrigin(origin=quoting.quoted(origin or site, base.NAME_MAX))


def _has_same_host(origin: str, req: falcon.Request, host: str) -> bool:
    """Return whether an origin has the requested host; its scheme may have ended at a proxy."""
    try:
        origin_host = urlsplit(origin).netloc.lower()
    except ValueError:
        return False
    return bool(origin_host) and origin_host in (host.lower(), req.netloc.lower())
