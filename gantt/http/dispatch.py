# SPDX-License-Identifier: Apache-2.0
"""Dispatch from a route and a request to a handler's call, and back.

A handler is ``f(context, caller, *path, query=…, body=…) -> answer``; its annotations are read
once, when the application is created.
"""

import functools
import gzip
import hashlib
import inspect
import operator
import re
import time
import types
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

import falcon
import msgspec

from gantt import exceptions
from gantt.core.messages import base, quoting
from gantt.http import errors, links, microversion
from gantt.http.auth import Strategy, with_certificate
from gantt.http.caller import ANONYMOUS_CALLER, Caller
from gantt.http.context import HandlerContext
from gantt.http.errors import IdentityUnavailable, Unauthorized
from gantt.http.log_context import identify, trace_of_headers
from gantt.http.policy import PolicyEnforcer
from gantt.http.routes import Route
from gantt.insights.views import Change

#: Bytes from which on an answer is compressed, and the compression level.
_COMPRESSED_BYTES_MIN = 16_384
_COMPRESSION_LEVEL = 3

#: Type of the body of an answer.
Answer = TypeVar('Answer')

_PATH_PARAMETER = re.compile(r'{(\w+)}')


class RawAnswer(msgspec.Struct, frozen=True):
    """An answer that is not JSON of ours.

    :ivar headers: with an ``ETag``, a caller that has it already is answered 304
    """

    body: bytes
    content_type: str
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


class Created(msgspec.Struct, Generic[Answer], frozen=True):
    """An answer to a caller that has created something, or repeats that.

    A handler is annotated ``Created[X] | X`` where it answers either.

    :ivar path: path of the created object, see ``links.path_of``
    """

    answer: Answer
    path: str


class NoQuery(base.Message, frozen=True, kw_only=True):
    """No query parameter is known here."""


class Signature(msgspec.Struct, frozen=True):
    """The annotations of a handler: what it reads and answers.

    :ivar answer: the type of a success's body, without ``Created``
    :ivar creates: whether the handler may answer ``Created``
    """

    path: tuple[str, ...]
    query: type
    body: type | None
    answer: Any
    creates: bool
    summary: str
    description: str


@functools.cache
def signature_of(handler: Callable[..., Any]) -> Signature:
    """Read a handler's annotations and docstring."""
    hints = get_type_hints(handler, include_extras=True)
    names = list(inspect.signature(handler).parameters)[2:]
    answer, creates = _answer_of(hints.get('return'))
    summary, _, rest = inspect.cleandoc(handler.__doc__ or '').partition('\n')
    return Signature(
        path=tuple(name for name in names if name not in ('query', 'body')),
        query=hints.get('query', NoQuery),
        body=hints.get('body'),
        answer=answer,
        creates=creates,
        summary=summary.strip(),
        description=rest.strip(),
    )


def _answer_of(annotated: Any) -> tuple[Any, bool]:
    """Return an annotation without ``Created``, and whether that was in it."""
    bare_types = [
        get_args(annotation)[0] if get_origin(annotation) is Created else annotation
        for annotation in union_members(annotated)
    ]
    creates = bare_types != list(union_members(annotated))
    # A union has each of its types once.
    return functools.reduce(operator.or_, dict.fromkeys(bare_types)), creates


def union_members(annotated: Any) -> tuple[Any, ...]:
    """Return the types of a union annotation, or the one type of another annotation."""
    is_union = get_origin(annotated) in (Union, types.UnionType)
    return get_args(annotated) if is_union else (annotated,)


def check_route(route: Route, policy: PolicyEnforcer) -> None:
    """Check a route when the application is created.

    :raises Bug: names the route
    """
    parameters = set(signature_of(route.handler).path)
    if set(_PATH_PARAMETER.findall(route.path)) != parameters:
        raise exceptions.Bug(invariant=f'{route.path} gives its handler {sorted(parameters)}')
    policy.allows(route.rule, ANONYMOUS_CALLER)


class Resource:
    """A falcon resource with all methods of one path."""

    def __init__(
        self, path: str, routes: Mapping[str, Route], context: HandlerContext, strategy: Strategy
    ) -> None:
        self.path = path
        for method, route in routes.items():
            responder = functools.partial(_respond, route, context, strategy)
            setattr(self, f'on_{method.lower()}', responder)
            if method == 'GET':
                # Monitoring often sends HEAD; falcon drops the body.
                self.on_head = responder


def _respond(
    route: Route,
    context: HandlerContext,
    strategy: Strategy,
    req: falcon.Request,
    resp: falcon.Response,
    **path: str,
) -> None:
    caller = _caller(route, context, strategy, req)
    caller = msgspec.structs.replace(caller, base=links.base(req), trace=trace_of_headers(req))
    signature = signature_of(route.handler)
    for name, value in path.items():
        _check_text(name, value)
    arguments: dict[str, Any] = dict(path)
    query = _decode_query(req, signature.query)
    if signature.query is not NoQuery:
        arguments['query'] = query
    if signature.body is not None:
        bytes_max = context.settings.body_bytes_max
        limit = bytes_max if route.bytes_max is None else min(bytes_max, route.bytes_max)
        arguments['body'] = _decode_body(req, signature.body, limit)
    answer = route.handler(context, caller, **arguments)
    resp.status = route.status
    if isinstance(answer, Created):
        resp.status = 201
        resp.set_header('Location', caller.base + answer.path)
        answer = answer.answer
    if isinstance(answer, Change):
        req.context.is_dry_run = answer.dry_run
        req.context.message = answer.message
    if isinstance(answer, RawAnswer):
        resp.status = answer.status
        resp.content_type = answer.content_type
        resp.data = answer.body
        resp.set_headers(answer.headers)
    else:
        resp.content_type = falcon.MEDIA_JSON
        resp.data = msgspec.json.encode(_json_value(links.with_next_link(answer, req)))
        if route.is_conditional:
            resp.set_header('ETag', f'"{hashlib.blake2b(resp.data, digest_size=16).hexdigest()}"')
    _shorten_body(req, resp)


def _json_value(value: Any) -> Any:
    """Return a message as builtins, defaults included."""
    if isinstance(value, msgspec.Struct):
        return {name: _json_value(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: _json_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(inner) for inner in value]
    return value


def _caller(
    route: Route, context: HandlerContext, strategy: Strategy, req: falcon.Request
) -> Caller:
    """Return the caller, where the rule of the route needs it; log lines carry it from here on.

    :raises Unauthorized, Forbidden:
    """
    if route.rule in context.policy.open:
        return _caller_of_open_route(strategy, req) if route.details else ANONYMOUS_CALLER
    caller = with_certificate(strategy(req), req)
    if route.is_audited and route.method != 'GET':
        req.context.change = route.rule, caller
    identify(req, caller)
    return context.policy.admit(route.rule, caller)


def _caller_of_open_route(strategy: Strategy, req: falcon.Request) -> Caller:
    """Return the caller of an open route, where the identity service may be away."""
    try:
        return msgspec.structs.replace(strategy(req), everywhere=True)
    except (Unauthorized, IdentityUnavailable):
        return ANONYMOUS_CALLER


def _shorten_body(req: falcon.Request, resp: falcon.Response) -> None:
    """Drop the body where the caller has it already; compress a long body where it is allowed."""
    etag = resp.get_header('ETag')
    if etag and etag in (req.get_header('If-None-Match') or ''):
        resp.status = 304
        resp.data = b''
        return
    if len(resp.data or b'') < _COMPRESSED_BYTES_MIN:
        return
    resp.append_header('Vary', 'Accept-Encoding')
    if 'gzip' in (req.get_header('Accept-Encoding') or ''):
        resp.data = gzip.compress(resp.data or b'', _COMPRESSION_LEVEL, mtime=0)
        resp.set_header('Content-Encoding', 'gzip')


def _check_text(field: str, value: str) -> None:
    """Refuse control characters, which no name in a database has and some databases reject."""
    if len(value) > base.TEXT_MAX or not value.isprintable():
        raise exceptions.invalid(field, f'expected at most {base.TEXT_MAX} printable characters')


def _decode_query(req: falcon.Request, tp: type) -> Any:
    for name, value in req.params.items():
        if not isinstance(value, str):
            raise exceptions.invalid(f'query.{name}', 'expected it once, got it several times')
        _check_text(f'query.{name}', value)
    try:
        return msgspec.convert(req.params, tp, strict=False)
    except msgspec.ValidationError as e:
        raise base.invalid(e, tp, 'query') from None


def _decode_body(req: falcon.Request, tp: type, limit: int) -> Any:
    content_type = (req.content_type or '').partition(';')[0].strip().lower()
    if content_type and content_type != 'application/json':
        raise errors.UnsupportedMediaType(given=quoting.plain_text(content_type, base.NAME_MAX))
    # One byte more than allowed, so that a body without a length is refused too.
    stream = req.bounded_stream if req.content_length is not None else req.stream
    terminated = req.content_length is not None or req.env.get('wsgi.input_terminated')
    data = stream.read(limit + 1) if terminated else b''
    if not data and req.env.get('HTTP_TRANSFER_ENCODING'):
        raise errors.LengthRequired()
    if len(data) > limit:
        raise exceptions.PayloadTooLarge(
            f'the body has more than {limit} bytes, the most of this path', limit=limit
        )
    if not data.strip():
        raise exceptions.invalid('body', 'is empty; expected a JSON object')
    if not content_type:
        # Nothing is guessed: a page of another site may send a body without a type, unprompted.
        raise errors.UnsupportedMediaType(given='')
    return base.decode_json(data, tp, inside='body')


class MicroversionMiddleware:
    """Falcon middleware: the requested microversion, whatever path or method."""

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Send the microversion with every answer.  :raises UnsupportedMicroversion:"""
        resp.append_header('Vary', microversion.HEADER)
        version = microversion.parse(req.get_header(microversion.HEADER))
        resp.set_header(microversion.HEADER, f'{microversion.SERVICE} {version}')


class MetricsMiddleware:
    """Falcon middleware: one measurement per request."""

    def __init__(self, context: HandlerContext) -> None:
        self._metrics = context.metrics

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        """Note the start of the request."""
        req.context.began = time.monotonic()

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, resource: Any, succeeded: bool
    ) -> None:
        """Measure by route, never by path: the labels stay few."""
        self._metrics.observe(
            'gantt_http_request_duration_seconds',
            time.monotonic() - req.context.began,
            method=req.method if resource else 'any',
            route=getattr(resource, 'path', 'unknown'),
            status=str(resp.status_code),
        )
