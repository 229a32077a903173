# SPDX-License-Identifier: Apache-2.0
"""The HTTP interface from the outside: one call, and what its refusals mean."""

import enum
import json
from typing import Any

DEFAULT = 'http://127.0.0.1:8790'
MICROVERSION = 'scheduler 1.0'


class Exit(enum.IntEnum):
    """Exit codes."""

    PLACED = 0
    TROUBLE = 1
    NO_VALID_HOST = 2
    CONFLICT = 3
    USAGE = 64


_EXITS = {'gantt.no_valid_host': Exit.NO_VALID_HOST, 'gantt.conflict': Exit.CONFLICT}


class Failure(Exception):
    """What to print on standard error, and how to exit.

    :ivar error: the error object of the answer, empty where there was none
    """

    def __init__(
        self, message: str, exit_code: Exit = Exit.TROUBLE, error: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.error = error or {}


class Endpoint:
    """One Gantt API.

    :param url: e.g. ``http://127.0.0.1:8790``
    :param timeout: seconds for one call
    """

    def __init__(self, url: str, timeout: float = 60.0) -> None:
        self.url = url.rstrip('/')
        self.timeout = timeout

    def get(self, path: str, **query: Any) -> Any:
        """The answer's JSON.  :raises Failure:"""
        return self.call('GET', path, query)

    def put(self, path: str, body: Any = None, **query: Any) -> Any:
        """:raises Failure:"""
        return self.call('PUT', path, query, body)

    def post(self, path: str, body: Any, timeout: float | None = None, **query: Any) -> Any:
        """:raises Failure:"""
        return self.call('POST', path, query, body, timeout)

    def delete(self, path: str, **query: Any) -> Any:
        """:raises Failure:"""
        return self.call('DELETE', path, query)

    def call(
        self,
        method: str,
        path: str,
        query: dict[str, Any],
        body: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """One call.

        :raises Failure: refused, failed, or nobody there
        """
        import httpx  # takes longer to import than the rest of the command together

        params = {k: _text(v) for k, v in query.items() if v is not None and v is not False}
        try:
            answer = httpx.request(
                method,
                self.url + path,
                params=params,
                json=body,
                headers={'OpenStack-API-Version': MICROVERSION, 'Accept': 'application/json'},
                timeout=httpx.Timeout(timeout or self.timeout, connect=10.0),
                trust_env=False,
            )
        except httpx.TimeoutException:
            raise Failure(
                f'{self.url} did not answer within {timeout or self.timeout:g} s; '
                'look at "gantt status" or the log of gantt-api'
            ) from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as e:
            raise Failure(
                f'--endpoint {self.url!r} is no URL: {e}; expected the form {DEFAULT}', Exit.USAGE
            ) from None
        except httpx.TransportError as e:
            raise Failure(
                f'nothing answers at {self.url} ({_reason(e)}); start gantt-api there, '
                'or name another with --endpoint or GANTT_ENDPOINT'
            ) from None
        return self._read(answer)

    def _read(self, answer: Any) -> Any:
        content = answer.headers.get('content-type', '')
        if answer.status_code < 400:
            if content.startswith('application/json'):
                return answer.json()
            if content.startswith('text/plain'):
                return answer.text
        request_id = answer.headers.get('x-openstack-request-id', '')
        try:
            error = answer.json()['errors'][0]
            message, code = error['detail'], error['code']
        except (ValueError, KeyError, IndexError, TypeError):
            raise Failure(
                f'{self.url} answers {answer.status_code} but not as Gantt does; '
                'is it the right endpoint?',
                error={'request_id': request_id, 'status': answer.status_code},
            ) from None
        raise Failure(message, _EXITS.get(code, Exit.TROUBLE), error)


def _text(value: Any) -> str:
    return 'true' if value is True else str(value)


def _reason(error: Exception) -> str:
    text = str(error)
    at = text.find('] ')
    return (text[at + 2 :] if text.startswith('[Errno') and at > 0 else text).lower() or 'no answer'


def load_body(path: str) -> Any:
    """A JSON or YAML file; ``-`` is standard input.

    :raises Failure: it cannot be read
    """
    import sys

    try:
        if path == '-':
            text = sys.stdin.read()
        else:
            with open(path, encoding='utf-8') as file:
                text = file.read()
    except (OSError, UnicodeDecodeError) as e:
        raise Failure(f'{path}: {e}', Exit.USAGE) from None
    try:
        return json.loads(text)
    except ValueError:
        pass
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise Failure(f'{path}: neither JSON nor YAML: {e}', Exit.USAGE) from None
