# SPDX-License-Identifier: Apache-2.0
"""Random requests made from the OpenAPI document: each answer is one that it lists, none a 5xx."""

import collections
import json
import urllib.parse
from typing import Any

import httpx2 as httpx
import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.http.site import Site, fixed
from tests.http.test_openapi import Client

#: Requests to one site before another one takes its place: what is removed is missing after.
OF_ONE_SITE = 100

#: Names that mean something there, and texts that something may trip over.
TEXTS = (
    'cmp-1',
    'cmp-2',
    'VCPU',
    'MEMORY_MB',
    'CUSTOM_GPU',
    'az1',
    'red',
    'default',
    'placed',
    'a',
    fixed(1),
    fixed(7),
    fixed(8),
    fixed(90),
    fixed(7).upper(),
    fixed(7)[:8],
    '0',
    '-1',
    '1.5',
    '1e999',
    'true',
    'null',
    '\x00',
    'a\nb',
    '\u202e',
    '\U0001f600',
    'é',
    '%',
    "'; --",
    '{}',
    'x' * 300,
    'ab ' * 9000,
    '2026-11-24T00:00:00Z',
    'VCPU=1',
    'a,b',
    'name:cmp-*',
    '*',
    '[',
)
NUMBERS = (0, 1, 2, 5, 100, 1000, -1, 2**31, 2**40, 2**53, 2**63, 2**64, 10**30, 1.5, -0.0, 1e300)
_texts = st.sampled_from(TEXTS) | st.text(max_size=20)
_anything = st.recursive(
    st.none() | st.booleans() | st.sampled_from(NUMBERS) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
#: How often a part is one that no schema asks for: one in so many.
ODD = 6


def _value(draw: Any, schema: dict[str, Any], document: dict[str, Any], depth: int = 0) -> Any:
    """A value that mostly fits a schema."""
    while '$ref' in schema:
        schema = document['components']['schemas'][schema['$ref'].rpartition('/')[2]]
    if draw(st.integers(1, ODD * 3)) == 1:
        return draw(_anything)
    if 'const' in schema:
        return schema['const']
    if 'enum' in schema:
        return draw(st.sampled_from(schema['enum']))
    either = schema.get('anyOf') or schema.get('oneOf')
    if either:
        return _value(draw, draw(st.sampled_from(either)), document, depth)
    if schema.get('type') == 'object':
        return _object(draw, schema, document, depth)
    if schema.get('type') == 'array':
        most = 2 if depth < 4 else 0
        least = min(schema.get('minItems', 0), 3)
        count = draw(st.integers(least, max(least, most + 1)))
        inner = schema.get('items', {})
        return [_value(draw, inner, document, depth + 1) for _ in range(count)]
    return draw(_simple(schema))


def _simple(schema: dict[str, Any]) -> Any:
    match schema.get('type'):
        case 'integer' | 'number':
            edges = [schema[key] for key in ('minimum', 'maximum') if key in schema]
            return st.sampled_from([*edges, *edges, 1, 2, *NUMBERS])
        case 'boolean':
            return st.booleans()
        case 'string':
            return _texts
        case 'null':
            return st.none()
    return _anything


def _object(draw: Any, schema: dict[str, Any], document: dict[str, Any], depth: int) -> Any:
    properties, needed = schema.get('properties', {}), schema.get('required', [])
    fields = {}
    for name, inner in properties.items():
        if name in needed or (depth < 4 and draw(st.integers(0, 3)) == 0):
            fields[name] = _value(draw, inner, document, depth + 1)
    more = schema.get('additionalProperties')
    if isinstance(more, dict) and depth < 4:
        for name in draw(st.lists(_texts, max_size=2)):
            fields[name] = _value(draw, more, document, depth + 1)
    if draw(st.integers(1, ODD)) == 1:
        fields[draw(_texts)] = draw(_anything)
    return fields


def _changed(draw: Any, body: Any) -> Any:
    """The same with one part, somewhere in it, replaced."""
    if isinstance(body, dict) and body and draw(st.integers(0, 2)):
        key = draw(st.sampled_from(sorted(body)))
        return {**body, key: _changed(draw, body[key])}
    if isinstance(body, list) and body and draw(st.integers(0, 2)):
        return [_changed(draw, body[0]), *body[1:]]
    return draw(_anything)


class Asker(Client):
    """Sends what it likes, and holds the answers against the document."""

    def send(self, draw: Any, operation_id: str) -> int:
        method, path, operation = self.operations[operation_id]
        query, headers = {}, {}
        for parameter in map(self._resolved, operation['parameters']):
            name, schema = parameter['name'], parameter.get('schema', {})
            usual = draw(st.integers(0, 1)) == 0 and 'example' in parameter
            if parameter['in'] == 'header':
                if 'example' in parameter:
                    headers[name] = parameter['example']
            elif parameter['in'] == 'path':
                value = parameter['example'] if usual else draw(_texts.filter(_is_one_part))
                path = path.replace(f'{{{name}}}', urllib.parse.quote(str(value), safe=''))
            elif name != 'wait' and (parameter['required'] or draw(st.integers(0, 2)) == 0):
                value = parameter['example'] if usual else _value(draw, schema, self.document)
                query[name] = value if isinstance(value, str) else json.dumps(value)
        content = None
        if 'requestBody' in operation:
            form = operation['requestBody']['content']['application/json']
            kind = draw(st.integers(0, 3))
            body = form['example']
            if kind == 1:
                body = _value(draw, form['schema'], self.document)
            elif kind:
                body = _changed(draw, body)
            content = json.dumps(body).encode()
            headers['Content-Type'] = 'application/json'
        url = f'{path}?{urllib.parse.urlencode(query, errors="surrogatepass")}' if query else path
        answer = self._caller.request(method, url, content=content, headers=headers)
        assert answer.status_code < 500, (method, url, content, answer.text)
        self._compare(operation_id, operation, answer)
        return answer.status_code


def _is_one_part(text: str) -> bool:
    """Whether a text is a part of a path: others lead to other routes, or to none.

    The transport of the tests carries ASCII only.
    """
    return text.isascii() and text.strip('.') != '' and '/' not in text and len(text) < 1000


def _ask(examples: int) -> collections.Counter[str]:
    """What the answers were, by operation and status."""
    counts: collections.Counter[str] = collections.Counter()
    askers: list[Asker] = []

    def asker() -> Asker:
        if not counts.total() % OF_ONE_SITE or not askers:
            site = Site()
            site.place(7)
            transport = httpx.WSGITransport(site.app)
            askers[:] = [Asker(httpx.Client(transport=transport, base_url='http://localhost'))]
        return askers[0]

    names = sorted(asker().operations)

    @settings(
        max_examples=-(-examples // len(names)),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),
    )
    @hypothesis.given(st.data())
    def run(name: str, data: st.DataObject) -> None:
        counts[f'{name} {asker().send(data.draw, name)}'] += 1

    # As often each: a draw among so many leaves one out now and then.
    for name in names:
        run(name)
    return counts


@pytest.mark.finding('API2', 'every answer is one that the document lists')
def test_each_answer_to_random_requests_is_in_the_document() -> None:
    counts = _ask(1000)
    assert (
        sum(count for outcome, count in counts.items() if outcome.endswith((' 200', ' 201'))) > 100
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.finding('API2', 'every answer is one that the document lists')
def test_each_answer_to_ten_thousand_requests_is_in_the_document() -> None:
    counts = _ask(10_000)
    assert (
        sum(count for outcome, count in counts.items() if outcome.endswith((' 200', ' 201'))) > 1000
    )
