# SPDX-License-Identifier: Apache-2.0
"""One request has one fingerprint, however its sender wrote it down."""

import json
import random

import msgspec
import pytest

from gantt.core.messages import base
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.testing import clouds

POLICIES = {
    'policies': [
        {'policy': 'spread', 'level': 'rack', 'min_domains': 2, 'drop': 1},
        {'policy': 'near', 'target': {'host': 'cmp-1'}, 'soft': 2.0},
        {'policy': 'anti-affinity'},
    ]
}


def a_request(spec):
    body = {'request_id': clouds.an_id(1, 1), 'consumers': [clouds.an_id(2, 1)], 'spec': spec}
    return base.decode(json.loads(json.dumps(body)), SelectDestinations, inside='request')


def in_full(value, rng):
    """Return a message as a sender states it that leaves no default out, with keys in any order."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.fields(value)
        value = {field.encode_name: getattr(value, field.name) for field in fields}
    if isinstance(value, dict):
        items = list(value.items())
        rng.shuffle(items)
        return {key: in_full(item, rng) for key, item in items}
    return [in_full(item, rng) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize('seed', range(100))
def test_a_default_that_is_stated_changes_nothing(seed):
    rng = random.Random(seed)
    spec = msgspec.to_builtins(clouds.a_spec(rng))
    if not seed % 4:
        spec['group'] = {'uuid': clouds.an_id(3, seed), 'policies': POLICIES}
    request = a_request(spec)
    other = a_request(in_full(request.spec, rng))
    assert other.spec == request.spec
    assert other.fingerprint == request.fingerprint
    assert other.spec.digest == request.spec.digest


def test_another_value_is_another_request():
    spec = {'resources': {'VCPU': 1}}
    values = {'consumer_type': 'MIGRATION', 'flavor': {'name': 'm1'}, 'image': {'uuid': 'some'}}
    fingerprints = {a_request(spec | {name: value}).fingerprint for name, value in values.items()}
    assert len(fingerprints | {a_request(spec).fingerprint}) == 4


def test_messages_within_a_spec_share_their_defaults():
    """A class that is added to the spec calls ``share_defaults`` where it has to."""
    seen = set()

    def visit(info):
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in seen:
                return
            seen.add(info.cls)
            for field in info.fields:
                visit(field.type)
        for part in ('item_type', 'value_type'):
            if hasattr(info, part):
                visit(getattr(info, part))
        for inner in getattr(info, 'types', ()):
            visit(inner)

    visit(msgspec.inspect.type_info(RequestSpec))
    assert len(seen) > 10
    for kind in seen:
        if base._large_defaults(kind):
            assert 'share_defaults' in kind.__post_init__.__code__.co_names, kind
