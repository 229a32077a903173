# SPDX-License-Identifier: Apache-2.0
"""Addresses of objects of this interface, whole, wherever it is mounted."""

from typing import Any
from urllib.parse import quote, urlencode

import falcon
import msgspec


class Link(msgspec.Struct, frozen=True):
    """Link to a resource.

    :ivar href: a whole address, with the prefix that the interface is mounted under
    """

    rel: str
    href: str


class Paged(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a list.

    :ivar next_marker: marker to request the next page with; None: this page is the last one
    :ivar links: ``next`` is the address of the page after it
    """

    next_marker: str | None
    links: list[Link] = []


def base(req: falcon.Request) -> str:
    """Return the address of ``/`` as the caller requested it, without the slash at the end.

    The prefix is that of the server, or of a trusted proxy.
    """
    return str(req.prefix).rstrip('/')


def path_of(*parts: str) -> str:
    """Return ``/v1/…`` of an object, each part escaped whole: names may have slashes."""
    return '/v1/' + '/'.join(quote(part, safe='') for part in parts)


def with_next_link(answer: Any, req: falcon.Request) -> Any:
    """Return a page with the address of the page after it; any other answer unchanged."""
    if not isinstance(answer, Paged) or answer.next_marker is None:
        return answer
    query = urlencode({**req.params, 'marker': answer.next_marker}, quote_via=quote)
    link = Link('next', f'{base(req)}{quote(req.path, safe="/")}?{query}')
    return msgspec.structs.replace(answer, links=[link])
