# SPDX-License-Identifier: Apache-2.0
"""Authentication: credentials of keystone, as every OpenStack client finds them.

They are read from ``clouds.yaml`` (``--os-cloud``, ``OS_CLOUD``) or the
environment (``OS_AUTH_URL`` and its kin).  Without any, requests have no token.
"""

import contextlib
import os
import re
import urllib.parse
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from gantt.cli.endpoint import DEFAULT, Endpoint, Exit, Failure

SERVICE_TYPE = 'scheduler'
#: Any of these means that there are credentials in the environment.
VARIABLES = ('OS_CLOUD', 'OS_AUTH_URL', 'OS_AUTH_TYPE')
#: A missing option in keystoneauth's messages, where it is not validated before its use.
_LACKS = re.compile(r"(?:argument: '(\w+)'|(\w+) is a required attribute)$")


def endpoint_of(url: str | None, cloud: str | None, timeout: float) -> Endpoint:
    """Return the endpoint of the API.

    :param url: as given by the caller; None: that of the catalog, or else the default
    :param cloud: its name in ``clouds.yaml``; None: that of the environment
    :raises Failure: there is no such cloud, or nothing of Gantt in its catalog
    """
    if not cloud and not any(os.environ.get(name) for name in VARIABLES):
        return Endpoint(url or DEFAULT, timeout)
    login = Login(cloud)
    return Endpoint(url or login.url(), timeout, login.token, login.verify)


class Login:
    """A cloud with our credentials.  Keystone is contacted on the first use."""

    def __init__(self, cloud: str | None = None) -> None:
        """Load the credentials.  :raises Failure: incomplete, or there is no such cloud"""
        from keystoneauth1 import exceptions as identity  # like openstack: slow to import
        from openstack import config, exceptions

        self._errors = identity.ClientException
        self._nowhere = identity.EndpointNotFound
        self._given = False
        try:
            with warnings.catch_warnings():
                # Deprecation warnings of the library about itself.
                warnings.simplefilter('ignore')
                loaded = config.OpenStackConfig(app_name='gantt')
                self._region = loaded.get_one(cloud=cloud or None)
                self._session = self._region.get_session()
        except identity.MissingRequiredOptions as e:
            raise _lacking(option.dest for option in e.options) from None
        except (exceptions.SDKException, identity.ClientException, OSError) as e:
            raise _unusable(_line(e)) from None
        except Exception as e:  # it takes files and variables as they are
            raise _not_understood(e) from None
        _check_url(self._region.config)

    def token(self) -> str:
        """Return a valid token.  :raises Failure:"""
        with self._querying('gives no token'):
            if self._given:  # and refused
                self._session.invalidate()
            self._given = True
            return self._session.get_token() or ''

    def url(self) -> str:
        """Return the URL of the API in the catalog.  :raises Failure:"""
        configured = self._region.get_endpoint(SERVICE_TYPE)
        endpoint = None
        with self._querying('tells no catalog'), contextlib.suppress(self._nowhere):
            endpoint = configured or self._session.get_endpoint(
                service_type=SERVICE_TYPE,
                region_name=self._region.get_region_name(SERVICE_TYPE),
                interface=self._region.get_interface(SERVICE_TYPE),
            )
        if not endpoint:
            raise Failure(
                f'the catalog has no service of the type {SERVICE_TYPE}; '
                'name the API with --endpoint or GANTT_ENDPOINT'
            )
        return str(endpoint)

    @property
    def verify(self) -> Any:
        """The authorities that verify the certificate of the API: a file, or True, or False."""
        return self._session.verify

    @contextlib.contextmanager
    def _querying(self, failed: str) -> Iterator[None]:
        """Translate errors of the library.  :raises Failure: in place of them"""
        try:
            yield
        except self._errors as e:
            raise Failure(f'keystone {failed}: {_line(e)}') from None
        except Exception as e:  # some credentials are validated only when they are sent
            raise _not_understood(e) from None


def _check_url(config: dict[str, Any]) -> None:
    """Check the URL of keystone.  :raises Failure: it is invalid"""
    url = (config.get('auth') or {}).get('auth_url')
    if url is None:
        return  # a way to log in that needs none
    try:
        parts = urllib.parse.urlsplit(str(url))
        good = parts.scheme in ('http', 'https') and bool(parts.hostname)
    except ValueError:
        good = False
    if not good:
        raise _unusable(
            f'OS_AUTH_URL (auth_url in clouds.yaml): expected e.g. https://keystone:5000/v3, '
            f'got {url!r}'
        )


def _not_understood(error: Exception) -> Failure:
    lacks = _LACKS.search(_line(error))
    if lacks:
        return _lacking([lacks[1] or lacks[2]])
    return _unusable(
        f'clouds.yaml or a variable OS_... is not of the form that is expected: '
        f'{type(error).__name__}: {_line(error)}'
    )


def _lacking(names: Iterable[str]) -> Failure:
    words = [f'OS_{name.upper()} ({name} in clouds.yaml)' for name in names]
    return _unusable(f'set {" and ".join(words)}')


def _unusable(problem: str) -> Failure:
    return Failure(f'the credentials cannot be used: {problem}', Exit.USAGE)


def _line(error: Exception) -> str:
    return ' '.join(str(error).split()) or type(error).__name__
