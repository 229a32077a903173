# SPDX-License-Identifier: Apache-2.0
"""Calls of Nova off their bytes are what they are by the general way, also from memory."""

import copy
import json
import random
import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt import exceptions
from gantt.nova.wire import legacy, remembered
from gantt.nova.wire import spec as nova_spec
from gantt.nova.wire.objects import topology_of
from gantt.rpc.amqp import envelope
from gantt.rpc.call import RpcCall
from tests.rpc.bus import load
from tests.rpc.odd import ODD, changed, places, without

TERMS = nova_spec.RequestTerms(budget_ms=45_000, lease_seconds=900, max_attempts=3)
CAPTURES = [
    'boot',
    'boot-multi3',
    'boot-anti-affinity-third',
    'boot-az-host',
    'boot-host-2.74',
    'live-migrate',
    'resize',
    'unshelve',
]


def captured_args(name):
    return copy.deepcopy(load(f'select_destinations-{name}').args)


def a_call(args, context):
    """A call as the library would write it."""
    message = {'method': 'select_destinations', 'version': '4.5', 'args': args, '_msg_id': 'm'}
    message |= {f'_context_{name}': value for name, value in context.items()}
    body = json.dumps({'oslo.version': '2.0', 'oslo.message': json.dumps(message)})
    return RpcCall(envelope.decode_message(None, body))


def outcome(find):
    """What is found, or how it is refused."""
    try:
        request, topology = find()
    except exceptions.GanttError as e:
        return type(e), str(e), e.kwargs
    except Exception as e:  # a defect, which has to be the same one
        return type(e), str(e), None
    return request, topology


def by_the_general_way(args, context):
    """As a decoder without types reads it."""

    def find():
        decoded = json.loads(json.dumps(args))
        read = legacy.arguments(decoded)
        request = nova_spec.translate(read, context, **TERMS._asdict())
        return request, topology_of(read['spec_obj'])

    return outcome(find)


def same(args, context, translations):
    """The outcome, which has to be that of the general way: when new, and from memory."""
    expected = by_the_general_way(args, context)
    for _ in range(2):
        call = a_call(args, context)
        actual = outcome(lambda call=call: nova_spec.request_of_call(call, translations, TERMS))
        # NaN is not itself.
        assert repr(actual) == repr(expected)
    return expected


KEPT = remembered.Translations()


@given(st.sampled_from(CAPTURES), st.integers(0, 1 << 32), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_any_change_of_a_captured_call_means_the_same_by_both_ways(name, seed, count):
    draw = random.Random(seed)
    captured = load(f'select_destinations-{name}')
    args, context = copy.deepcopy(captured.args), dict(captured.context)
    if draw.random() < 0.1:
        context['request_id'] = draw.choice([None, 7, 'req-\n', ['x']])
    for _ in range(count):
        path = draw.choice([path for path in places(args) if path])
        if draw.random() < 0.3:
            args = changed(args, path[:-1], without(path))
        else:
            odd = draw.choice(ODD)
            args = changed(args, path, lambda _, odd=odd: odd)
    same(args, context, KEPT)


@pytest.mark.parametrize('name', CAPTURES)
def test_a_captured_call_is_translated_once(name):
    translations = remembered.Translations()
    args, context = captured_args(name), {'request_id': 'req-1'}
    first, _ = same(args, context, translations)
    has_group = args['spec_obj']['nova_object.data'].get('instance_group') is not None
    assert len(translations) == (0 if has_group else 1)
    other = same(args | {'instance_uuids': [remembered_uuid(7)]}, context, translations)[0]
    assert len(translations) == (0 if has_group else 1)
    assert other.request.consumers == [remembered_uuid(7)]
    assert other.request.request_id != first.request.request_id


def remembered_uuid(number):
    return f'00000000-0000-0000-0000-{number:012}'


class Noting(dict):
    """A dictionary that notes what is read of it."""

    def __init__(self, translation, noted):
        super().__init__(translation)
        self.noted = noted

    def get(self, key, default=None):
        self.noted.add(key)
        return super().get(key, default)

    def __getitem__(self, key):
        self.noted.add(key)
        return super().__getitem__(key)


@pytest.mark.parametrize('name', CAPTURES)
def test_every_field_that_a_translation_reads_is_compared(name):
    args, noted = captured_args(name), set()
    spec = args['spec_obj']
    spec['nova_object.data'] = Noting(spec['nova_object.data'], noted)
    nova_spec.translate(args, {}, **TERMS._asdict())
    # By the one a call is left to the general way; the other two are of single instances.
    apart = {'instance_group', 'instance_uuid', 'num_instances'}
    assert noted - apart <= {*remembered.SPEC_FIELDS, 'project_id', 'user_id'}
    assert {'flavor', 'image', 'scheduler_hints'} <= noted


@pytest.mark.parametrize('part', remembered.SPEC_FIELDS)
def test_each_part_counts(part):
    """What is remembered of a call that differs in one part only is not taken for it."""
    translations = remembered.Translations()
    args = captured_args('boot')
    data = args['spec_obj']['nova_object.data']
    same(args, {}, translations)
    for value in (None, 'az-7', ['compute-007'], {'group': ['g']}, True, data['flavor']):
        data[part] = value
        same(args, {}, translations)


def test_one_translation_serves_all_projects_and_users():
    translations = remembered.Translations()
    args = captured_args('boot')
    data = args['spec_obj']['nova_object.data']
    for project, user in (('p', 'u'), ('q', 'u'), ('q', None), ('p', 'u'), (None, None)):
        data['project_id'], data['user_id'] = project, user
        spec = same(args, {}, translations)[0].request.spec
        assert (spec.project_id, spec.user_id) == (project, user)
    assert len(translations) == 1


def test_wanting_alternates_counts():
    """It tells a boot from an evacuation."""
    translations, purposes = remembered.Translations(), []
    args = captured_args('live-migrate')
    for alternates in (False, True):
        args['return_alternates'] = alternates
        purposes.append(same(args, {}, translations)[0].request.spec.purpose)
    assert purposes[0] is not purposes[1]


def with_extra_specs(args, specs):
    copied = copy.deepcopy(args)
    flavor = copied['spec_obj']['nova_object.data']['flavor']['nova_object.data']
    flavor['extra_specs'] = specs
    return copied


def test_flavors_of_many_extra_specs_each_time_others_take_no_more_than_they_may():
    translations = remembered.Translations(bytes_max=1 << 20)
    args = captured_args('boot')
    most = 0
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(40):
        specs = {f'k{n}': f'{number}-{n}' for n in range(250)}
        call = a_call(with_extra_specs(args, specs), {})
        translation, _ = nova_spec.request_of_call(call, translations, TERMS)
        assert translation.request.spec.flavor.extra_specs == specs
        del call, translation
        counted = sum(
            sum(map(sys.getsizeof, (key, *key))) + remembered.size_of(spec)
            for key, (spec, _) in translations.items()
        )
        assert translations.currsize == counted <= 1 << 20
        most = max(most, len(translations))
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 3 < len(translations) <= most < 40
    # What is counted is what it takes, but for what the allocator and the table of keys add.
    assert taken < 1.5 * (1 << 20)


def test_a_thousand_extra_specs_are_refused_as_ever_and_nothing_of_them_stays():
    translations = remembered.Translations()
    args = captured_args('boot')
    for number in range(5):
        specs = {f'hw:nothing_{n}': f'{number}-{n}' * 5 for n in range(1000)}
        kind, text, _ = same(with_extra_specs(args, specs), {}, translations)
        assert kind is exceptions.InvalidMessage and 'extra_specs' in text
        assert len(translations) == translations.currsize == 0


def test_parts_that_are_long_are_translated_each_time():
    translations = remembered.Translations()
    specs = {f'k{n}': 'x' * 1000 for n in range(40)}
    same(with_extra_specs(captured_args('boot'), specs), {}, translations)
    assert len(translations) == translations.currsize == 0


def test_what_was_not_asked_for_longest_makes_room():
    args = captured_args('boot')
    kept = remembered.Translations()
    same(args, {}, kept)
    bytes_of_one = kept.currsize
    translations = remembered.Translations(bytes_max=3 * bytes_of_one + bytes_of_one // 2)

    def ask(number):
        args['spec_obj']['nova_object.data']['availability_zone'] = f'az-{number:02}'
        nova_spec.request_of_call(a_call(args, {}), translations, TERMS)

    for number in (1, 2, 3, 1, 4):
        ask(number)
    zones = {spec.availability_zone for spec, _ in translations.values()}
    assert zones == {'az-01', 'az-03', 'az-04'}
