# SPDX-License-Identifier: Apache-2.0
"""Directives that render the HTTP API, from its OpenAPI document, and the RPC API.

.. gantt-http-operations::
.. gantt-http-refusals::
.. gantt-http-headers::
.. gantt-rpc-methods:: gantt-scheduler
.. gantt-types::
"""

import functools
import json
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
from gantt_tables import Generated, comments_of, ivars_of, table

from gantt import cmd, exceptions
from gantt.cmd import http_app, policies
from gantt.compute.agent.agent import BuildOutcome
from gantt.core.messages.build import Build, Delete
from gantt.core.records.members import AnswerByHosts
from gantt.groups import rpc as planner_methods
from gantt.groups.service.planner import GroupPlanner
from gantt.http import dispatch, openapi
from gantt.nova.service.source import NovaSource
from gantt.nova.wire.service import source_methods
from gantt.rpc.api import endpoints
from gantt.scheduler.service import Scheduler

assert cmd  # imported first: it chooses native threads, as each command does
#: Titles of tags, where the tag itself is not one.
TITLES = {
    'root': 'Versions',
    'what_if': 'What-if',
    'zone': 'Requests of a parent zone',
}
#: Plain words for the patterns of texts.
PATTERNS = {'^[0-9a-f]{8}(': 'uuid'}
#: Bounds of numbers that every 64-bit integer has; they say nothing.
LARGE = 2**53


@functools.cache
def document() -> dict[str, Any]:
    return openapi.document(http_app.ROUTES, policies.list_rules())


@functools.cache
def topics() -> dict[str, dict[str, tuple[dict[str, Any], Any]]]:
    """Topic -> method -> its arguments and the type of its answer."""
    facade = types.SimpleNamespace(
        **dict.fromkeys(('show', 'extend', 'release', 'register_host', 'database_now'))
    )
    interfaces: dict[str, Any] = {
        'gantt-scheduler': endpoints.SchedulerMethods(None, None),  # type: ignore[arg-type]
        'gantt-claims': endpoints.ClaimsMethods(None),
        'gantt-stats': endpoints.StatsMethods(
            facade,
            None,  # type: ignore[arg-type]
            source_methods(facade),
        ),
        'gantt-planner': planner_methods.PlannerMethods(facade),
    }
    return {
        topic: {
            name: (method.parameters, _answer_of(name))
            for name, method in methods.interface.methods.items()
        }
        for topic, methods in interfaces.items()
    } | {
        'gantt-compute.NAME': {
            'build': ({'build': Build}, BuildOutcome),
            'delete': ({'delete': Delete}, BuildOutcome),
        }
    }


#: Method -> what runs it, where that has another name.
RUN_BY = {
    'cancel_claims': Scheduler.cancel,
    'extend_claims': Scheduler.extend,
    'confirm_claims': Scheduler.confirm,
    'refuse_claims': Scheduler.refuse,
    'release_claims': Scheduler.release,
    'update_resource_stats': Scheduler.report,
    'show_group_plan': GroupPlanner.show,
    'extend_group_plan': GroupPlanner.extend,
    'release_group_plan': GroupPlanner.release,
}


def _answer_of(name: str) -> Any:
    """The type of the answer of a method."""
    if name in ('select_destinations', 'get_request'):
        return AnswerByHosts
    if name in ('place_group', 'change_group'):
        return typing.get_args(typing.get_type_hints(GroupPlanner.submit)['return'])[0]
    run = RUN_BY.get(name) or getattr(Scheduler, name, None) or getattr(NovaSource, name)
    return typing.get_type_hints(run)['return']


@functools.cache
def schemas() -> dict[str, Any]:
    """Name -> schema of every type of a message, of both APIs."""
    annotations = list({repr(annotation): annotation for annotation in _of_rpc()}.values())
    _, components = _schemas_of(annotations)
    return {**components, **document()['components']['schemas']}


def _schemas_of(annotations: list[Any]) -> tuple[Any, dict[str, Any]]:
    """JSON schemas of types, and of those that they name; of ``object``, anything."""
    return msgspec.json.schema_components(
        annotations,
        schema_hook=lambda _: {'description': ''},
        ref_template='#/components/schemas/{name}',
    )


def _of_rpc() -> Iterator[Any]:
    for methods in topics().values():
        for takes, answer in methods.values():
            for annotation in (*takes.values(), answer):
                yield from dispatch.union_members(annotation)


@functools.cache
def structs() -> dict[str, Any]:
    """Name of a type -> the class that it is made from."""
    classes: dict[str, Any] = {}
    for route in http_app.ROUTES:
        signature = dispatch.signature_of(route.handler)
        for annotation in (signature.query, signature.body, signature.answer):
            _collect(annotation, classes)
    for annotation in _of_rpc():
        _collect(annotation, classes)
    return classes


def _collect(annotation: Any, classes: dict[str, Any]) -> None:
    origin = typing.get_origin(annotation) or annotation
    for argument in typing.get_args(annotation):
        _collect(argument, classes)
    if isinstance(origin, type) and issubclass(origin, msgspec.Struct):
        name = openapi.PUBLIC_NAMES.get(origin.__name__, origin.__name__)
        if name not in classes:
            classes[name] = origin
            for field in msgspec.structs.fields(origin):
                _collect(field.type, classes)


def field_notes(cls: Any) -> dict[str, str]:
    """Field, as it is encoded -> its text in the class or in one of its bases."""
    if cls is None:
        return {}
    notes: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            notes |= comments_of(base) | ivars_of(base)
    return {
        field.encode_name: plain(notes[field.name])
        for field in msgspec.structs.fields(cls)
        if field.name in notes
    }


def plain(text: str) -> str:
    """A docstring's text without its roles and field lists."""
    text = re.split(r'^\s*:(?:ivar|param|raises)', text, maxsplit=1, flags=re.MULTILINE)[0]
    return ' '.join(re.sub(r':\w+:`~?([^`]+)`', r'``\1``', text).split())


def title_of(name: str) -> str:
    """The name of a schema; that of a generic type has its argument in brackets."""
    return re.sub(r'^(\w+?)_(\w+)_$', r'\1[\2]', name)


def label(kind: str, name: str) -> str:
    return f'api-{kind}-{re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")}'


def shown(value: Any) -> str:
    return f'``{json.dumps(value, ensure_ascii=False)}``'


def type_of(schema: dict[str, Any], inside: bool = False) -> str:
    """The type of a schema in words, with links to the schemas that it names.

    :param inside: of a list or map, where a choice of types is put into parentheses
    """
    if '$ref' in schema:
        name = schema['$ref'].rpartition('/')[2]
        return f':ref:`{title_of(name)} <{label("type", name)}>`'
    for keyword in ('anyOf', 'oneOf'):
        if keyword in schema:
            text = ' or '.join(dict.fromkeys(type_of(choice, inside) for choice in schema[keyword]))
            return f'({text})' if inside else text
    if 'enum' in schema:
        return 'one of ' + ', '.join(shown(value) for value in schema['enum'])
    if 'const' in schema:
        return shown(schema['const'])
    return _plain_type(schema)


def _plain_type(schema: dict[str, Any]) -> str:
    match schema.get('type'):
        case 'array':
            return _list_type(schema)
        case 'object':
            values = schema.get('additionalProperties')
            if not isinstance(values, dict) or not values:
                return 'object'
            bounds = _bounds(schema, 'minProperties', 'maxProperties')
            return f'map of name to {type_of(values, inside=True)}{bounds}'
        case 'string':
            return _text_type(schema)
        case 'integer' | 'number' as kind:
            return kind + _bounds(schema, 'minimum', 'maximum')
        case 'boolean':
            return 'true or false'
        case 'null':
            return '``null``'
    return 'anything'


def _list_type(schema: dict[str, Any]) -> str:
    if 'prefixItems' in schema:
        return 'list: ' + ', '.join(type_of(item, inside=True) for item in schema['prefixItems'])
    inner = type_of(schema['items'], inside=True) if schema.get('items') else 'anything'
    return f'list of {inner}' + _bounds(schema, 'minItems', 'maxItems')


def _text_type(schema: dict[str, Any]) -> str:
    for pattern, name in PATTERNS.items():
        if schema.get('pattern', '').startswith(pattern):
            return name
    if 'format' in schema:
        return str(schema['format'])
    return 'text' + _bounds(schema, 'minLength', 'maxLength', ' characters')


def _bounds(schema: dict[str, Any], least: str, most: str, unit: str = '') -> str:
    low, high = schema.get(least), schema.get(most)
    if high is not None and high >= LARGE:
        high = None
    if low and high is not None:
        return f' ({low:,} to {high:,}{unit})'
    if high is not None:
        return f' (at most {high:,}{unit})'
    return f' (at least {low:,}{unit})' if low and low > 1 else ''


def default_of(schema: dict[str, Any], is_required: bool) -> str:
    if is_required:
        return 'required'
    return shown(schema['default']) if 'default' in schema else 'optional'


def example_of(content: dict[str, Any]) -> Iterator[str]:
    if 'example' in content:
        text = json.dumps(content['example'], indent=2, ensure_ascii=False)
        yield from ('.. code-block:: json', '')
        yield from textwrap.indent(text, '   ').splitlines()
        yield ''


class Operations(Generated):
    """All operations by tag: parameters, body, answers, refusals."""

    def lines(self) -> Iterator[str]:
        by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
        for path, operations in document()['paths'].items():
            for method, operation in operations.items():
                by_tag.setdefault(operation['tags'][0], []).append((method, path, operation))
        for tag, operations in by_tag.items():
            title = TITLES.get(tag, tag.replace('_', ' ').capitalize())
            yield from (title, '-' * len(title), '')
            rows = [
                [
                    f':ref:`{method.upper()} {path} <{label("operation", op["operationId"])}>`',
                    op['summary'],
                ]
                for method, path, op in operations
            ]
            yield from table(['Operation', 'Purpose'], rows, '45 55')
            for method, path, operation in operations:
                yield from self._operation(method, path, operation)

    def _operation(self, method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
        title = f'{method.upper()} {path}'
        yield from (f'.. _{label("operation", operation["operationId"])}:', '')
        yield from (title, '~' * len(title), '', operation['summary'])
        yield from (plain(operation.get('description', '')), '')
        if 'x-policy' in operation:
            needs = '; no token is needed' if 'security' in operation else ''
            yield from (f'Rule ``{operation["x-policy"]}``{needs}.', '')
        yield from self._parameters(operation)
        yield from self._body(operation)
        yield from self._answers(operation)

    def _parameters(self, operation: dict[str, Any]) -> Iterator[str]:
        notes = field_notes(query_of(operation['operationId']))
        rows = []
        for parameter in operation['parameters']:
            if '$ref' in parameter:
                continue  # the microversion, which every operation takes
            schema = parameter['schema']
            default = schema.get('default')
            note = parameter.get('description') or notes.get(parameter['name'], '')
            example = parameter.get('example', default)
            if example != default:
                note = f'{note} Example: {shown(example)}'.strip()
            rows.append(
                [
                    f'``{parameter["name"]}``',
                    parameter['in'],
                    type_of(schema),
                    default_of(schema, parameter['required']),
                    note,
                ]
            )
        if rows:
            yield from table(['Parameter', 'In', 'Type', 'Default', ''], rows, '18 8 24 14 36')

    def _body(self, operation: dict[str, Any]) -> Iterator[str]:
        if 'requestBody' not in operation:
            return
        content = operation['requestBody']['content']['application/json']
        yield from (f'Body: {type_of(content["schema"])}.', '')
        yield from example_of(content)

    def _answers(self, operation: dict[str, Any]) -> Iterator[str]:
        rows, refusals = [], []
        for status, answer in operation['responses'].items():
            if '$ref' in answer:
                refusals.append(f':ref:`{status} <{label("status", status)}>`')
                continue
            bodies = [
                type_of(body['schema']) if kind == 'application/json' else f'``{kind}``'
                for kind, body in answer.get('content', {}).items()
            ]
            meaning = 'Success.' if status == '200' else answer['description']
            headers = [f'``{name}``' for name in answer['headers'] if name not in ALWAYS]
            if headers:
                meaning += f' Headers: {", ".join(headers)}.'
            rows.append([status, ' or '.join(bodies) or 'none', meaning])
        yield from table(['Status', 'Body', 'Meaning'], rows, '10 36 54')
        if refusals:
            yield from (f'Refusals: {", ".join(refusals)}.', '')


#: Headers that every answer has.
ALWAYS = ('X-OpenStack-Request-ID', 'OpenStack-API-Version')


@functools.cache
def query_of(operation_id: str) -> Any:
    """The class of the query parameters of an operation; None of one outside of the routes."""
    for route in http_app.ROUTES:
        if route.handler.__name__ == operation_id:
            return dispatch.signature_of(route.handler).query
    return None


class Refusals(Generated):
    """What each status of a refusal means, with the codes of errors that have it."""

    def lines(self) -> Iterator[str]:
        codes: dict[str, set[str]] = {}
        for cls in _errors(exceptions.GanttError):
            codes.setdefault(str(cls.http_status), set()).add(f'``{cls.code}``')
        responses = document()['components']['responses']
        yield from example_of(responses['404']['content']['application/json'])
        for status, answer in responses.items():
            yield from (f'.. _{label("status", status)}:', '')
            yield from (f'``{status}``', f'   {answer["description"]}', '')
            if status in codes:
                yield from (f'   Codes: {", ".join(sorted(codes[status]))}.', '')


def _errors(cls: Any) -> Iterator[Any]:
    yield cls
    for child in cls.__subclasses__():
        yield from _errors(child)


class Headers(Generated):
    """The headers of answers."""

    def lines(self) -> Iterator[str]:
        rows = [
            [f'``{name}``', type_of(header['schema']), header['description']]
            for name, header in document()['components']['headers'].items()
        ]
        yield from table(['Header', 'Type', 'Meaning'], rows, '30 15 55')


class RpcMethods(Generated):
    """The methods of a topic."""

    required_arguments = 1

    def lines(self) -> Iterator[str]:
        rows = []
        for name, (takes, answer) in topics()[self.arguments[0]].items():
            arguments = [f'``{key}``: {type_of(schema_of(tp))}' for key, tp in takes.items()]
            rows.append([f'``{name}``', ', '.join(arguments), type_of(schema_of(answer))])
        yield from table(['Method', 'Arguments', 'Answer'], rows, '26 40 34')


def schema_of(annotation: Any) -> dict[str, Any]:
    schemas, _ = _schemas_of(list(dispatch.union_members(annotation)))
    return {'anyOf': list(schemas)}


class Types(Generated):
    """All types of messages, in alphabetical order."""

    def lines(self) -> Iterator[str]:
        for name in sorted(schemas(), key=str.lower):
            yield from (f'.. _{label("type", name)}:', '')
            title = title_of(name)
            yield from (title, '-' * len(title), '')
            yield from self._schema(name, schemas()[name])

    def _schema(self, name: str, schema: dict[str, Any]) -> Iterator[str]:
        yield from (plain(schema.get('description', '')), '')
        if 'properties' not in schema:
            yield from (f'Value: {type_of(schema)}.', '')
            return
        notes = field_notes(structs().get(name.partition('_')[0]))
        required = schema.get('required', ())
        rows = [
            [
                f'``{field}``',
                type_of(inner),
                default_of(inner, field in required),
                notes.get(field, ''),
            ]
            for field, inner in schema['properties'].items()
        ]
        if rows:
            yield from table(['Field', 'Type', 'Default', ''], rows, '22 28 14 36')


def setup(sphinx: Any) -> dict[str, Any]:
    sphinx.add_directive('gantt-http-operations', Operations)
    sphinx.add_directive('gantt-http-refusals', Refusals)
    sphinx.add_directive('gantt-http-headers', Headers)
    sphinx.add_directive('gantt-rpc-methods', RpcMethods)
    sphinx.add_directive('gantt-types', Types)
    return {'version': '1', 'parallel_read_safe': False}
