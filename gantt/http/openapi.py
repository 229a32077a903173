# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, generated from the route table and the handlers' types.

Its examples can be sent unchanged to a site with these hosts.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, get_type_hints

import msgspec
from oslo_policy import policy

from gantt import policies
from gantt.core.messages.request import Lifecycle
from gantt.http import microversion
from gantt.http.dispatch import NoQuery, Signature, signature_of, union_members
from gantt.http.errors import Errors
from gantt.http.routes import Route

EXAMPLE_HOST = 'cmp-1'
EXAMPLE_REQUEST_ID = 'c0b7a9f1-5c1f-4c64-9d2a-6d3f0d4c1a01'
EXAMPLE_CONSUMER = '6f1d2a52-0b7e-4f0e-8a55-0d8f6a3e9b02'
EXAMPLE_PLAN_ID = 'c0b7a9f1-5c1f-4c64-9d2a-6d3f0d4c1a05'
EXAMPLE_CHANGE_ID = 'c0b7a9f1-5c1f-4c64-9d2a-6d3f0d4c1a06'
EXAMPLE_GROUP = '1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4b03'

_EXAMPLE_SPEC: dict[str, Any] = {'resources': {'VCPU': 2, 'MEMORY_MB': 4096, 'DISK_GB': 20}}
_EXAMPLE_PLACEMENT = {
    'request_id': EXAMPLE_REQUEST_ID,
    'consumers': [EXAMPLE_CONSUMER],
    'spec': _EXAMPLE_SPEC,
}

_EXAMPLE_GROUP_BODY: dict[str, Any] = {
    'uuid': EXAMPLE_GROUP,
    'policies': ['anti-affinity', {'policy': 'spread', 'level': 'zone', 'min_domains': 1}],
    'members': [
        {'name': 'web', 'count': 2, 'spec': _EXAMPLE_SPEC},
        {'name': 'db', 'spec': {'resources': {'VCPU': 4, 'MEMORY_MB': 8192}}},
    ],
}

#: operationId -> body.
EXAMPLE_BODIES: dict[str, Any] = {
    'disable_host': {'reason': 'broken fan', 'by': 'ops'},
    'set_aggregate': {'hosts': [EXAMPLE_HOST], 'metadata': {'ssd': 'true'}},
    'create_group': {'uuid': EXAMPLE_GROUP, 'policy': 'anti-affinity', 'name': 'web'},
    'create_request': _EXAMPLE_PLACEMENT,
    'create_group_plan': {
        'request_id': EXAMPLE_PLAN_ID,
        'group': _EXAMPLE_GROUP_BODY,
        'plan_ms': 200,
    },
    'change_group_plan': {
        'request_id': EXAMPLE_CHANGE_ID,
        'group': _EXAMPLE_GROUP_BODY,
        'heal': True,
        'plan_ms': 200,
    },
    'scale_group_plan': {
        'request_id': '5d0bb8ce-3a5c-4be9-8f53-1f3b7f8f0d11',
        'members': {'web': '+1'},
    },
    'extend_group_plan': {'seconds': 7200},
    'extend_lease': {'seconds': 300},
    'confirm_request': {'consumers': []},
    'release_request': {'consumers': [], 'reason': 'the volume is deleted'},
    'replay_decision': {'host_subset_size': 1},
    'what_if': {
        'request': {**_EXAMPLE_PLACEMENT, 'request_id': 'c0b7a9f1-5c1f-4c64-9d2a-6d3f0d4c1a04'}
    },
    'capacity': {'spec': _EXAMPLE_SPEC},
    'set_quota': {'limits': {'live_claims': 50, 'class:VCPU': 200, 'server_groups': None}},
    'set_zone': {'url': 'http://127.0.0.1:1', 'last_resort': True},
    'set_parent': {'identity': 'f3a1c5', 'project_id': '5f2d1c7a9b3e4c60a1d2e3f405162738'},
    'unseal_host': {'sealed_host': 'g1.AAAA'},
    'evaluate_zone': {'request': _EXAMPLE_PLACEMENT, 'want': 5},
    'count_capacity_of_zone': {'request': _EXAMPLE_PLACEMENT},
    'extend_zone_lease': {'seconds': 300},
    'show_host_digests': {'salt': '0f' * 32},
    'allocate_in_zone': {
        'request': _EXAMPLE_PLACEMENT,
        'evaluated': EXAMPLE_REQUEST_ID,
        'tokens': ['g1.AAAA'],
        'order': 1_767_225_600_000_000,
    },
    'set_metric': {'unit': 'W', 'lower': 0, 'upper': 2000, 'description': 'power drawn'},
}
#: Name of a parameter -> a value, where one suits all operations.
EXAMPLE_PARAMETERS: dict[str, Any] = {
    'request_id': EXAMPLE_REQUEST_ID,
    'decision_id': EXAMPLE_REQUEST_ID,
    'claim_id': '0d5a3c1e-7f6b-5a4d-8e9c-2b1a0f9e8d05',
    'uuid': EXAMPLE_GROUP,
    'project_id': '5f2d1c7a9b3e4c60a1d2e3f405162738',
    'consumer': EXAMPLE_CONSUMER,
    'host': EXAMPLE_HOST,
    'file': 'dashboard.js',
    'limit': 100,
    'reason': 'no longer wanted',
    'resource_class': 'VCPU',
    'window': 3600,
    'sort': 'name',
    'shapes': 'VCPU:2,MEMORY_MB:4096',
    'wait': 0,
    'kind': 'claimed',
    'dry_run': False,
    'key': EXAMPLE_REQUEST_ID,
    'since': 0,
    'after_claim': EXAMPLE_REQUEST_ID,
    'check': False,
}
#: Values of ``{name}`` by the beginning of the path.
EXAMPLE_NAMES = {
    '/v1/hosts': EXAMPLE_HOST,
    '/v1/aggregates': 'rack-1',
    '/v1/resource-classes': 'CUSTOM_LICENSE',
    '/v1/declared-metrics': 'power',
    '/v1/zones': 'hall-2',
    '/v1/parents': 'region',
}
EXAMPLE_ERROR: dict[str, Any] = {
    'errors': [
        {
            'code': 'gantt.not_found',
            'title': 'Not found',
            'detail': "host 'cmp-7' was not found; did you mean cmp-1?",
            'status': 404,
            'request_id': 'req-5e4b1a3f-0f0e-4a52-8f0b-8a6d1c2b3e06',
            'details': {'kind': 'host', 'name': 'cmp-7', 'near': ['cmp-1']},
        }
    ]
}


def example_of(path: str, name: str) -> Any:
    """Return a value of a parameter of an operation, None where none fits."""
    if name == 'name':
        values = [value for prefix, value in EXAMPLE_NAMES.items() if path.startswith(f'{prefix}/')]
        return values[0] if values else None
    return EXAMPLE_PARAMETERS.get(name)


_SCHEMA_REFERENCE = '#/components/schemas/{name}'
_TEXT_SCHEMA = {'type': 'string'}
#: Path -> media types of a success, where it is not, or not only, JSON.
_CONTENT_TYPES = {
    '/metrics': ('text/plain',),
    '/dashboard': ('text/html',),
    '/dashboard/{file}': ('text/*',),
    '/v1/decisions/{decision_id}': ('application/json', 'text/plain'),
}
_PATH_PARAMETER = re.compile(r'{(\w+)}')

#: Status of a refusal -> its meaning here.
REFUSAL_TEXTS = {
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
_STATUSES_OF_ALL = (400, 406, 421, 500, 503)
_STATUSES_WITH_BODY = (411, 413, 415)

_REQUEST_ID = 'X-OpenStack-Request-ID'
_HEADER_TEXTS = {
    _REQUEST_ID: ('The id of this HTTP request, which is in the log of the service.', _TEXT_SCHEMA),
    microversion.HEADER: ('The microversion that was answered in.', _TEXT_SCHEMA),
    'Retry-After': ('Seconds to wait before asking again.', {'type': 'integer', 'minimum': 1}),
    'ETag': ('Send it as If-None-Match to be answered 304 while nothing changed.', _TEXT_SCHEMA),
    'Location': ('The address of what was created.', {'type': 'string', 'format': 'uri'}),
    'WWW-Authenticate': ('Where to get a token.', _TEXT_SCHEMA),
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
_SECURITY_SCHEMES = {
    'token': {
        'type': 'apiKey',
        'in': 'header',
        'name': 'X-Auth-Token',
        'description': 'A token of keystone, scoped to a project or to the system. Not looked at '
        'with [api] auth_strategy = noauth.',
    }
}


def document(
    routes: Sequence[Route], rules: Iterable[policy.RuleDefault], at: str = ''
) -> dict[str, Any]:
    """Return the whole document as builtins.

    :param rules: the default policy
    :param at: the address of ``/``
    """
    signatures = {route: signature_of(route.handler) for route in routes}
    types = _schema_types(signatures.values())
    schemas, components = msgspec.json.schema_components(types, ref_template=_SCHEMA_REFERENCE)
    if 'Lifecycle' in components:
        components['Lifecycle']['enum'].remove(Lifecycle.CALLER.value)  # no request may say it
    schema_of = {
        _schema_key(type_key): schema for type_key, schema in zip(types, schemas, strict=True)
    }
    is_open = {rule.name for rule in rules if rule.check_str == policies.EVERYBODY}
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
                for name, (text, schema) in _HEADER_TEXTS.items()
            },
            'responses': {
                str(status): _refusal_response(status, text, schema_of[_schema_key(Errors)])
                for status, text in REFUSAL_TEXTS.items()
            },
            'securitySchemes': _SECURITY_SCHEMES,
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


def _with_public_names(node: Any) -> Any:
    """Return the document with the public names of schemas, and references to them."""
    if isinstance(node, list):
        return [_with_public_names(item) for item in node]
    if not isinstance(node, dict):
        return node
    prefix = _SCHEMA_REFERENCE.format(name='')
    return {
        _public_name(key): (
            prefix * value.startswith(prefix) + _public_name(value.removeprefix(prefix))
            if key in ('$ref', 'title') and isinstance(value, str)
            else _with_public_names(value)
        )
        for key, value in node.items()
    }


def _public_name(name: str) -> str:
    return PUBLIC_NAMES.get(name, name)


def _header_references(*names: str) -> dict[str, Any]:
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
            'headers': _header_references(_REQUEST_ID),
            'content': {'text/plain': {'schema': _TEXT_SCHEMA}},
        }
        for status, text in (('200', 'All is well.'), ('503', 'Something is away, or disabled.'))
    },
}


def _refusal_response(status: int, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    wait = ['Retry-After']
    more = {401: ['WWW-Authenticate'], 429: wait, 503: wait, 504: wait}.get(status, [])
    content: dict[str, Any] = {'schema': schema}
    if status == 404:
        content['example'] = EXAMPLE_ERROR
    return {
        'description': text,
        'headers': _header_references(_REQUEST_ID, microversion.HEADER, *more),
        'content': {'application/json': content},
    }


def _schema_types(signatures: Iterable[Signature]) -> list[Any]:
    types: dict[str, Any] = {_schema_key(Errors): Errors}
    for signature in signatures:
        for annotation in (signature.query, signature.body, *union_members(signature.answer)):
            if annotation is not None:
                types[_schema_key(annotation)] = annotation
    return list(types.values())


def _schema_key(tp: Any) -> str:
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
            **_success_responses(route, signature, schema_of),
            **{
                str(status): {'$ref': f'#/components/responses/{status}'}
                for status in _refusal_statuses(route, signature, is_open)
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
        content = {'schema': schema_of[_schema_key(signature.body)]}
        if route.handler.__name__ in EXAMPLE_BODIES:
            content['example'] = EXAMPLE_BODIES[route.handler.__name__]
        operation['requestBody'] = {'required': True, 'content': {'application/json': content}}
    return operation


def _success_responses(
    route: Route, signature: Signature, schema_of: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    forms = [schema_of[_schema_key(annotation)] for annotation in union_members(signature.answer)]
    answer = forms[0] if len(forms) == 1 else {'anyOf': forms}
    kinds = _CONTENT_TYPES.get(route.path, ('application/json',))
    content = {
        kind: {'schema': answer if kind == 'application/json' else _TEXT_SCHEMA} for kind in kinds
    }
    has_etag = route.path.startswith('/dashboard') or route.is_conditional
    headers = _header_references(_REQUEST_ID, microversion.HEADER, *(['ETag'] if has_etag else []))
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
            'headers': headers | _header_references('Location'),
            'content': content,
        }
    if has_etag:
        successes['304'] = {'description': 'As it was, see If-None-Match.', 'headers': headers}
    return successes


def _refusal_statuses(route: Route, signature: Signature, is_open: bool) -> list[int]:
    """Return every status that a refusal of the operation can have."""
    writes = route.method != 'GET'
    statuses = set(_STATUSES_OF_ALL)
    if not is_open:
        statuses |= {401, 403}
    if writes:
        # A page of another origin; a name in a body; a conflict; the budget.
        statuses |= {403, 404, 409, 504}
    if signature.body is not None:
        statuses |= set(_STATUSES_WITH_BODY)
    if signature.path or signature.query is not NoQuery:
        statuses.add(404)
    if 'after' in get_type_hints(signature.query):
        statuses.add(410)
    statuses |= set(route.refusals)
    if route.rated:
        statuses.add(429)
    return sorted(statuses)


def _parameters(
    route: Route, signature: Signature, components: dict[str, Any]
) -> Iterable[dict[str, Any]]:
    yield {'$ref': '#/components/parameters/microversion'}
    for name in _PATH_PARAMETER.findall(route.path):
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
            {'name': name, 'in': 'query', 'required': required, 'schema': _without_null(schema)},
            route,
        )


def _with_example(parameter: dict[str, Any], route: Route) -> dict[str, Any]:
    example = example_of(route.path, parameter['name'])
    return parameter if example is None else {**parameter, 'example': example}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
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
