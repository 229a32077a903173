# SPDX-License-Identifier: Apache-2.0
"""What a handler is given, and what it gives back."""

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from email.utils import format_datetime
from typing import Any, NoReturn
from urllib.parse import parse_qsl

import falcon
import msgspec

from gantt.core.messages import base
from gantt.http.caller import Caller
from gantt.http.placement import schemas
from gantt.http.placement.errors import PlacementError
from gantt.http.policy import PolicyEnforcer
from gantt.http.request_access import HOSTS
from gantt.scheduler.ports import Store

#: The version from which on answers say when they changed and that nobody may keep them.
CACHE_SINCE = 15


class PlacementAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A success.

    :ivar body: an object for JSON, or JSON as it is; None: no body
    :ivar modified: seconds since 1970 for ``last-modified``, told from 1.15 on; None: now.  Only
        where ``cached``
    :ivar cached: both headers about caches are told
    :ivar location: below the mount point, such as ``/traits/CUSTOM_A``
    """

    body: Any = None
    status: int = 200
    modified: float | None = None
    cached: bool = True
    location: str = ''


#: As handlers call it.
Answer = PlacementAnswer


class Call:
    """One request, its version known, its caller let in.

    :ivar version: the N of 1.N
    :ivar path: name -> value of what stands in braces in the path of the route
    :ivar caller: who asks
    """

    def __init__(
        self,
        req: falcon.Request,
        version: int,
        path: Mapping[str, str],
        caller: Caller,
        store: Store,
        policy: PolicyEnforcer,
    ) -> None:
        self._req = req
        self.version = version
        self.path = path
        self.caller = caller
        self.store = store
        self._policy = policy

    def since(self, minor: int) -> bool:
        """Whether the version is 1.minor or a later one."""
        return self.version >= minor

    # -- query ---------------------------------------------------------------------------
    @property
    def pairs(self) -> list[tuple[str, str]]:
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

    def all(self, name: str) -> list[str]:
        """Each value of a parameter."""
        return [value for key, value in self.pairs if key == name]

    def query(self, schema: Mapping[str, Any]) -> dict[str, str]:
        """Parameters, the last value of each.

        :raises PlacementError: they are not as the schema says
        """
        found = dict(self.pairs)
        if wrong := schemas.problem(found, schema):
            raise PlacementError(400, f'Invalid query string parameters: {wrong}')
        return found

    # -- body ----------------------------------------------------------------------------
    def json(self, schema: Mapping[str, Any]) -> Any:
        """The body.

        :raises PlacementError: it is no JSON, or not as the schema says
        """
        return checked(self._read(), schema)

    def _read(self) -> bytes:
        found: bytes = self._req.bounded_stream.read(base.BYTES_MAX + 1)
        if len(found) > base.BYTES_MAX:
            raise PlacementError(413, f'expected at most {base.BYTES_MAX} bytes')
        return found

    # -- who and where -------------------------------------------------------------------
    @property
    def reads_hosts(self) -> bool:
        """Whether the caller may know where consumers are."""
        return self._policy.allows(HOSTS, self.caller)

    def check(self, rule: str, project: str | None = None) -> None:
        """Refuse who does not meet a rule.

        :param project: whose thing it is about; None: the caller's own
        :raises PlacementError: the caller does not
        """
        caller = self.caller
        target = {'project_id': caller.project if project is None else project}
        target['user_id'] = caller.user
        if not self._policy.meets(rule, caller, target):
            raise PlacementError(403, f'Policy does not allow {rule} to be performed.')

    def url(self, path: str) -> str:
        """A path for links: below where this application is mounted."""
        return f'{self._req.env.get("SCRIPT_NAME", "")}{path}'

    def header(self, name: str) -> str | None:
        """Of the request."""
        found: str | None = self._req.get_header(name)
        return found


def checked(body: bytes | str, schema: Mapping[str, Any]) -> Any:
    """JSON that is as a schema says.

    :raises PlacementError: it is not
    """
    try:
        found = _read_json(body)
        wrong = schemas.problem(found, schema)
    except (ValueError, RecursionError) as e:
        raise PlacementError(400, f'Malformed JSON: {e}') from None
    if wrong:
        raise PlacementError(400, f'JSON does not validate: {wrong}')
    return found


def _read_json(body: bytes | str) -> Any:
    """JSON without what only looks like a number or a text: NaN, half of a character.

    :raises ValueError: it is none
    """
    text = body.decode(json.detect_encoding(body)) if isinstance(body, bytes) else body
    found = json.loads(text, parse_constant=_refuse_constant)
    if '\\ud' in text.lower():
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f'{name} is no number')


def newest(times: Iterable[float | None]) -> float | None:
    """Of when things changed; None: of none that is known."""
    return max((one for one in times if one is not None), default=None)


def http_date(seconds: float) -> str:
    """As headers have it."""
    return format_datetime(datetime.datetime.fromtimestamp(seconds, datetime.UTC), usegmt=True)


Handler = Callable[[Call], Answer]
