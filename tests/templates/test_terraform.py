# SPDX-License-Identifier: Apache-2.0
"""Plans of Terraform as descriptions: count, for_each, modules, references; and what is refused."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from gantt import exceptions
from gantt.core.messages.request import RequestSpec
from gantt.groups.model import group_description
from gantt.templates.flavors import read_flavors
from gantt.templates.terraform import convert_plan

INSTANCE, GROUP = 'openstack_compute_instance_v2', 'openstack_compute_servergroup_v2'
FLAVORS = read_flavors(
    {
        'flavors': [
            {'id': '1', 'name': 'small', 'vcpus': 1, 'ram': 2048, 'disk': 20, 'swap': ''},
            {
                'id': 'b16',
                'name': 'big',
                'vcpus': 8,
                'ram': 16384,
                'disk': 80,
                'OS-FLV-EXT-DATA:ephemeral': 10,
                'extra_specs': {'trait:HW_CPU_X86_AVX2': 'required'},
            },
        ]
    }
)
EMPTY = {'format_version': '1.2', 'configuration': {'root_module': {}}}
SMALL = {'VCPU': 1, 'MEMORY_MB': 2048, 'DISK_GB': 20}


def refers(*references: str) -> dict[str, Any]:
    return {'references': list(references)}


def in_group(reference: str) -> dict[str, Any]:
    """Return expressions of an instance whose hint refers to a group, as Terraform lists them."""
    return {'scheduler_hints': [{'group': refers(f'{reference}.id', reference)}]}


class Plan:
    """A plan, built resource by resource."""

    def __init__(self) -> None:
        self.changes: list[dict[str, Any]] = []
        self.root: dict[str, Any] = {}

    def module(
        self, name: str, parent: dict[str, Any] | None = None, **call: Any
    ) -> dict[str, Any]:
        """Add the configuration of a module, and return it."""
        calls = (self.root if parent is None else parent).setdefault('module_calls', {})
        calls[name] = {'module': {}, 'expressions': call}
        module: dict[str, Any] = calls[name]['module']
        return module

    def add(
        self,
        kind: str,
        name: str,
        *,
        keys: tuple[Any, ...] = (None,),
        at: str = '',
        module: dict[str, Any] | None = None,
        expressions: dict[str, Any] | None = None,
        unknown: dict[str, Any] | None = None,
        actions: tuple[str, ...] = ('create',),
        **after: Any,
    ) -> None:
        """Add a resource with its instances, below the module instance ``at``."""
        resources = (self.root if module is None else module).setdefault('resources', [])
        configured = {'address': f'{kind}.{name}', 'type': kind, 'name': name}
        if configured['address'] not in {resource['address'] for resource in resources}:
            resources.append({**configured, 'expressions': expressions or {}})
        for key in keys:
            suffix = '' if key is None else f'[{json.dumps(key)}]'
            change: dict[str, Any] = {
                'address': f'{at}.' * bool(at) + f'{kind}.{name}{suffix}',
                'mode': 'managed',
                'type': kind,
                'name': name,
                'change': {
                    'actions': list(actions),
                    'after': after,
                    'after_unknown': {'id': True, **(unknown or {})},
                },
            }
            change |= {'module_address': at} if at else {}
            change |= {} if key is None else {'index': key}
            self.changes.append(change)

    def server(self, name: str, reference: str = '', **fields: Any) -> None:
        """Add instances of the flavor small, in a group where a reference is given."""
        fields = {'flavor_name': 'small', **fields}
        if reference:
            fields |= {
                'expressions': in_group(reference),
                'scheduler_hints': [{'group': None}],
                'unknown': {'scheduler_hints': [{'group': True}], 'availability_zone': True},
            }
        self.add(INSTANCE, name, **fields)

    def group(self, name: str, *policies: str, **fields: Any) -> None:
        self.add(GROUP, name, policies=list(policies or ('anti-affinity',)), **fields)

    @property
    def document(self) -> dict[str, Any]:
        return {
            'format_version': '1.2',
            'resource_changes': self.changes,
            'configuration': {'root_module': self.root},
        }

    def converted(self) -> Any:
        return convert_plan(self.document, FLAVORS)


@pytest.fixture
def plan() -> Plan:
    return Plan()


def members_of(imported: Any) -> dict[str, int]:
    return {member['name']: member.get('count', 1) for member in imported.description['members']}


def refused(plan: Plan, field: str, problem: str) -> None:
    with pytest.raises(exceptions.InvalidMessage) as caught:
        plan.converted()
    assert caught.value.message.startswith(field)
    assert problem in caught.value.message


def test_instances_of_one_resource_are_one_member_with_a_count(plan):
    plan.server('web', keys=(0, 1, 2), image_id='7')
    plan.server('db', flavor_name=None, flavor_id='b16', availability_zone='west')
    imported = plan.converted()
    assert imported.addresses == {
        'web': [f'{INSTANCE}.web[{n}]' for n in range(3)],
        'db': [f'{INSTANCE}.db'],
    }
    web, db = imported.description['members']
    assert (web['count'], web['spec']['resources']) == (3, SMALL)
    assert web['spec']['image'] == {'uuid': '7'}
    assert db['spec']['resources'] == {'VCPU': 8, 'MEMORY_MB': 16384, 'DISK_GB': 90}
    assert db['spec']['required_traits'] == ['HW_CPU_X86_AVX2']
    assert db['spec']['availability_zone'] == 'west'
    assert 'policies' not in imported.description


def test_instances_that_differ_are_members_by_their_keys(plan):
    plan.server('app', keys=('a', 'b'))
    plan.server('app', keys=('c',), flavor_name='big')
    assert members_of(plan.converted()) == {'app-a': 2, 'app-c': 1}


def test_a_group_is_a_policy_of_those_that_refer_to_it(plan):
    plan.group('apart', rules=[{'max_server_per_host': 2}])
    plan.group('near', 'soft-affinity')
    plan.server('web', f'{GROUP}.apart', keys=(0, 1))
    plan.server('cache', f'{GROUP}.near')
    plan.server('db', f'{GROUP}.near')
    plan.server('alone')
    imported = plan.converted()
    assert imported.description['policies'] == [
        {'policy': 'anti-affinity', 'of': 'web', 'max_per_domain': 2},
        {'policy': 'affinity', 'of': 'near', 'soft': 1},
    ]
    assert imported.description['subgroups'] == {'near': ['cache', 'db']}
    assert members_of(imported) == {'web': 2, 'cache': 1, 'db': 1, 'alone': 1}


def test_groups_by_count_and_for_each_are_found_by_key(plan):
    plan.group('by_key', keys=('blue', 'green'))
    plan.server('first', f'{GROUP}.by_key["green"]')
    plan.add(
        INSTANCE,
        'each',
        keys=('blue', 'green'),
        flavor_name='small',
        expressions={'scheduler_hints': [{'group': refers(f'{GROUP}.by_key', 'each.key')}]},
        scheduler_hints=[{}],
        unknown={'scheduler_hints': [{'group': True}]},
    )
    imported = plan.converted()
    assert imported.description['subgroups'] == {'by_key-green': ['first', 'each-green']}
    assert imported.description['policies'] == [
        {'policy': 'anti-affinity', 'of': 'each-blue'},
        {'policy': 'anti-affinity', 'of': 'by_key-green'},
    ]


def test_references_go_through_variables_and_outputs_of_modules(plan):
    groups = plan.module('groups')
    groups['outputs'] = {'id': {'expression': refers(f'{GROUP}.g.id', f'{GROUP}.g')}}
    tier = plan.module('tier', group=refers('module.groups.id', 'module.groups'))
    servers = plan.module('servers', tier, into=refers('var.group'))
    plan.group('g', at='module.groups', module=groups)
    for key in ('x', 'y'):
        plan.add(
            INSTANCE,
            'web',
            keys=(0, 1),
            at=f'module.tier["{key}"].module.servers',
            module=servers,
            flavor_name='small',
            expressions={'scheduler_hints': [{'group': refers('var.into')}]},
            scheduler_hints=[{}],
            unknown={'scheduler_hints': [{'group': True}]},
        )
    imported = plan.converted()
    assert members_of(imported) == {'tier-x-servers-web': 2, 'tier-y-servers-web': 2}
    assert imported.description['subgroups'] == {
        'groups-g': ['tier-x-servers-web', 'tier-y-servers-web']
    }


def test_only_what_is_created_is_a_member(plan):
    plan.server('old', actions=('no-op',))
    plan.server('gone', actions=('delete',))
    plan.server('new', actions=('delete', 'create'))
    plan.group('empty')
    imported = plan.converted()
    assert members_of(imported) == {'new': 1}
    assert len(imported.left_out) == 3
    assert f'{GROUP}.empty: no instance that is created is in it' in imported.left_out


def test_volumes_hints_and_metadata_are_read(plan):
    plan.server(
        'web',
        block_device=[{'boot_index': 0, 'destination_type': 'volume'}],
        scheduler_hints=[
            {
                'different_host': ['0' * 8 + '-0000-0000-0000-' + '0' * 12],
                'additional_properties': {'tier': 'a', 'gantt_plan': 'p', 'gantt_member': 'web'},
            }
        ],
        metadata={'gantt': '{"count": [1, 3], "policies": [{"policy": "affinity"}]}'},
    )
    imported = plan.converted()
    (web,) = imported.description['members']
    assert web['count'] == [1, 3]
    assert web['spec']['volume_backed'] is True
    assert 'DISK_GB' not in web['spec']['resources']
    assert web['spec']['hints'] == {
        'different_host': ['0' * 8 + '-0000-0000-0000-' + '0' * 12],
        'tier': ['a'],
    }
    assert imported.description['policies'] == [{'of': 'web', 'policy': 'affinity'}]


def test_a_member_is_what_a_create_by_nova_has():
    """The amounts of both come from one function."""
    plan = Plan()
    plan.server('big', flavor_name='big')
    (member,) = group_description.read(plan.converted().description).members
    assert isinstance(member.spec, RequestSpec)
    assert member.spec.flavor.extra_specs == {'trait:HW_CPU_X86_AVX2': 'required'}


@pytest.mark.parametrize(
    ('fields', 'field', 'problem'),
    [
        ({'flavor_name': None}, f'{INSTANCE}.a.flavor_name', 'is not known before apply'),
        ({'flavor_name': 'huge'}, f'{INSTANCE}.a.flavor_name', "'huge' is not among the flavors"),
        (
            {'availability_zone': 'nova:cmp-1'},
            f'{INSTANCE}.a.availability_zone',
            'expected a zone without a host',
        ),
        (
            {'expressions': {'availability_zone': {}}, 'unknown': {'availability_zone': True}},
            f'{INSTANCE}.a.availability_zone',
            'is not known before apply',
        ),
        (
            {'scheduler_hints': [{'group': '7' * 8}]},
            f'{INSTANCE}.a.scheduler_hints.group',
            'is not made by this plan',
        ),
        (
            {'scheduler_hints': [{}], 'unknown': {'scheduler_hints': [{'different_host': [True]}]}},
            f'{INSTANCE}.a.scheduler_hints.different_host',
            'is not known before apply',
        ),
        ({'metadata': {'gantt': '{'}}, f'{INSTANCE}.a.metadata.gantt', 'expected JSON'),
        ({'metadata': {'gantt': '{"size": 1}'}}, f'{INSTANCE}.a.metadata.gantt', 'with count, '),
        (
            {'metadata': {'gantt': '{"policies": [{"policy": "near"}]}'}},
            'description.policies[0]',
            'target',
        ),
    ],
    ids=range(9),
)
def test_what_cannot_be_planned_is_refused_by_its_address(plan, fields, field, problem):
    plan.server('a', **fields)
    refused(plan, field, problem)


def test_groups_of_one_name_in_two_modules_stay_apart(plan):
    module = plan.module('m')
    plan.group('m-g', 'affinity')
    plan.group('g', at='module.m', module=module)
    for name in ('a', 'b'):
        plan.server(name, f'{GROUP}.m-g')
        plan.server(name, f'{GROUP}.g', at='module.m', module=module)
    imported = plan.converted()
    assert imported.description['subgroups'] == {'m-g': ['a', 'b'], 'm-g.2': ['m-a', 'm-b']}
    assert [policy['policy'] for policy in imported.description['policies']] == [
        'affinity',
        'anti-affinity',
    ]


def test_hints_of_which_nothing_is_known_are_refused(plan):
    plan.server('a', unknown={'scheduler_hints': True})
    refused(plan, f'{INSTANCE}.a.scheduler_hints', 'is not known before apply')


def test_a_count_below_the_number_of_instances_is_refused(plan):
    plan.server('a', keys=(0, 1, 2), metadata={'gantt': '{"count": 1}'})
    refused(plan, f'{INSTANCE}.a[0].metadata.gantt', 'count: expected at least the 3 instances')


def test_references_in_a_circle_end(plan):
    first, second = plan.module('first'), plan.module('second')
    plan.root['module_calls']['first']['expressions'] = {'x': refers('module.second.y')}
    plan.root['module_calls']['second']['expressions'] = {'x': refers('module.first.y')}
    for module in (first, second):
        module['outputs'] = {'y': {'expression': refers('var.x', 'var.z')}}
        plan.group('g', at='module.first', module=first)
    plan.server('a', 'var.x', at='module.first', module=first)
    refused(plan, f'module.first.{INSTANCE}.a.scheduler_hints.group', 'found none by var.x')


WRONG_TYPES = (True, 7, 'x', [], {}, [1], {'a': 1}, [[]], None, '\ud800', 10**30)


def test_values_of_any_type_are_read_or_refused(plan):
    """Each place of a whole plan in turn has a value of each type."""
    module = plan.module('m', group=refers(f'{GROUP}.g.id'))
    plan.group('g', keys=(0, 1), rules=[{'max_server_per_host': 2}])
    plan.server(
        'a',
        'var.group',
        at='module.m',
        module=module,
        metadata={'gantt': '{}'},
        block_device=[{'boot_index': 0}],
    )
    document = json.dumps(plan.document)
    for path in list(paths_of(json.loads(document))):
        for value in WRONG_TYPES:
            changed = json.loads(document)
            inner = changed
            for step in path[:-1]:
                inner = inner[step]
            inner[path[-1]] = value
            with contextlib.suppress(exceptions.GanttError):
                convert_plan(changed, FLAVORS)


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a document but the document itself."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, element in inner:
        yield (*path, key)
        if isinstance(element, (dict, list)):
            yield from paths_of(element, (*path, key))


def test_a_group_that_cannot_be_told_is_refused(plan):
    plan.group('one')
    plan.group('two')
    plan.add(
        INSTANCE,
        'a',
        flavor_name='small',
        expressions={'scheduler_hints': [{'group': refers(f'{GROUP}.one', f'{GROUP}.two')}]},
        scheduler_hints=[{}],
        unknown={'scheduler_hints': [{'group': True}]},
    )
    refused(plan, f'{INSTANCE}.a.scheduler_hints.group', f'found {GROUP}.one, {GROUP}.two')
    many = Plan()
    many.server('a', keys=tuple(range(1001)))
    refused(many, 'resource_changes', 'expected at most 1000 instances')
    local = Plan()
    local.group('one')
    local.server('a', 'local.group')
    refused(local, f'{INSTANCE}.a.scheduler_hints.group', 'found none by local.group.id')
    wrong = Plan()
    wrong.group('one', 'anti-affinity', 'affinity')
    wrong.server('a', f'{GROUP}.one')
    refused(wrong, f'{GROUP}.one.policies', 'expected one of affinity, ')


@pytest.mark.parametrize(
    ('document', 'problem'),
    [
        ([], 'format_version'),
        ({'format_version': '2.0'}, 'got 2.0'),
        ({'format_version': '1.2'}, 'plan.configuration'),
        ({**EMPTY}, 'there is none'),
        ({**EMPTY, 'resource_changes': [1]}, 'plan.resource_changes[0]: expected an object'),
        ({**EMPTY, 'resource_changes': {}}, 'plan.resource_changes: expected a list'),
    ],
    ids=range(6),
)
def test_another_document_is_refused(document, problem):
    with pytest.raises(exceptions.InvalidMessage) as caught:
        convert_plan(document, FLAVORS)
    assert problem in caught.value.message


@pytest.mark.parametrize(
    ('document', 'problem'),
    [
        ({}, 'expected a list of flavors'),
        ([1], 'flavors[0]: expected an object'),
        ([{'name': ''}], 'flavors[0].name'),
        ([{'name': 'a', 'ram': 1}], 'flavors[0].vcpus'),
        ([{'name': 'a', 'vcpus': 1, 'ram': 1, 'Properties': 'x=1'}], 'flavors[0].extra_specs'),
        ([{'name': 'a', 'vcpus': 1, 'ram': 1}] * 2, 'of another flavor as well'),
    ],
    ids=range(6),
)
def test_flavors_of_another_form_are_refused(document, problem):
    with pytest.raises(exceptions.InvalidMessage) as caught:
        read_flavors(document)
    assert problem in caught.value.message


def test_flavors_as_the_client_lists_them_are_read():
    row = {
        'ID': '1',
        'Name': 'small',
        'RAM': 2048,
        'Disk': 20,
        'Ephemeral': 0,
        'VCPUs': 1,
        'Is Public': True,
        'Swap': 0,
        'RXTX Factor': 1.0,
        'Properties': {},
    }
    (flavor,) = {id(flavor): flavor for flavor in read_flavors([row]).values()}.values()
    assert (flavor['vcpus'], flavor['memory_mb'], flavor['root_gb']) == (1, 2048, 20)
