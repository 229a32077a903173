# SPDX-License-Identifier: Apache-2.0
"""Lines of the route table, of which each capability has its own."""

from collections.abc import Callable
from typing import Any

import msgspec

from gantt.core.messages.base import REQUEST_BYTES_MAX


class Route(msgspec.Struct, frozen=True):
    """A line of the route table.

    :ivar handler: function that answers; its annotations describe the parameters and the body
    :ivar rule: name of the policy rule that admits the caller
    :ivar status: HTTP status of a success
    :ivar rated: whether a request counts against the rate limit of its project
    :ivar is_audited: whether a request is recorded in the audit trail
    :ivar details: name of the policy rule by which the handler of a route that is open to anyone
        shows more to some callers, who are identified by a token if they send one; '': the route
        shows everyone the same
    :ivar bytes_max: most bytes of a body; None: the general limit
    :ivar refusals: further statuses that a refusal may have, for the OpenAPI document
    """

    method: str
    path: str
    handler: Callable[..., Any]
    rule: str
    status: int = 200
    rated: bool = False
    details: str = ''
    is_audited: bool = True
    is_conditional: bool = False
    bytes_max: int | None = REQUEST_BYTES_MAX
    refusals: tuple[int, ...] = ()


def route(method_and_path: str, handler: Callable[..., Any], rule: str, **more: Any) -> Route:
    """Return a route.

    :param method_and_path: method and path
    :param rule: name of a policy rule, without its prefix ``gantt:``
    """
    method, path = method_and_path.split()
    return Route(method, path, handler, f'gantt:{rule}', **more)
