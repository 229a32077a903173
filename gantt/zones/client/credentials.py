# SPDX-License-Identifier: Apache-2.0
"""Credentials of this zone towards child zones, and of child zones towards it.

The database has the name of a credential; the secret is in a file that only this process reads,
with a section for each name.  ``auth_url``, ``application_credential_id`` and
``application_credential_secret`` are of the identity service of the zone; ``certificate`` and
``key`` are files that this zone presents when a connection is opened.  ``ca_file`` has the
authorities that are trusted there, in place of those of the system, and ``server_sha256`` is the
digest of the one certificate that is.  A zone without a credential is on this machine, where no
token is needed.
"""

import configparser
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gantt import exceptions
from gantt.zones.model.addresses import is_in_clear, is_loopback
from gantt.zones.model.messages import ZoneRecord

LOGIN_FIELDS = ('auth_url', 'application_credential_id', 'application_credential_secret')
CERTIFICATE_FIELDS = ('certificate', 'key')
FIELDS = frozenset({*LOGIN_FIELDS, *CERTIFICATE_FIELDS, 'ca_file', 'server_sha256'})
#: Seconds that the identity service of another zone may take.
LOGIN_SECONDS = 5.0
CREDENTIALS_FILE_OPTION = '[zones] credentials_file'


class ZoneTls(msgspec.Struct, frozen=True):
    """TLS settings of connections to a zone.

    :ivar context: None: the trust store of the system
    :ivar pin: SHA-256 of the certificate that the zone has to present, as hexadecimal digits; '':
        any valid one
    """

    context: ssl.SSLContext | None = None
    pin: str = ''


class ZoneCredentials:
    """Headers for calls to child zones, and TLS settings of these connections.

    :param path: path of the file of credentials; '': there is none
    :param own_uuid: uuid of this zone: its name where no token is needed
    """

    def __init__(self, path: str, own_uuid: Callable[[], str]) -> None:
        self._path = path
        self._own_uuid = own_uuid
        self._auth_plugins: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, zone: ZoneRecord) -> Mapping[str, str]:
        """Return the headers of a call.

        :raises Misconfigured, Unavailable: names the credential
        """
        if is_in_clear(zone.url):
            raise exceptions.Misconfigured(
                option=f'zone {zone.name}',
                problem=f'its url is {zone.url}: whoever is on the way reads what is sent',
                fix='Give one that begins with https://, with "gantt zone set --url"',
            )
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
        """Forget a token that is refused: the next call reads the file and logs in anew.

        :returns: whether a repeated call may succeed
        """
        with self._lock:
            return self._auth_plugins.pop(zone.credential, None) is not None

    def tls(self, zone: ZoneRecord) -> ZoneTls:
        """Return the TLS settings of connections to a zone, read anew.

        :raises Misconfigured: names the field of the section, or the file
        """
        if not zone.credential:
            return ZoneTls()
        section = self._section(zone.credential)
        pin = section.get('server_sha256', '').lower().replace(':', '')
        if not {'ca_file', *CERTIFICATE_FIELDS} & section.keys():
            return ZoneTls(None, pin)
        try:
            context = ssl.create_default_context(cafile=section.get('ca_file'))
            if 'certificate' in section:
                context.load_cert_chain(section['certificate'], section.get('key'))
        except (OSError, ValueError) as e:  # an SSLError is one of the first
            files = ', '.join(
                f'{name} {section[name]}'
                for name in ('ca_file', *CERTIFICATE_FIELDS)
                if name in section
            )
            raise _misconfigured(
                zone.credential, f'{files}: {e}', 'Name files in PEM form'
            ) from None
        return ZoneTls(context, pin)

    # -- inside ------------------------------------------------------------------------
    def _token(self, name: str) -> Mapping[str, str]:
        from keystoneauth1 import exceptions as keystone_errors
        from keystoneauth1 import session

        with self._lock:
            login = self._auth_plugins.get(name)
            if login is None:
                section = self._section(name)
                if not set(LOGIN_FIELDS) & section.keys():
                    # It is known by its certificate.
                    return {'X-User-Id': self._own_uuid()}
                login = self._auth_plugins[name] = (
                    _auth_plugin(name, section),
                    section.get('ca_file', True),
                )
        plugin, verify = login
        try:
            token = plugin.get_token(session.Session(timeout=LOGIN_SECONDS, verify=verify))
        except (keystone_errors.ClientException, OSError) as e:
            with self._lock:  # the file may have another secret by now
                self._auth_plugins.pop(name, None)
            raise exceptions.Unavailable(f'credential {name!r}: no token: {e}') from None
        return {'X-Auth-Token': token}

    def _section(self, name: str) -> Mapping[str, str]:
        """Return a credential's section of the file.  :raises Misconfigured: names the field"""
        parser = configparser.ConfigParser(interpolation=None)
        try:
            is_read = bool(self._path and parser.read(self._path))
        except (configparser.Error, UnicodeError) as e:
            # The error has the line in it, and that may be a secret.
            raise exceptions.Misconfigured(
                option=CREDENTIALS_FILE_OPTION,
                problem=f'{self._path} is no file of sections with a NAME = VALUE on each line '
                f'({type(e).__name__})',
                fix='Write a section for each credential',
            ) from None
        if not is_read:
            raise exceptions.Misconfigured(
                option=CREDENTIALS_FILE_OPTION,
                problem=f'{self._path or "nothing"} cannot be read, and credential {name!r} '
                'is to be there',
                fix='Name a file with a section for each credential',
            )
        section = (
            {field: text for field, text in parser[name].items() if text}
            if parser.has_section(name)
            else {}
        )
        unknown = sorted(section.keys() - FIELDS)
        if unknown:
            raise _misconfigured(
                name, f'{unknown[0]} is not known', f'Expected of {", ".join(sorted(FIELDS))}'
            )
        needed = (
            LOGIN_FIELDS
            if set(LOGIN_FIELDS) & section.keys() or 'certificate' not in section
            else CERTIFICATE_FIELDS
        )
        missing = [field for field in needed if field not in section]
        if missing:
            raise _misconfigured(name, f'has no {", ".join(missing)}', 'Write it there')
        if is_in_clear(section.get('auth_url', 'https:')):
            raise _misconfigured(
                name,
                f'auth_url is {section["auth_url"]}: whoever is on the way reads the secret',
                'Give one that begins with https://',
            )
        return section


def _misconfigured(name: str, problem: str, fix: str) -> exceptions.Misconfigured:
    return exceptions.Misconfigured(
        option=CREDENTIALS_FILE_OPTION, problem=f'section {name!r}: {problem}', fix=fix
    )


def _auth_plugin(name: str, section: Mapping[str, str]) -> Any:
    from keystoneauth1.identity import v3

    auth_url, identity, secret = (section[field] for field in LOGIN_FIELDS)
    return v3.ApplicationCredential(
        auth_url=auth_url,
        application_credential_id=identity,
        application_credential_secret=secret,
    )
