# SPDX-License-Identifier: Apache-2.0
"""What is served, a line each: paths, parameters, and fields with their types.

``frozen_versions`` has it as of microversion 1.0.  ``python -m tests.http.frozen`` prints it anew,
as long as no release has served that version.
"""

import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from gantt.cmd import policies
from gantt.cmd.http_app import ROUTES
from gantt.http import openapi

KEPT = pathlib.Path(__file__).with_name('frozen_versions') / '1.0.txt'
_REF = '#/components/schemas/'
#: Of a schema, what a caller's program is built on; bounds and words may become better.
_KEPT = ('type', 'items', 'anyOf', '$ref', 'enum', 'additionalProperties', 'const', 'prefixItems')


def lines() -> list[str]:
    """In an order that never changes."""
    document = openapi.document(ROUTES, policies.list_rules())
    fields, schemas = [], set()
    for path, methods in document['paths'].items():
        for method, operation in methods.items():
            name = f'{method.upper()} {path}'
            for parameter in operation['parameters'][1:]:
                must = '!' if parameter['required'] else ''
                kind = _brief(parameter['schema'], schemas)
                fields.append(f'{name} {parameter["in"]} {parameter["name"]}{must} {kind}')
            for where, content in _contents(operation):
                fields.append(f'{name} {where} {_brief(content, schemas)}')
    shown: set[str] = set()
    while schemas - shown:
        for name in sorted(schemas - shown):
            shown.add(name)
            fields += _fields(name, document['components']['schemas'][name], schemas)
    return sorted(fields)


def _contents(operation: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    if 'requestBody' in operation:
        yield 'takes', operation['requestBody']['content']['application/json']['schema']
    for status, response in operation['responses'].items():
        for content in response.get('content', {}).values():
            # 201 has what 200 is made of.
            if status != '201':
                yield status, content['schema']


def _fields(name: str, schema: dict[str, Any], schemas: set[str]) -> Iterator[str]:
    if 'properties' not in schema:
        yield f'{name} is {_brief(schema, schemas)}'
    for field, inner in schema.get('properties', {}).items():
        must = '!' if field in schema.get('required', ()) else ''
        yield f'{name}.{field}{must} {_brief(inner, schemas)}'


def _brief(schema: Any, schemas: set[str]) -> str:
    return json.dumps(_cut(schema, schemas), sort_keys=True)


def _cut(schema: Any, schemas: set[str]) -> Any:
    if isinstance(schema, list):
        return [_cut(part, schemas) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if '$ref' in schema:
        schemas.add(schema['$ref'].removeprefix(_REF))
    return {key: _cut(schema[key], schemas) for key in _KEPT if key in schema}


if __name__ == '__main__':
    sys.stdout.writelines(f'{line}\n' for line in lines())
