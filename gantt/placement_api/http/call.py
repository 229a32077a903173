# SPDX-License-Identifier: Apache-2.0
"""The argument of a handler, a call, and its result, an answer."""

import datetime
import io
import json
from collections.abc import Callable, Iterable, Mapping
from email.utils import format_datetime
from typing import Any, NoReturn
from urllib.parse import parse_qsl, unquote_to_bytes

import falcon
import msgspec

from gantt.core.messages import base
from gantt.http.caller import Caller
from gantt.http.policy import PolicyEnforcer
from gantt.http.request_access import HOSTS_POLICY
from gantt.placement_api.http import schemas
from gantt.placement_api.http.errors import PlacementError
from gantt.placement_api.ports import PlacementStores

#: The version from which on answers have ``last-modified`` and forbid unchecked caching.
CACHE_HEADERS_SINCE = 15


class PlacementAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A success.

    :ivar body: an object for JSON, or JSON as it is; None: no body
    :ivar modified: seconds since 1970 for ``last-modified``, sent from 1.15 on; None: now.  Only
        where ``cached``
    :ivar cached: both headers about caches are sent
    :ivar location: below the mount point, such as ``/traits/CUSTOM_A``
    """

    body: Any = None
    status: int = 200
    modified: float | None = None
    cached: bool = True
    location: str = ''


#: The name that handlers use.


class Call:
    """State of one request whose version is known and whose caller is authenticated.

    :ivar version: the N of 1.N
    :ivar path: name -> value of the parts in braces in the path of the route
    :ivar caller: the authenticated caller
    """

    def __init__(
        self,
        req: falcon.Request,
        version: int,
        path: Mapping[str, str],
        caller: Caller,
        stores: PlacementStores,
        policy: PolicyEnforcer,
    ) -> None:
        self._req = req
        self.version = version
        self.path = path
        self.caller = caller
        self.stores = stores
        self._policy = policy

    def since(self, minor: int) -> bool:
        """Return whether the version is 1.minor or a later one."""
        return self.version >= minor

    # -- query ---------------------------------------------------------------------------
    @property
    def query_pairs(self) -> list[tuple[str, str]]:
        """Parameters of the query in their order; one may come more than once.

        :raises PlacementError: they are not UTF-8
        """
        try:
            return parse_qsl(
                self._req.query_string,
                keep_blank_values=True,
                errors='strict',
                max_num_fields=1000,
            )
        except (UnicodeDecodeError, ValueError) as e:
            raise PlacementError(400, f'Invalid query string parameters: {e}') from None

    def query_values(self, name: str) -> list[str]:
        """Return each value of a parameter."""
        return [value for key, value in self.query_pairs if key == name]

    def query(self, schema: Mapping[str, Any]) -> dict[str, str]:
        """Return the parameters, the last value of each.

        :raises PlacementError: they do not validate
        """
        parameters = dict(self.query_pairs)
        if wrong := schemas.problem(parameters, schema):
            raise PlacementError(400, f'Invalid query string parameters: {wrong}')
        return parameters

    # -- body ----------------------------------------------------------------------------
    def json(self, schema: Mapping[str, Any]) -> Any:
        """Return the decoded body.

        :raises PlacementError: it is no JSON, or does not validate
        """
        return decode_json(self._read_body(), schema)

    def _read_body(self) -> bytes:
        body: bytes = self._req.bounded_stream.read(base.BYTES_MAX + 1)
        if len(body) > base.BYTES_MAX:
            raise PlacementError(413, f'expected at most {base.BYTES_MAX} bytes')
        return body

    # -- the caller ---------------------------------------------------------------------
    @property
    def reads_hosts(self) -> bool:
        """True where the caller may see the hosts of consumers."""
        return self._policy.allows(HOSTS_POLICY, self.caller)

    def check(self, rule: str, project: str | None = None) -> None:
        """Refuse a caller that does not meet a policy rule.

        :param project: the project of the target; None: the caller's own
        :raises PlacementError: the caller does not meet it
        """
        caller = self.caller
        target = {'project_id': caller.project if project is None else project}
        target['user_id'] = caller.user
        if not self._policy.meets(rule, caller, target):
            raise PlacementError(403, f'Policy does not allow {rule} to be performed.')

    def url(self, path: str) -> str:
        """Return a path for links, below the mount point of this application."""
        return f'{self._req.env.get("SCRIPT_NAME", "")}{path}'

    def subrequest(self, method: str, target: str, body: Any = None) -> falcon.Request:
        """Return a request of the same caller for another path and query, with a JSON body or none.

        :param target: path and query, percent-encoded, below the mount point
        """
        path, _, query = target.partition('?')
        content = b'' if body is None else msgspec.json.encode(body)
        environ = self._req.env | {
            'REQUEST_METHOD': method,
            'PATH_INFO': unquote_to_bytes(path).decode('latin-1'),
            'QUERY_STRING': query,
            'CONTENT_TYPE': falcon.MEDIA_JSON if content else '',
            'CONTENT_LENGTH': str(len(content)),
            'HTTP_ACCEPT': falcon.MEDIA_JSON,
            'wsgi.input': io.BytesIO(content),
        }
        return falcon.Request(environ, self._req.options)

    def header(self, name: str) -> str | None:
        """Return a header of the request."""
        value: str | None = self._req.get_header(name)
        return value


def decode_json(body: bytes | str, schema: Mapping[str, Any]) -> Any:
    """Decode and validate a JSON body.

    :raises PlacementError: it is no JSON, or does not validate
    """
    try:
        data = _read_json(body)
        wrong = schemas.problem(data, schema)
    except (ValueError, RecursionError) as e:
        raise PlacementError(400, f'Malformed JSON: {e}') from None
    if wrong:
        raise PlacementError(400, f'JSON does not validate: {wrong}')
    return data


def _read_json(body: bytes | str) -> Any:
    """Decode JSON strictly: no NaN or infinity, no lone surrogates.

    :raises ValueError: the body is no such JSON
    """
    text = body.decode(json.detect_encoding(body)) if isinstance(body, bytes) else body
    data = json.loads(text, parse_constant=_refuse_constant)
    if '\\ud' in text.lower():
        json.dumps(data, ensure_ascii=False).encode()
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f'{name} is no number')


def newest_time(times: Iterable[float | None]) -> float | None:
    """Return the latest of some times of change; None: no time is known."""
    return max((changed_at for changed_at in times if changed_at is not None), default=None)


def http_date(seconds: float) -> str:
    """Return a time in the format of HTTP headers."""
    return format_datetime(datetime.datetime.fromtimestamp(seconds, datetime.UTC), usegmt=True)


Handler = Callable[[Call], PlacementAnswer]
