# SPDX-License-Identifier: Apache-2.0
"""A client of the HTTP interface: calls, and failures from its refusals."""

import enum
import json
from collections.abc import Callable, Sequence
from typing import Any

DEFAULT = 'http://127.0.0.1:8790'
VERSION = 'scheduler 1.0'
#: Version of Placement's interface, and the token that is sent without keystone.
PLACEMENT_VERSION = 'placement 1.39'
NO_AUTH_TOKEN = 'admin'  # nosec B105 # no password
LOG_IN = 'log in with --os-cloud, OS_CLOUD, or OS_AUTH_URL and its kin'


class Exit(enum.IntEnum):
    """Exit codes."""

    PLACED = 0
    TROUBLE = 1
    NO_VALID_HOST = 2
    CONFLICT = 3
    USAGE = 64


_EXITS = {'gantt.no_valid_host': Exit.NO_VALID_HOST, 'gantt.conflict': Exit.CONFLICT}


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


class InDoubt(Failure):
    """A failure after the request was sent, without an answer of Gantt: it may be executed."""


class Unwritable(Failure):
    """A failure to write to standard output."""


class Endpoint:
    """A client of one Gantt API.

    :param url: e.g. ``http://127.0.0.1:8790``
    :param timeout: seconds for one call
    :param login: returns a token; called where the API requires authentication
    :param verify: the authorities that verify a certificate: a file, or True,
        those of the system; False: nothing
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
        """Placement's interface of the same service.

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
        return list(self.call('GET', '/v1/health', {}, unwell=True).get('checks', []))

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
        unwell: bool = False,
    ) -> Any:
        """Send a request and return the JSON of its answer.

        :param unwell: accept status 503, for a health check
        :raises Failure: refused, failed, or no server answers
        """
        import httpx2 as httpx  # takes longer to import than the rest of the command together

        content = encoded(body)
        params = parameters(query)
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
                verify=not is_plain and _trust(self._verify),
                trust_env=False,
            )

        try:
            answer = once()
            if answer.status_code == 401 and self._login is not None:
                # Nothing was executed.  A server that requires no token is sent none.
                self._token = self._login()
                answer = once()
        except httpx.TimeoutException as e:
            kind = Failure if isinstance(e, httpx.ConnectTimeout) else InDoubt
            raise kind(
                f'{self.url} did not answer within {timeout or self.timeout:g} s; '
                'look at "gantt status" or the log of gantt-api'
            ) from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as e:
            raise Failure(
                f'--endpoint {self.url!r} is no URL: {e}; expected the form {DEFAULT}', Exit.USAGE
            ) from None
        except httpx.TransportError as e:
            kind = Failure if isinstance(e, httpx.ConnectError) else InDoubt
            raise kind(
                f'nothing answers at {self.url} ({_reason(e)}); start gantt-api there, '
                'or name another with --endpoint or GANTT_ENDPOINT'
            ) from None
        return self._read(answer, unwell)

    def _read(self, answer: Any, unwell: bool = False) -> Any:
        request_id = answer.headers.get('x-openstack-request-id', '')
        if answer.status_code in (201, 204) and not answer.content:
            return {}
        try:
            body = answer.json()
            is_good = answer.status_code < 400 or (unwell and 'checks' in body)
            if is_good and isinstance(body, dict):
                return body
            refused = refusal(body)
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            raise InDoubt(
                f'{self.url} answers {answer.status_code} but not as Gantt does; '
                'is it the right endpoint?',
                error={'request_id': request_id, 'status': answer.status_code},
            ) from None
        if answer.status_code == 401 and not self._can_log_in:
            refused.message += f', or {LOG_IN}'
        raise refused


def refusal(body: Any) -> Failure:
    """Return the failure that the body of an answer describes.

    :raises ValueError, KeyError, IndexError, TypeError: it is not of Gantt
    """
    error = body['errors'][0]
    # Placement returns a sentence about the status first, and the cause below it.
    message = error['detail'].rpartition('\n\n')[2].strip()
    return Failure(message, _EXITS.get(error['code'], Exit.TROUBLE), error)


def encoded(body: Any) -> bytes | None:
    """Encode a body as JSON.  :raises Failure: it has a value that JSON lacks"""
    if body is None:
        return None
    try:
        return json.dumps(body, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as e:
        raise Failure(f'the request cannot be sent as JSON: {e}', Exit.USAGE) from None


def _trust(verify: bool | str) -> Any:
    import ssl

    return ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify


def parameters(query: dict[str, Any]) -> dict[str, str]:
    """Return a query as text; without what is None, or False."""
    return {
        name: 'true' if value is True else str(value)
        for name, value in query.items()
        if value is not None and value is not False
    }


def _reason(error: Exception) -> str:
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
            text = sys.stdin.read()
        else:
            with open(path, encoding='utf-8') as file:
                text = file.read()
    except UnicodeDecodeError as e:
        raise Failure(f'{path}: is not text in UTF-8: {e}', Exit.USAGE) from None
    except FileNotFoundError as e:
        raise Failure(f'{path}: {e.strerror}; {instead}', Exit.USAGE) from None
    except OSError as e:
        raise Failure(f'{path}: {e.strerror or e}', Exit.USAGE) from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        raise Failure(f'{path}: neither JSON nor YAML: {_problem_of_yaml(e)}', Exit.USAGE) from None


def _problem_of_yaml(error: Exception) -> str:
    """Return a parser's problem with its position on one line, where it has one."""
    problem, mark = getattr(error, 'problem', None), getattr(error, 'problem_mark', None)
    if not problem or mark is None:
        return str(error)
    return f'line {mark.line + 1}, column {mark.column + 1}: {problem}'
