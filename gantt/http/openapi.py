# SPDX-License-Identifier: Apache-2.0
"""The OpenAPI document, made from the route table and the handlers' types."""

import re
import types
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import msgspec

from gantt.http import microversion
from gantt.http.dispatch import NoQuery, Route, Signature, signature_of
from gantt.http.errors import Errors

_REF = '#/components/schemas/{name}'
_NOT_JSON = {
    '/metrics': 'text/plain',
    '/dashboard': 'text/html',
    '/dashboard/{file}': 'text/*',
}
_NAME = re.compile(r'{(\w+)}')


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The whole document as builtins."""
    signatures = {route: signature_of(route.handler) for route in routes}
    known = _types(signatures.values())
    schemas, components = msgspec.json.schema_components(known, ref_template=_REF)
    schema_of = {_key(tp): schema for tp, schema in zip(known, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route, signature in signatures.items():
        operation = _operation(route, signature, schema_of, components)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    queries = {signature.query.__name__ for signature in signatures.values()}
    return {
        'openapi': '3.1.0',
        'info': {
            'title': 'Gantt',
            'summary': 'A placement scheduler: claims made in a transaction, decisions explained.',
            'version': str(microversion.HIGHEST),
            'license': {'name': 'Apache-2.0', 'identifier': 'Apache-2.0'},
        },
        'servers': [{'url': '/'}],
        'paths': paths,
        'components': {
            'schemas': {k: v for k, v in sorted(components.items()) if k not in queries},
            'parameters': {'microversion': _MICROVERSION},
        },
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
}


def _types(signatures: Iterable[Signature]) -> list[Any]:
    found: dict[str, Any] = {_key(Errors): Errors}
    for signature in signatures:
        for tp in (signature.query, signature.body, *_choices(signature.answer)):
            if tp is not None:
                found[_key(tp)] = tp
    return list(found.values())


def _key(tp: Any) -> str:
    return repr(tp)


def _choices(answer: Any) -> tuple[Any, ...]:
    """The types of an answer that has several forms."""
    return get_args(answer) if isinstance(answer, types.UnionType) else (answer,)


def _operation(
    route: Route, signature: Signature, schema_of: dict[str, Any], components: dict[str, Any]
) -> dict[str, Any]:
    content = _NOT_JSON.get(route.path, 'application/json')
    is_json = content == 'application/json'
    forms = [schema_of[_key(tp)] for tp in _choices(signature.answer)]
    answer = forms[0] if len(forms) == 1 else {'anyOf': forms}
    operation: dict[str, Any] = {
        'operationId': route.handler.__name__,
        'summary': signature.summary,
        'tags': [route.rule.split(':')[1]],
        'x-policy': route.rule,
        'parameters': [*_parameters(route, signature, components)],
        'responses': {
            str(route.status): {
                'description': signature.summary,
                'content': {content: {'schema': answer if is_json else _TEXT}},
            },
            'default': {
                'description': 'A refusal or a failure; the code says which.',
                'content': {'application/json': {'schema': schema_of[_key(Errors)]}},
            },
        },
    }
    if route.minor:
        operation['x-openstack-min-version'] = f'1.{route.minor}'
    if signature.description:
        operation['description'] = signature.description
    if signature.body is not None:
        operation['requestBody'] = {
            'required': True,
            'content': {'application/json': {'schema': schema_of[_key(signature.body)]}},
        }
    return operation


_TEXT = {'type': 'string'}


def _parameters(
    route: Route, signature: Signature, components: dict[str, Any]
) -> Iterable[dict[str, Any]]:
    yield {'$ref': '#/components/parameters/microversion'}
    for name in _NAME.findall(route.path):
        schema = {'type': 'string', 'minLength': 1}
        yield {'name': name, 'in': 'path', 'required': True, 'schema': schema}
    if signature.query is NoQuery:
        return
    query = components[signature.query.__name__]
    for name, schema in query['properties'].items():
        required = name in query.get('required', ())
        yield {'name': name, 'in': 'query', 'required': required, 'schema': _no_null(schema)}


def _no_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query parameter is left out instead of being null."""
    choices = [s for s in schema.get('anyOf', ()) if s != {'type': 'null'}]
    if len(choices) != 1:
        return schema
    rest = {k: v for k, v in schema.items() if k != 'anyOf' and not (k == 'default' and v is None)}
    return {**choices[0], **rest}
