# SPDX-License-Identifier: Apache-2.0
"""By what this zone is known to those below: application credentials of their identity service.

The database has the name of a credential; the secret is in a file that this process alone reads,
a section for each name: ``auth_url``, ``application_credential_id`` and
``application_credential_secret``.  A zone without one is on this machine, where nobody is asked.
"""

import configparser
import ipaddress
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from gantt import exceptions
from gantt.core.zones.messages import ZoneRecord

FIELDS = ('auth_url', 'application_credential_id', 'application_credential_secret')
#: Seconds that the identity service of another zone may take.
LOGIN_SECONDS = 5.0


class ZoneCredentials:
    """Headers for calls to zones below.

    :param path: of the file of credentials; '': there is none
    :param own_uuid: of this zone: what it calls itself where nobody is asked for a token
    """

    def __init__(self, path: str, own_uuid: Callable[[], str]) -> None:
        self._path, self._own_uuid = path, own_uuid
        self._plugins: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, zone: ZoneRecord) -> Mapping[str, str]:
        """:raises Misconfigured, Unavailable: names the credential"""
        if not zone.credential:
            if not is_loopback(zone.url):
                raise exceptions.Misconfigured(
                    option=f'zone {zone.name}',
                    problem='it is on another machine and has no credential',
                    fix='Name one with "gantt zone set --credential"',
                )
            return {'X-User-Id': self._own_uuid()}
        return self._token(zone.credential)

    def forget(self, zone: ZoneRecord) -> bool:
        """Its token is refused there: the next call reads the file and logs in anew.

        :returns: whether that may help
        """
        with self._lock:
            return self._plugins.pop(zone.credential, None) is not None

    def _token(self, name: str) -> Mapping[str, str]:
        from keystoneauth1 import exceptions as keystone_errors
        from keystoneauth1 import session

        with self._lock:
            plugin = self._plugins.get(name)
            if plugin is None:
                plugin = self._plugins[name] = self._plugin(name)
        try:
            found = plugin.get_token(session.Session(timeout=LOGIN_SECONDS))
        except keystone_errors.ClientException as e:
            with self._lock:  # the file may have another secret by now
                self._plugins.pop(name, None)
            raise exceptions.Unavailable(f'credential {name!r}: no token: {e}') from None
        return {'X-Auth-Token': found}

    def _plugin(self, name: str) -> Any:
        from keystoneauth1.identity import v3

        known = configparser.ConfigParser(interpolation=None)
        try:
            is_read = bool(self._path and known.read(self._path))
        except (configparser.Error, UnicodeError) as e:
            # The error has the line in it, and that may be a secret.
            raise exceptions.Misconfigured(
                option='[zones] credentials_file',
                problem=f'{self._path} is no file of sections with a NAME = VALUE on each line '
                f'({type(e).__name__})',
                fix='Write a section for each credential',
            ) from None
        if not is_read:
            raise exceptions.Misconfigured(
                option='[zones] credentials_file',
                problem=f'{self._path or "nothing"} cannot be read, and credential {name!r} '
                'is to be there',
                fix='Name a file with a section for each credential',
            )
        missing = [one for one in FIELDS if not known.get(name, one, fallback='')]
        if missing:
            raise exceptions.Misconfigured(
                option='[zones] credentials_file',
                problem=f'section {name!r} has no {", ".join(missing)}',
                fix='Write it there',
            )
        auth_url, identity, secret = (known.get(name, one) for one in FIELDS)
        return v3.ApplicationCredential(
            auth_url=auth_url,
            application_credential_id=identity,
            application_credential_secret=secret,
        )


def is_loopback(url: str) -> bool:
    """Whether an address is of this machine."""
    host = urlsplit(url).hostname or ''
    if host == 'localhost':
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
