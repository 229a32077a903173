# SPDX-License-Identifier: Apache-2.0
"""A client of the HTTP interface: calls, failures from its refusals, and authentication.

Credentials of keystone are found as by every OpenStack client: in ``clouds.yaml`` (``--os-cloud``,
``OS_CLOUD``) or in the environment (``OS_AUTH_URL`` and its kin).  Without any, requests have no
token.
"""

import contextlib
import enum
import json
import os
import re
import urllib.parse
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gantt.core.messages import expansion

#: Largest file that is read, in characters.
FILE_CHARACTERS_MAX = 16 << 20
DEFAULT_URL = 'http://127.0.0.1:8790'
VERSION = 'scheduler 1.0'
#: Version of Placement's interface, and the token that is sent without keystone.
PLACEMENT_VERSION = 'placement 1.39'
NO_AUTH_TOKEN = 'admin'  # nosec B105 # no password
LOG_IN_HINT = 'log in with --os-cloud, OS_CLOUD, or OS_AUTH_URL and its kin'


class Exit(enum.IntEnum):
    """Exit codes."""

    PLACED = 0
    TROUBLE = 1
    NO_VALID_HOST = 2
    CONFLICT = 3
    USAGE = 64


_EXIT_BY_ERROR = {'gantt.no_valid_host': Exit.NO_VALID_HOST, 'gantt.conflict': Exit.CONFLICT}


class Failure(Exception):
    """A message for standard error, with an exit code.

    :ivar error: the error object of the answer, empty where there was none
    :ivar notes: further lines
    """

    def __init__(
        self,
        message: str,
        exit_code: Exit = Exit.TROUBLE,
        error: dict[str, Any] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.error = error or {}
        self.notes = list(notes)

    def lines(self, program: str) -> list[str]:
        """Return the failure's sentence, then notes that help to go on, and the ids to quote."""
        error = self.error
        details = error.get('details') or {}
        lines = [f'{program}: {self.message}']
        reasons = details.get('explanation') or details.get('nearest') or ()
        lines.extend(f'  {line}'.rstrip() for line in (*reasons, *self.notes))
        decision = details.get('decision_id')
        if decision:
            lines.append(f'  the whole story: gantt explain {decision}')
        ids = {'code': error.get('code'), 'request id': error.get('request_id')}
        if any(ids.values()):
            lines.append('  ' + ', '.join(f'{key} {value}' for key, value in ids.items() if value))
        return lines


class OutcomeUnknown(Failure):
    """A failure after the request was sent, without an answer of Gantt: it may be executed."""


class OutputUnwritable(Failure):
    """A failure to write to standard output."""


class Endpoint:
    """A client of one Gantt API.

    :param url: e.g. ``http://127.0.0.1:8790``
    :param timeout: seconds for one call
    :param login: returns a token; called where the API requires authentication
    :param verify: authorities that verify the server's certificate: a file; True: the system's;
        False: no check
    :param version: microversion of requests
    """

    def __init__(
        self,
        url: str,
        timeout: float = 60.0,
        login: Callable[[], str] | None = None,
        verify: bool | str = True,
        version: str = VERSION,
    ) -> None:
        self.url = url.rstrip('/')
        self.timeout = timeout
        self._login = login
        self._can_log_in = login is not None
        self._verify = verify
        self._token = ''  # nosec B105 # no password
        self._version = version

    @property
    def placement(self) -> 'Endpoint':
        """Endpoint of Placement's interface at the same service.

        Without credentials requests are those of an administrator, as accepted without keystone.
        """
        login = self._login or (lambda: NO_AUTH_TOKEN)
        path = f'{self.url}/placement'
        endpoint = Endpoint(path, self.timeout, login, self._verify, PLACEMENT_VERSION)
        endpoint._can_log_in = self._can_log_in
        return endpoint

    def get(self, path: str, **query: Any) -> Any:
        """Return the JSON of a GET.  :raises Failure:"""
        return self.call('GET', path, query)

    def health(self) -> list[dict[str, Any]]:
        """Return the checks of a health check, each with ``name``, ``ok`` and ``detail``.

        :raises Failure: it is forbidden, or no server answers
        """
        return list(self.call('GET', '/v1/health', {}, accept_unhealthy=True).get('checks', []))

    def put(self, path: str, body: Any = None, **query: Any) -> Any:
        """Return the JSON of a PUT.  :raises Failure:"""
        return self.call('PUT', path, query, body)

    def post(self, path: str, body: Any, timeout: float | None = None, **query: Any) -> Any:
        """Return the JSON of a POST.  :raises Failure:"""
        return self.call('POST', path, query, body, timeout)

    def delete(self, path: str, **query: Any) -> Any:
        """Return the JSON of a DELETE.  :raises Failure:"""
        return self.call('DELETE', path, query)

    def call(
        self,
        method: str,
        path: str,
        query: dict[str, Any],
        body: Any = None,
        timeout: float | None = None,
        accept_unhealthy: bool = False,
    ) -> Any:
        """Send a request and return the JSON of its answer.

        :param accept_unhealthy: accept status 503, for a health check
        :raises Failure: refused, failed, or no server answers
        """
        import httpx2 as httpx  # takes longer to import than the rest of the command together

        content = encoded(body)
        params = query_text(query)
        is_plain = self.url.lower().startswith('http:')

        def once() -> Any:
            headers = {'OpenStack-API-Version': self._version, 'Accept': 'application/json'}
            if content is not None:
                headers['Content-Type'] = 'application/json'
            return httpx.request(
                method,
                self.url + path,
                params=params,
                content=content,
                headers=headers | ({'X-Auth-Token': self._token} if self._token else {}),
                timeout=httpx.Timeout(timeout or self.timeout, connect=10.0),
                # Authorities are read for each call, and that takes long: not for plain HTTP.
                verify=not is_plain and _tls_context(self._verify),
                trust_env=False,
            )

        try:
            answer = once()
            if answer.status_code == 401 and self._login is not None:
                # Nothing was executed.  A server that requires no token is sent none.
                self._token = self._login()
                answer = once()
        except httpx.TimeoutException as e:
            kind = Failure if isinstance(e, httpx.ConnectTimeout) else OutcomeUnknown
            raise kind(
                f'{self.url} did not answer within {timeout or self.timeout:g} s; '
                'look at "gantt status" or the log of gantt-api'
            ) from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as e:
            raise Failure(
                f'--endpoint {self.url!r} is no URL: {e}; expected the form {DEFAULT_URL}',
                Exit.USAGE,
            ) from None
        except httpx.TransportError as e:
            kind = Failure if isinstance(e, httpx.ConnectError) else OutcomeUnknown
            raise kind(
                f'nothing answers at {self.url} ({_error_reason(e)}); start gantt-api there, '
                'or name another with --endpoint or GANTT_ENDPOINT'
            ) from None
        return self._read_answer(answer, accept_unhealthy)

    def _read_answer(self, answer: Any, accept_unhealthy: bool = False) -> Any:
        request_id = answer.headers.get('x-openstack-request-id', '')
        if answer.status_code in (201, 204) and not answer.content:
            return {}
        try:
            body = answer.json()
            is_good = answer.status_code < 400 or (accept_unhealthy and 'checks' in body)
            if is_good and isinstance(body, dict):
                return body
            refused = failure_of(body)
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            raise OutcomeUnknown(
                f'{self.url} answers {answer.status_code} but not as Gantt does; '
                'is it the right endpoint?',
                error={'request_id': request_id, 'status': answer.status_code},
            ) from None
        if answer.status_code == 401 and not self._can_log_in:
            refused.message += f', or {LOG_IN_HINT}'
        raise refused


def failure_of(body: Any) -> Failure:
    """Return the failure that the body of an answer describes.

    :raises ValueError, KeyError, IndexError, TypeError: the body is not an answer of Gantt
    """
    error = body['errors'][0]
    # Placement returns a sentence about the status first, and the cause below it.
    message = error['detail'].rpartition('\n\n')[2].strip()
    return Failure(message, _EXIT_BY_ERROR.get(error['code'], Exit.TROUBLE), error)


def encoded(body: Any) -> bytes | None:
    """Encode a body as JSON.  :raises Failure: the body has a value that JSON cannot express"""
    if body is None:
        return None
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as e:
        raise Failure(f'the request cannot be sent as JSON: {e}', Exit.USAGE) from None


def _tls_context(verify: bool | str) -> Any:
    import ssl

    return ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify


def query_text(query: dict[str, Any]) -> dict[str, str]:
    """Return a query as text; without what is None, or False."""
    return {
        name: 'true' if value is True else str(value)
        for name, value in query.items()
        if value is not None and value is not False
    }


def _error_reason(error: Exception) -> str:
    text = str(error)
    at = text.find('] ')
    return (text[at + 2 :] if text.startswith('[Errno') and at > 0 else text).lower() or 'no answer'


def load_body(path: str, instead: str = 'name one that is there, or "-"') -> Any:
    """Load a JSON or YAML file; ``-`` is standard input.

    :param instead: advice where there is no such file
    :raises Failure: it cannot be read
    """
    import sys

    try:
        if path == '-':
            text = sys.stdin.read(FILE_CHARACTERS_MAX + 1)
        else:
            with open(path, encoding='utf-8') as file:
                text = file.read(FILE_CHARACTERS_MAX + 1)
    except UnicodeDecodeError as e:
        raise Failure(f'{path}: is not text in UTF-8: {e}', Exit.USAGE) from None
    except FileNotFoundError as e:
        raise Failure(f'{path}: {e.strerror}; {instead}', Exit.USAGE) from None
    except OSError as e:
        raise Failure(f'{path}: {e.strerror or e}', Exit.USAGE) from None
    if len(text) > FILE_CHARACTERS_MAX:
        raise Failure(f'{path}: expected at most {FILE_CHARACTERS_MAX:,} characters', Exit.USAGE)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    import yaml

    try:
        return expansion.load_document(yaml.SafeLoader(text))
    except expansion.DocumentTooLarge as e:
        raise Failure(f'{path}: {e}', Exit.USAGE) from None
    except (yaml.YAMLError, *expansion.CONSTRUCTOR_ERRORS) as e:
        raise Failure(f'{path}: neither JSON nor YAML: {_problem_of_yaml(e)}', Exit.USAGE) from None


def _problem_of_yaml(error: Exception) -> str:
    """Return a parser's problem with its position on one line, where it has one."""
    problem, mark = getattr(error, 'problem', None), getattr(error, 'problem_mark', None)
    if not problem or mark is None:
        return str(error)
    return f'line {mark.line + 1}, column {mark.column + 1}: {problem}'


SERVICE_TYPE = 'scheduler'
#: Any of these means that there are credentials in the environment.
LOGIN_VARIABLES = ('OS_CLOUD', 'OS_AUTH_URL', 'OS_AUTH_TYPE')
#: A missing option in keystoneauth's messages, where it is not validated before its use.
_MISSING_SETTING = re.compile(r"(?:argument: '(\w+)'|(\w+) is a required attribute)$")


def endpoint_of(url: str | None, cloud: str | None, timeout: float) -> Endpoint:
    """Return the endpoint of the API.

    :param url: URL as given by the caller; None: the URL in the catalog, or else the default
    :param cloud: name of the cloud in ``clouds.yaml``; None: the environment's cloud
    :raises Failure: there is no such cloud, or nothing of Gantt in its catalog
    """
    if not cloud and not any(os.environ.get(name) for name in LOGIN_VARIABLES):
        return Endpoint(url or DEFAULT_URL, timeout)
    login = Login(cloud)
    return Endpoint(url or login.url(), timeout, login.token, login.verify)


class Login:
    """A cloud with our credentials.  Keystone is contacted on the first use."""

    def __init__(self, cloud: str | None = None) -> None:
        """Load the credentials.  :raises Failure: incomplete, or there is no such cloud"""
        from keystoneauth1 import exceptions as identity  # like openstack: slow to import
        from openstack import config, exceptions

        self._identity_errors = identity.ClientException
        self._endpoint_not_found = identity.EndpointNotFound
        self._token_was_given = False
        try:
            with warnings.catch_warnings():
                # Deprecation warnings of the library about itself.
                warnings.simplefilter('ignore')
                loaded = config.OpenStackConfig(app_name='gantt')
                self._region = loaded.get_one(cloud=cloud or None)
                self._session = self._region.get_session()
        except identity.MissingRequiredOptions as e:
            raise _missing_settings(option.dest for option in e.options) from None
        except (exceptions.SDKException, identity.ClientException, OSError) as e:
            raise _unusable_failure(_first_line(e)) from None
        except Exception as e:  # it takes files and variables as they are
            raise _unknown_answer_failure(e) from None
        _check_url(self._region.config)

    def token(self) -> str:
        """Return a valid token.  :raises Failure:"""
        with self._translating_errors('gives no token'):
            if self._token_was_given:  # and refused
                self._session.invalidate()
            self._token_was_given = True
            return self._session.get_token() or ''

    def url(self) -> str:
        """Return the URL of the API in the catalog.  :raises Failure:"""
        configured = self._region.get_endpoint(SERVICE_TYPE)
        endpoint = None
        with (
            self._translating_errors('tells no catalog'),
            contextlib.suppress(self._endpoint_not_found),
        ):
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
    def _translating_errors(self, failed: str) -> Iterator[None]:
        """Translate errors of the library.  :raises Failure: in place of them"""
        try:
            yield
        except self._identity_errors as e:
            raise Failure(f'keystone {failed}: {_first_line(e)}') from None
        except Exception as e:  # some credentials are validated only when they are sent
            raise _unknown_answer_failure(e) from None


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
        raise _unusable_failure(
            f'OS_AUTH_URL (auth_url in clouds.yaml): expected e.g. https://keystone:5000/v3, '
            f'got {url!r}'
        )


def _unknown_answer_failure(error: Exception) -> Failure:
    lacks = _MISSING_SETTING.search(_first_line(error))
    if lacks:
        return _missing_settings([lacks[1] or lacks[2]])
    return _unusable_failure(
        f'clouds.yaml or a variable OS_... is not of the form that is expected: '
        f'{type(error).__name__}: {_first_line(error)}'
    )


def _missing_settings(names: Iterable[str]) -> Failure:
    words = [f'OS_{name.upper()} ({name} in clouds.yaml)' for name in names]
    return _unusable_failure(f'set {" and ".join(words)}')


def _unusable_failure(problem: str) -> Failure:
    return Failure(f'the credentials cannot be used: {problem}', Exit.USAGE)


def _first_line(error: Exception) -> str:
    return ' '.join(str(error).split()) or type(error).__name__
