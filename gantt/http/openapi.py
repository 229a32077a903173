# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, generated from the route table and the handlers' types."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, get_type_hints

import msgspec

from gantt import policies
from gantt.core.messages.request import Lifecycle
from gantt.http import examples, microversion
from gantt.http.dispatch import NoQuery, Route, Signature, choices, signature_of
from gantt.http.errors import Errors
from gantt.policies import base

_REF = '#/components/schemas/{name}'
_TEXT = {'type': 'string'}
#: Path -> media types of a success, where it is not, or not only, JSON.
_CONTENT = {
    '/metrics': ('text/plain',),
    '/dashboard': ('text/html',),
    '/dashboard/{file}': ('text/*',),
    '/v1/decisions/{decision_id}': ('application/json', 'text/plain'),
}
_NAME = re.compile(r'{(\w+)}')

#: Status of a refusal -> its meaning here.
REFUSALS = {
    400: 'What was sent is not right; the detail names the field and what was expected.',
    401: 'A token is needed, or the one sent is not valid any more.',
    403: 'The rule of the operation does not let the caller, the quota of the project does not, or '
    'a page of another origin asks.',
    404: 'There is no such thing, or it is of another project.',
    406: 'The microversion is not served.',
    409: 'It cannot be as things stand: no valid host, a conflict, an id used twice.',
    410: 'What happened since the cursor is not remembered: list anew. Of a token: it is not good '
    'any more, or for this.',
    411: 'The body has no end that the server can tell.',
    413: 'The body is larger than this path takes.',
    415: 'There is a body that does not say it is JSON.',
    421: 'The host name that was asked for is not one of this service (noauth only).',
    429: 'The project makes more requests than its quota lets it make; see Retry-After.',
    500: 'A defect; the log has it under the request id.',
    503: 'Busy, or the database, the broker or the identity service is away; see Retry-After.',
    504: 'The budget of the request was spent.',
    508: 'The request has come through this zone before.',
}
#: Paths that take sealed tokens, or requests from another zone.
ZONE_PATHS = ('/zone/', '/v1/places')
_ALWAYS = (400, 406, 421, 500, 503)
_WITH_BODY = (411, 413, 415)

_REQUEST_ID = 'X-OpenStack-Request-ID'
_HEADERS = {
    _REQUEST_ID: ('The id of this HTTP request, which is in the log of the service.', _TEXT),
    microversion.HEADER: ('The microversion that was answered in.', _TEXT),
    'Retry-After': ('Seconds to wait before asking again.', {'type': 'integer', 'minimum': 1}),
    'ETag': ('Send it as If-None-Match to be answered 304 while nothing changed.', _TEXT),
    'Location': ('The address of what was created.', {'type': 'string', 'format': 'uri'}),
    'WWW-Authenticate': ('Where to get a token.', _TEXT),
}
_MICROVERSION = {
    'name': microversion.HEADER,
    'in': 'header',
    'required': False,
    'description': 'The microversion wanted, as "scheduler 1.N" or "scheduler latest".',
    'schema': {
        'type': 'string',
        'default': f'{microversion.SERVICE} {microversion.LOWEST}',
    },
    'example': f'{microversion.SERVICE} {microversion.HIGHEST}',
}
_SECURITY = {
    'token': {
        'type': 'apiKey',
        'in': 'header',
        'name': 'X-Auth-Token',
        'description': 'A token of keystone, scoped to a project or to the system. Not looked at '
        'with [api] auth_strategy = noauth.',
    }
}


def document(routes: Sequence[Route], at: str = '') -> dict[str, Any]:
    """Return the whole document as builtins.

    :param at: the address of ``/``
    """
    signatures = {route: signature_of(route.handler) for route in routes}
    types = _types(signatures.values())
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    if 'Lifecycle' in components:
        components['Lifecycle']['enum'].remove(Lifecycle.CALLER.value)  # no request may say it
    schema_of = {_key(type_key): schema for type_key, schema in zip(types, schemas, strict=True)}
    is_open = {rule.name for rule in policies.list_rules() if rule.check_str == base.EVERYBODY}
    paths: dict[str, dict[str, Any]] = {}
    for route, signature in signatures.items():
        operation = _operation(route, signature, schema_of, components, route.rule in is_open)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    paths['/healthcheck'] = {'get': _HEALTHCHECK}
    queries = {signature.query.__name__ for signature in signatures.values()}
    whole = {
        'openapi': '3.1.0',
        'info': {
            'title': 'Gantt',
            'summary': 'A placement scheduler: claims made in a transaction, decisions explained.',
            'version': str(microversion.HIGHEST),
            'license': {'name': 'Apache-2.0', 'identifier': 'Apache-2.0'},
        },
        'servers': [{'url': at or '/'}],
        'security': [{'token': []}],
        'paths': paths,
        'components': {
            'schemas': {
                schema_name: schema_value
                for schema_name, schema_value in sorted(components.items())
                if schema_name not in queries
            },
            'parameters': {'microversion': _MICROVERSION},
            'headers': {
                name: {'description': text, 'schema': schema}
                for name, (text, schema) in _HEADERS.items()
            },
            'responses': {
                str(status): _refusal(status, text, schema_of[_key(Errors)])
                for status, text in REFUSALS.items()
            },
            'securitySchemes': _SECURITY,
        },
    }
    return _with_public_names(whole)


#: Schemas whose names clients are generated from, where the class is called otherwise.
PUBLIC_NAMES = {
    **{
        f'{name}Response': name
        for name in (
            *('Aggregates', 'Claims', 'Decisions', 'Groups', 'Health', 'Hosts', 'Requests'),
            *('Services', 'Versions'),
        )
    },
    'QuotasResponse': 'QuotaList',
    'ObstacleView': 'Obstacle',
    'RoomView': 'Room',
}


def _with_public_names(found: Any) -> Any:
    """Return the document with the public names of schemas, and references to them."""
    if isinstance(found, list):
        return [_with_public_names(item) for item in found]
    if not isinstance(found, dict):
        return found
    prefix = _REF.format(name='')
    return {
        _public_name(key): (
            prefix * value.startswith(prefix) + _public_name(value.removeprefix(prefix))
            if key in ('$ref', 'title') and isinstance(value, str)
            else _with_public_names(value)
        )
        for key, value in found.items()
    }


def _public_name(name: str) -> str:
    return PUBLIC_NAMES.get(name, name)


def _headers(*names: str) -> dict[str, Any]:
    return {name: {'$ref': f'#/components/headers/{name}'} for name in names}


_HEALTHCHECK = {
    'operationId': 'healthcheck',
    'summary': 'Say in a word whether requests may be sent here, for load balancers.',
    'tags': ['health'],
    'security': [],
    'parameters': [],
    'responses': {
        status: {
            'description': text,
            'headers': _headers(_REQUEST_ID),
            'content': {'text/plain': {'schema': _TEXT}},
        }
        for status, text in (('200', 'All is well.'), ('503', 'Something is away, or disabled.'))
    },
}


def _refusal(status: int, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    wait = ['Retry-After']
    more = {401: ['WWW-Authenticate'], 429: wait, 503: wait, 504: wait}.get(status, [])
    content: dict[str, Any] = {'schema': schema}
    if status == 404:
        content['example'] = examples.ERROR
    return {
        'description': text,
        'headers': _headers(_REQUEST_ID, microversion.HEADER, *more),
        'content': {'application/json': content},
    }


def _types(signatures: Iterable[Signature]) -> list[Any]:
    types: dict[str, Any] = {_key(Errors): Errors}
    for signature in signatures:
        for annotation in (signature.query, signature.body, *choices(signature.answer)):
            if annotation is not None:
                types[_key(annotation)] = annotation
    return list(types.values())


def _key(tp: Any) -> str:
    return repr(tp)


def _operation(
    route: Route,
    signature: Signature,
    schema_of: dict[str, Any],
    components: dict[str, Any],
    is_open: bool,
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        'operationId': route.handler.__name__,
        'summary': signature.summary,
        'tags': [route.rule.split(':')[1]],
        'x-policy': route.rule,
        'parameters': [*_parameters(route, signature, components)],
        'responses': {
            **_successes(route, signature, schema_of),
            **{
                str(status): {'$ref': f'#/components/responses/{status}'}
                for status in _refused(route, signature, is_open)
            },
        },
    }
    if is_open:
        operation['security'] = []
    if route.details:
        # No token is needed; callers with one get more.
        operation['security'] = [{}, {'token': []}]
        operation['responses']['503'] = {
            **operation['responses']['200'],
            'description': 'Something that it depends on is not well.',
        }
    if signature.description:
        operation['description'] = signature.description
    if signature.body is not None:
        content = {'schema': schema_of[_key(signature.body)]}
        if route.handler.__name__ in examples.BODIES:
            content['example'] = examples.BODIES[route.handler.__name__]
        operation['requestBody'] = {'required': True, 'content': {'application/json': content}}
    return operation


def _successes(
    route: Route, signature: Signature, schema_of: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    forms = [schema_of[_key(annotation)] for annotation in choices(signature.answer)]
    answer = forms[0] if len(forms) == 1 else {'anyOf': forms}
    kinds = _CONTENT.get(route.path, ('application/json',))
    content = {kind: {'schema': answer if kind == 'application/json' else _TEXT} for kind in kinds}
    has_etag = route.path.startswith('/dashboard') or route.is_conditional
    headers = _headers(_REQUEST_ID, microversion.HEADER, *(['ETag'] if has_etag else []))
    successes = {
        str(route.status): {
            'description': signature.summary,
            'headers': headers,
            'content': content,
        }
    }
    if signature.creates:
        successes['201'] = {
            'description': 'It was created.',
            'headers': headers | _headers('Location'),
            'content': content,
        }
    if has_etag:
        successes['304'] = {'description': 'As it was, see If-None-Match.', 'headers': headers}
    return successes


def _refused(route: Route, signature: Signature, is_open: bool) -> list[int]:
    """Return every status that a refusal of the operation can have."""
    writes = route.method != 'GET'
    statuses = set(_ALWAYS)
    if not is_open:
        statuses |= {401, 403}
    if writes:
        # A page of another origin; a name in a body; a conflict; the budget.
        statuses |= {403, 404, 409, 504}
    if signature.body is not None:
        statuses |= set(_WITH_BODY)
    if signature.path or signature.query is not NoQuery:
        statuses.add(404)
    if 'after' in get_type_hints(signature.query):
        statuses.add(410)
    if route.path.startswith(ZONE_PATHS) and signature.body is not None:
        statuses |= {410, 508}
    if route.rated:
        statuses.add(429)
    return sorted(statuses)


def _parameters(
    route: Route, signature: Signature, components: dict[str, Any]
) -> Iterable[dict[str, Any]]:
    yield {'$ref': '#/components/parameters/microversion'}
    for name in _NAME.findall(route.path):
        schema = {'type': 'string', 'minLength': 1}
        text = 'Escaped whole: a slash in it is %2F.'
        yield _with_example(
            {'name': name, 'in': 'path', 'required': True, 'description': text, 'schema': schema},
            route,
        )
    if signature.query is NoQuery:
        return
    query = components[signature.query.__name__]
    for name, schema in query['properties'].items():
        required = name in query.get('required', ())
        yield _with_example(
            {'name': name, 'in': 'query', 'required': required, 'schema': _no_null(schema)}, route
        )


def _with_example(parameter: dict[str, Any], route: Route) -> dict[str, Any]:
    example = examples.parameter(route.path, parameter['name'])
    return parameter if example is None else {**parameter, 'example': example}


def _no_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a query parameter, which is left out instead of being null."""
    choices = [option for option in schema.get('anyOf', ()) if option != {'type': 'null'}]
    if len(choices) != 1:
        return schema
    remaining = {
        keyword: setting
        for keyword, setting in schema.items()
        if keyword != 'anyOf' and not (keyword == 'default' and setting is None)
    }
    return {**choices[0], **remaining}
