# SPDX-License-Identifier: Apache-2.0
"""No list, map or text that comes from outside is without a bound.

The types are found where the doors have them: in the methods of every topic and in the
handlers of every route.  What is looked at is the types, so that a field added tomorrow is
looked at as well.
"""

import types
from typing import Annotated, Any, get_args

import httpx2 as httpx
import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest
from msgspec import inspect

from gantt import exceptions
from gantt.cmd.http_app import ROUTES
from gantt.compute.listen import interface_of
from gantt.core.messages import base
from gantt.core.messages import request as requests
from gantt.core.messages.base import Message
from gantt.core.messages.build import Build
from gantt.core.messages.report import HostReport, Hypervisor, check
from gantt.core.messages.request import GroupRef, Policy, RequestSpec, SelectDestinations
from gantt.http.dispatch import signature_of
from gantt.nova.service.facade import NovaFacade
from gantt.nova.wire.service import source_methods
from gantt.nova.wire.topic import NovaMethods, TopicSettings
from gantt.rpc.api import stats
from gantt.rpc.api.endpoints import ClaimsMethods, SchedulerMethods, StatsMethods
from gantt.rpc.api.stats_foreign import reported_facts
from tests.builders import a_request, uuid_of
from tests.http.site import Site
from tests.rpc.bus import Bus
from tests.world import World


class _Builder:
    """What the interface of a host names and none of these tests runs."""

    def build(self, build):
        raise AssertionError('nothing is built here')

    def delete(self, delete):
        raise AssertionError('nothing is deleted here')


def _interfaces():
    world = World()
    scheduler, nova = world.scheduler, NovaFacade(world.store, world.scheduler)
    return {
        'gantt-scheduler': SchedulerMethods(scheduler, None).interface,
        'gantt-claims': ClaimsMethods(scheduler).interface,
        'gantt-stats': StatsMethods(scheduler, stats.Ratios(), source_methods(nova)).interface,
        'gantt-compute': interface_of(_Builder(), lambda order: {}),
        'nova': NovaMethods(nova, None, None, TopicSettings(), None).interface,
    }


METHODS = {
    f'{topic} {name}': method
    for topic, interface in _interfaces().items()
    for name, method in interface.methods.items()
}
HANDLERS = {f'{route.method} {route.path}': signature_of(route.handler) for route in ROUTES}


def _inputs():
    for name, method in METHODS.items():
        for argument, tp in method.parameters.items():
            # Of several forms, which msgspec does not tell apart, each by itself.
            for form in get_args(tp) if isinstance(tp, types.UnionType) else (tp,):
                yield f'{name} {argument} {getattr(form, "__name__", "")}', form
    for name, signature in HANDLERS.items():
        yield f'{name} query', signature.query
        if signature.body is not None:
            yield f'{name} body', signature.body


INPUTS = dict(_inputs())


#: What has no length; and what is made of other types, which are looked at themselves.
SCALARS = (
    inspect.IntType,
    inspect.FloatType,
    inspect.BoolType,
    inspect.NoneType,
    inspect.EnumType,
    inspect.LiteralType,
)
MADE_OF = (inspect.Metadata, inspect.UnionType, inspect.TupleType, inspect.StructType)


class TableWalk:
    """Everything that a type is made of.

    :ivar unbounded: (where, what)
    :ivar patterns: of texts, each with one place that has it
    """

    def __init__(self):
        self.unbounded, self.patterns = set(), {}
        self._seen = set()

    def of(self, tp, where):
        self._look(inspect.type_info(tp), where, False)
        return self

    def _look(self, tp, where, opaque):
        if isinstance(tp, inspect.StructType):
            if tp.cls not in self._seen:
                self._seen.add(tp.cls)
                for field in tp.fields:
                    self._look(field.type, f'{tp.cls.__name__}.{field.name}', False)
            return
        self._judge(tp, where, opaque)
        opaque = base.OPAQUE_META_KEY in (getattr(tp, 'extra', None) or {})
        inner = 'type', 'types', 'item_type', 'item_types', 'key_type', 'value_type'
        for name in inner:
            parts = getattr(tp, name, ())
            for part in parts if isinstance(parts, tuple) else (parts,):
                self._look(part, where if name[:4] == 'type' else f'{where}, {name}', opaque)

    def _judge(self, tp, where, opaque):
        pattern = getattr(tp, 'pattern', None)
        if pattern is not None:
            self.patterns[pattern] = where
        if isinstance(tp, inspect.AnyType):
            bounded = opaque
        elif hasattr(tp, 'max_length'):
            bounded = tp.max_length is not None or pattern == base.UUID_PATTERN
        else:
            bounded = isinstance(tp, SCALARS + MADE_OF)
        if not bounded:
            self.unbounded.add((where, type(tp).__name__))


@pytest.mark.finding('H1', 'every list, map and text reachable from the wire has a bound')
@pytest.mark.parametrize('name', INPUTS)
def test_every_type_that_comes_from_outside_is_bounded(name):
    assert not TableWalk().of(INPUTS[name], name).unbounded


def test_every_method_and_every_route_with_a_body_is_walked():
    untyped = [name for name, method in METHODS.items() if not method.parameters]
    assert not untyped
    assert len(METHODS) > 20
    assert len(ROUTES) > 30
    bodies = [signature.body for signature in HANDLERS.values() if signature.body is not None]
    assert SelectDestinations in bodies
    assert all(issubclass(body, Message) for body in bodies)


def test_the_walk_finds_what_has_no_bound():
    class Inner(Message, frozen=True, kw_only=True):
        anything: Any
        texts: list[str]

    class Outer(Message, frozen=True, kw_only=True):
        inner: dict[base.Name, Inner | None]

    unbounded = {where for where, _ in TableWalk().of(Outer, 'it').unbounded}
    assert unbounded == {
        'Inner.anything',
        'Inner.texts',
        'Inner.texts, item_type',
        'Outer.inner',
    }


PATTERNS = {
    pattern: where
    for name, tp in INPUTS.items()
    for pattern, where in TableWalk().of(tp, name).patterns.items()
}


@pytest.mark.finding('M1', 'a newline at the end is no part of a name or uuid')
@pytest.mark.parametrize('pattern', sorted(PATTERNS), ids=PATTERNS.get)
def test_no_pattern_of_the_wire_takes_a_newline_at_the_end(pattern):
    text = Annotated[str, msgspec.Meta(pattern=pattern)]

    @hypothesis.settings(
        max_examples=50,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    @hypothesis.given(st.from_regex(pattern))
    def takes_none(value):
        for variant in (value, f'{value}\n', f'{value}\r\n'):
            if variant.endswith('\n'):
                with pytest.raises(msgspec.ValidationError):
                    msgspec.convert(variant, text)

    takes_none()


@pytest.mark.finding('M1', 'a newline at the end is no part of a name or uuid')
@pytest.mark.parametrize(
    'body',
    [
        {'request_id': f'{uuid_of(1)}\n', 'consumers': [uuid_of(2)]},
        {'request_id': uuid_of(1), 'consumers': [f'{uuid_of(2)}\n']},
        {'request_id': uuid_of(1), 'consumers': [uuid_of(2)], 'zone': 'north\n'},
    ],
    ids=['request_id', 'consumer', 'name'],
)
def test_a_request_with_a_newline_in_a_name_is_refused(body):
    zone = body.pop('zone', None)
    spec = {'resources': {'VCPU': 1}, 'availability_zone': zone}
    with pytest.raises(exceptions.InvalidMessage):
        base.decode(body | {'spec': spec}, SelectDestinations, inside='request')


def spec(**fields):
    body = {'resources': {'VCPU': 1}, **fields}
    return base.decode(body, RequestSpec, inside='spec')


MANY = [f'name-{number}' for number in range(base.LIST_MAX)]


@pytest.mark.finding('H1', 'every list, map and text reachable from the wire has a bound')
@pytest.mark.parametrize(
    ('fields', 'named'),
    [
        ({'any_traits': [['a', str(n)] for n in range(65)]}, 'spec.any_traits'),
        ({'any_traits': [[*MANY], ['one more']]}, 'spec.any_traits'),
        ({'member_of': [[]] * 65}, 'spec.member_of'),
        ({'member_of': [[*MANY], ['one more']]}, 'spec.member_of'),
        ({'destination': {'aggregates': [[]] * 65}}, 'spec.destination.aggregates'),
        ({'destination': {'aggregates': [[*MANY], ['a']]}}, 'spec.destination.aggregates'),
        ({'hints': {'any': ['a'] * 1001}}, 'spec.hints.any'),
        ({'hints': {'any': ['a' * 1000] * 17}}, 'spec.hints'),
        ({'hints': {f'{n:0250}': [] for n in range(66)}}, 'spec.hints'),
    ],
    ids=lambda value: value if isinstance(value, str) else '',
)
def test_lists_of_lists_and_hints_are_bounded_together(fields, named):
    with pytest.raises(exceptions.InvalidMessage) as refused:
        spec(**fields)
    assert refused.value.kwargs['field'] == named


@pytest.mark.finding('H1', 'members that are claimed together are so few that nobody waits long')
def test_a_request_of_a_group_has_fewer_consumers():
    group = GroupRef(uuid=uuid_of('group'), policy=Policy.AFFINITY)
    uuids = [uuid_of(number) for number in range(requests.GROUP_CONSUMERS_MAX + 1)]
    requests.check(a_request(consumers=uuids).build())
    requests.check(a_request(consumers=uuids[1:], group=group).build())
    with pytest.raises(exceptions.InvalidMessage, match='at most 400 consumers') as refused:
        requests.check(a_request(consumers=uuids, group=group).build())
    assert refused.value.kwargs['field'] == 'request.consumers'


def test_what_says_nothing_new_is_not_looked_at_again():
    names = [['a', 'b'], [], ['b', 'a'], ['c', 'c'], ['a', 'b', 'a']]
    once = [['a', 'b'], [], ['c']]  # nobody is in one of no aggregates
    normalized = spec(any_traits=names, member_of=names, destination={'aggregates': names})
    assert (
        normalized.any_traits == normalized.member_of == normalized.destination.aggregates == once
    )


def test_hints_that_are_fields_are_as_long_as_these():
    uuids = [uuid_of(number) for number in range(base.LIST_MAX)]
    assert spec(hints={'different_host': uuids}).different_host == uuids


@pytest.mark.finding('H1', 'every list, map and text reachable from the wire has a bound')
def test_what_no_type_describes_is_bounded_in_bytes():
    large = {str(number): 'x' * 1000 for number in range(600)}
    with pytest.raises(exceptions.InvalidMessage, match='build.guest: expected at most') as refused:
        body = {'claim_id': uuid_of(1), 'consumer': uuid_of(2), 'host': 'a', 'resources': {}}
        base.decode(body | {'guest': {'data': large}}, Build, inside='build')
    assert len(refused.value.message) < 200
    with pytest.raises(exceptions.InvalidMessage, match='stats.numa_topology: expected at most'):
        body = {'vcpus': 1, 'memory_mb': 1, 'local_gb': 1, 'numa_topology': large}
        reported_facts('cmp-1', body, stats.Ratios())
    cpu = Hypervisor(cpu_info={'features': ['x' * 100] * 1000})
    with pytest.raises(exceptions.InvalidMessage, match=r'stats.hypervisor.cpu_info: expected'):
        check(
            HostReport(
                name='a',
                epoch=1,
                sequence=1,
                full=True,
                running=[],
                pending=[],
                inventories={},
                hypervisor=cpu,
            )
        )


@pytest.mark.finding('H1', 'every list, map and text reachable from the wire has a bound')
def test_a_foreign_report_is_held_to_the_bounds_of_ours():
    resources = {'vcpus': 1, 'memory_mb': 1, 'local_gb': 1}
    instances = [['x86_64', 'kvm', 'hvm']] * 1001
    with pytest.raises(exceptions.InvalidMessage, match='hypervisor.supported'):
        reported_facts('cmp-1', resources | {'supported_instances': instances}, stats.Ratios())


@pytest.mark.finding('H3', 'bodies, queues and what is kept are bounded in bytes')
def test_a_body_is_bounded_by_its_route():
    caller = httpx.Client(
        transport=httpx.WSGITransport(app=Site().app), base_url='http://localhost'
    )
    body = {
        'request_id': uuid_of(1),
        'consumers': [uuid_of(2)],
        'spec': {'resources': {'VCPU': 1}, 'ignore_hosts': [name * 20 for name in MANY]},
    }
    response = caller.post('/v1/requests', json=body)
    assert response.status_code == 413
    assert response.json()['errors'][0]['details']['limit'] == base.REQUEST_BYTES_MAX
    assert caller.post('/v1/what-if', json={'request': body}).status_code != 413


@pytest.mark.finding('H3', 'bodies, queues and what is kept are bounded in bytes')
def test_a_message_is_bounded_by_its_method():
    limits = {name: method.bytes_max for name, method in METHODS.items()}
    assert limits['gantt-scheduler select_destinations'] == base.REQUEST_BYTES_MAX
    assert limits['nova select_destinations'] == 2 * base.REQUEST_BYTES_MAX
    bulk = {name for name, limit in limits.items() if limit is None}
    assert not any(name.startswith(('gantt-scheduler', 'gantt-claims')) for name in bulk)


@pytest.mark.finding('H3', 'bodies, queues and what is kept are bounded in bytes')
def test_a_request_of_nova_is_smaller_than_what_its_hosts_list():
    """Both come by one queue, whose server takes the larger of them."""
    bus = Bus()
    try:
        nova = bus.raw('scheduler', '4.5', exchange='nova')
        with pytest.raises(exceptions.PayloadTooLarge) as refused:
            nova.call({}, 'select_destinations', spec_obj='x' * (2 * base.REQUEST_BYTES_MAX))
        assert refused.value.kwargs['limit'] == 2 * base.REQUEST_BYTES_MAX
    finally:
        bus.close()
