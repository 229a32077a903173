# SPDX-License-Identifier: Apache-2.0
"""Templates of Heat as descriptions, read by Heat's own library where it is installed.

``make venv-heat`` installs it; ``GANTT_TEST_HEAT`` names another Python that has it.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gantt import exceptions
from gantt.groups.model import group_description
from gantt.templates.flavors import read_flavors
from gantt.templates.heat_offline import PROGRAM, HeatLibrary, convert, convert_expanded
from gantt.templates.imported import TemplateSource

HOME = Path(__file__).parents[2] / '.venv-heat'
FLAVORS = read_flavors(
    [
        {'id': '1', 'name': 'small', 'vcpus': 1, 'ram': 2048, 'disk': 20},
        {'id': 'b16', 'name': 'big', 'vcpus': 8, 'ram': 16384, 'disk': 80},
    ]
)
HOT = 'heat_template_version: 2021-04-16\n'
SERVER = 'type: OS::Nova::Server'


@pytest.fixture(scope='session')
def heat_python():
    """Return a Python that has Heat's library."""
    configured = os.environ.get('GANTT_TEST_HEAT')
    if configured is None and not (HOME / 'made').exists():
        pytest.skip('NO HEAT: "make venv-heat" installs it')
    return configured or str(HOME / 'bin' / 'python')


@pytest.fixture(scope='module')
def library(heat_python):
    with HeatLibrary(heat_python) as library:
        yield library


@pytest.fixture
def imported(library, tmp_path):
    """Return a function that imports a template, with files beside it by name."""

    def run(text, parameters=None, environments=(), **files):
        for name, content in {'root': text, **files}.items():
            (tmp_path / f'{name}.yaml').write_text(HOT * ('resources' in content) + content)
        paths = [tmp_path / f'{name}.yaml' for name in environments]
        expanded = library.read(str(tmp_path / 'root.yaml'), paths, parameters)
        return convert_expanded(expanded, FLAVORS, where='root.yaml')

    return run


@pytest.fixture
def problem(imported):
    """Return a function that returns why a template is refused."""

    def run(text, **options):
        with pytest.raises(exceptions.InvalidMessage) as caught:
            imported(text, **options)
        return caught.value.message

    return run


def one_server(properties, more=''):
    """Return a template with the server ``a``, its properties in flow style."""
    return f'resources:\n  a: {{{SERVER}, properties: {{{properties}}}}}\n{more}'


OTHER = f'  other: {{{SERVER}, properties: {{flavor: small}}}}\n'
CHILD = textwrap.dedent("""
    parameters:
      group: {type: string}
      password: {type: string, hidden: true, default: pl4nted-inner}
    resources:
      sg:
        type: OS::Nova::ServerGroup
        properties: {policies: [soft-affinity]}
      front:
        type: OS::Nova::Server
        properties: {flavor: small, scheduler_hints: {group: {get_param: group}}}
      back:
        type: OS::Nova::Server
        properties:
          flavor: big
          admin_pass: {get_param: password}
          scheduler_hints: {group: {get_resource: sg}, tier: a}
      cache:
        type: OS::Nova::Server
        properties: {flavor: big, scheduler_hints: {group: {get_resource: sg}}}
""")


def members_of(imported_group):
    members = imported_group.description['members']
    return {member['name']: member.get('count', 1) for member in members}


def test_groups_of_nested_stacks_are_told_apart(imported):
    """Both groups are called sg; that of the root is a parameter of the nested stacks."""
    group = imported(
        textwrap.dedent("""
            parameters:
              n: {type: number}
              ha: {type: boolean, default: true}
            conditions:
              is_ha: {get_param: ha}
            resources:
              sg:
                type: OS::Nova::ServerGroup
                metadata: {gantt: {policies: [{policy: spread, level: rack, min_domains: 2}]}}
                properties:
                  policies: [{if: [is_ha, anti-affinity, affinity]}]
                  rules: {max_server_per_host: 2}
              web:
                type: OS::Heat::ResourceGroup
                properties:
                  count: {get_param: n}
                  resource_def:
                    type: child.yaml
                    properties: {group: {get_resource: sg}}
        """),
        {'n': '2'},
        child=CHILD,
    )
    assert members_of(group) == {
        'web-front': 2,
        'web-0-back': 1,
        'web-0-cache': 1,
        'web-1-back': 1,
        'web-1-cache': 1,
    }
    assert group.addresses['web-front'] == ['web.0.front', 'web.1.front']
    assert group.description['subgroups'] == {
        'web-0-sg': ['web-0-back', 'web-0-cache'],
        'web-1-sg': ['web-1-back', 'web-1-cache'],
    }
    assert group.description['policies'] == [
        {'policy': 'anti-affinity', 'of': 'web-front', 'max_per_domain': 2},
        {'of': 'web-front', 'policy': 'spread', 'level': 'rack', 'min_domains': 2},
        {'policy': 'affinity', 'of': 'web-0-sg', 'soft': 1},
        {'policy': 'affinity', 'of': 'web-1-sg', 'soft': 1},
    ]
    back = group_description.read(group.description).members[1]
    assert back.spec.resources == {'VCPU': 8, 'MEMORY_MB': 16384, 'DISK_GB': 80}
    assert group.description['members'][1]['spec']['hints'] == {'tier': ['a']}


def test_a_scaling_group_has_its_desired_number(imported):
    group = imported(
        textwrap.dedent("""
            resources:
              asg:
                type: OS::Heat::AutoScalingGroup
                properties:
                  min_size: 1
                  max_size: 10
                  desired_capacity: 4
                  resource:
                    type: OS::Nova::Server
                    properties:
                      flavor: small
                      availability_zone: west
                      block_device_mapping_v2: [{image: i, boot_index: 0, volume_size: 9}]
              volume: {type: OS::Cinder::Volume, properties: {size: 1}}
              net: {type: OS::Neutron::Net}
        """)
    )
    (member,) = group.description['members']
    assert (member['name'], member['count']) == ('asg', 4)
    assert member['spec']['availability_zone'] == 'west'
    assert member['spec']['resources'] == {'VCPU': 1, 'MEMORY_MB': 2048}
    assert group.left_out == ['volume: takes room that is not planned (OS::Cinder::Volume)']


def test_cloudformation_is_read(imported):
    group = imported(
        textwrap.dedent("""
            HeatTemplateFormatVersion: '2012-12-12'
            Parameters:
              Kind: {Type: String, Default: small}
            Resources:
              Apart:
                Type: OS::Nova::ServerGroup
                Properties: {policies: [anti-affinity]}
              Launch:
                Type: AWS::AutoScaling::LaunchConfiguration
                Properties:
                  ImageId: i
                  InstanceType: {Ref: Kind}
                  NovaSchedulerHints: [{Key: group, Value: {Ref: Apart}}]
              Scaled:
                Type: AWS::AutoScaling::AutoScalingGroup
                Properties:
                  AvailabilityZones: [nova]
                  LaunchConfigurationName: {Ref: Launch}
                  MinSize: '3'
                  MaxSize: '5'
              One:
                Type: AWS::EC2::Instance
                Metadata: {gantt: {count: [1, 2]}}
                Properties: {ImageId: i, InstanceType: big}
        """)
    )
    assert members_of(group) == {'Scaled': 3, 'One': [1, 2]}
    assert group.description['policies'] == [{'policy': 'anti-affinity', 'of': 'Scaled'}]


def test_ids_go_through_outputs_of_nested_stacks(imported):
    group = imported(
        textwrap.dedent("""
            resources:
              groups: {type: groups.yaml}
              a:
                type: OS::Nova::Server
                properties:
                  flavor: small
                  scheduler_hints: {group: {get_attr: [groups, ids, first]}}
        """),
        groups=textwrap.dedent("""
            resources:
              g: {type: OS::Nova::ServerGroup, properties: {policies: [affinity]}}
            outputs:
              ids: {value: {first: {get_resource: g}}}
        """),
    )
    assert group.description['policies'] == [{'policy': 'affinity', 'of': 'a'}]


def test_environments_have_parameters_and_types(imported):
    group = imported(
        'parameters: {f: {type: string}}\n'
        + one_server('flavor: {get_param: f}', '  x: {type: N}'),
        environments=['env', 'late'],
        env='parameters: {f: small}\nresource_registry: {N: OS::Heat::None}',
        late='parameters: {f: big}',
    )
    assert group.description['members'][0]['spec']['flavor']['name'] == 'big'


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        (one_server('flavor: huge'), "a.flavor: 'huge' is not among the flavors"),
        (one_server('image: i'), 'a.flavor: expected a value of flavor'),
        (one_server('flavor: {nonsense: 1}'), 'a.flavor: Heat refuses it (ValueError)'),
        (
            one_server('flavor: small, availability_zone: {get_attr: [other, name]}', OTHER),
            'a.availability_zone: other.name is not known before create',
        ),
        (
            one_server(
                'flavor: small, availability_zone: {digest: [md5, {get_attr: [other, name]}]}',
                OTHER,
            ),
            'a: depends on what is not known before create',
        ),
        (
            one_server('flavor: small, availability_zone: {get_param: "OS::project_id"}'),
            'a: depends on what is not known before create',
        ),
        (
            one_server(
                'flavor: small, scheduler_hints: {same_host: [{get_resource: other}]}', OTHER
            ),
            'a.scheduler_hints: the id of other is not known before create',
        ),
        (
            one_server('flavor: small, scheduler_hints: {tier: {nonsense: x}}'),
            'a.scheduler_hints.tier: expected text or a list of text',
        ),
        (
            one_server('flavor: small, scheduler_hints: {group: g7}'),
            'a.scheduler_hints.group: g7 is not made by this template',
        ),
        (
            one_server('flavor: small, scheduler_hints: {group: {get_resource: other}}', OTHER),
            'a.scheduler_hints.group: the id of other is not known before create',
        ),
        (
            one_server('flavor: small, availability_zone: "nova:cmp-1"'),
            'a.availability_zone: expected a zone without a host',
        ),
        (one_server('flavor: small', '  x: {type: N::N}'), 'x: Heat has no type N::N'),
        (
            one_server('flavor: small', '  x: {type: "https://127.0.0.1/x.yaml"}'),
            'root.yaml: Could not fetch contents for https://127.0.0.1/x.yaml',
        ),
        (one_server('flavor: small', '  x: {type: root.yaml}'), 'is nested without an end'),
        (
            one_server('flavor: small', '  x: {type: none.yaml}'),
            'Could not fetch contents for file',
        ),
        ('resources: {}', 'root.yaml: expected a server that is to be created; there is none'),
        ('resources: {x: "pl4nted: y: ', 'root.yaml: Error parsing template'),
        ('parameters: {p: {type: string}}\nresources: {}', 'parameters.p: expected a value'),
        (
            'resources:\n  g:\n    type: OS::Heat::ResourceGroup\n    properties: '
            f'{{count: 20000, resource_def: {{{SERVER}}}}}',
            'g.count: expected at most 10000; got 20000',
        ),
        (
            'resources:\n  g:\n    type: OS::Heat::ResourceGroup\n    properties: '
            f'{{count: {{get_attr: [other, name]}}, resource_def: {{{SERVER}}}}}\n{OTHER}',
            'g.count: other.name is not known before create',
        ),
        (
            'resources:\n  a:\n    type: OS::Nova::Server\n    metadata: {gantt: {size: 1}}\n'
            '    properties: {flavor: small}',
            'a.metadata.gantt: expected an object with count, policies, alternatives',
        ),
    ],
    ids=range(21),
)
def test_what_cannot_be_planned_is_refused_by_its_name(problem, text, expected):
    message = problem(text)
    assert expected in message
    assert 'pl4nted' not in message


def test_a_file_that_is_not_there_is_named(library, tmp_path):
    path = str(tmp_path / 'none.yaml')
    with pytest.raises(exceptions.InvalidMessage, match=f'No such file or directory: {path}'):
        library.read(path)


def test_unknown_parameters_are_refused(problem):
    assert problem(one_server('flavor: small'), parameters={'x': 'y'}).startswith('parameters.x: ')


def test_values_are_not_repeated(problem, imported):
    """Secrets are in parameters and properties; neither an answer nor an error has them."""
    root = textwrap.dedent("""
        parameters:
          secret: {type: string, hidden: true}
        resources:
          sg: {type: OS::Nova::ServerGroup, properties: {policies: [affinity]}}
          nested:
            type: child.yaml
            properties: {group: {get_resource: sg}, password: %s}
    """)
    secret = {'secret': 'pl4nted-1'}
    assert 'pl4nted' not in repr(imported(root % '{get_param: secret}', secret, child=CHILD))
    number = CHILD.replace('type: string, hidden: true, default: pl4nted-inner', 'type: number')
    number = number.replace('{flavor: small, ', '{flavor: {get_param: password}, ')
    message = problem(root % '{get_param: secret}', parameters=secret, child=number)
    assert message.startswith('nested.front.flavor') and 'pl4nted' not in message


def test_the_same_is_read_each_time(imported):
    text = 'resources:\n  g:\n    type: OS::Heat::AutoScalingGroup\n    properties:\n'
    text += f'      {{min_size: 12, max_size: 12, resource: {{type: child.yaml}}}}\n{OTHER}'
    child = CHILD.replace('type: string}', 'type: string, default: ""}')
    assert imported(text, child=child) == imported(text, child=child)


# -- the parent, without Heat --------------------------------------------------------------
@pytest.mark.parametrize(
    ('program', 'expected'),
    [
        ('import time; time.sleep(600)', 'did not answer within 0.5 s'),
        ('import os; os.kill(os.getpid(), 9)', 'was ended by signal 9 before it answered'),
        ('raise SystemExit(3)', 'ended with 3 before it answered'),
        ('print("hello")', 'answered something else than expected'),
        ('print("{}")', 'did not start as expected'),
        ('print("[" * 100000)', 'answered something else than expected'),
        ('print(\'{"heat": "1"}\', flush=True); input(); print("{}")', 'gave no servers'),
        (
            'print(\'{"heat": "1"}\', flush=True); input(); print(\'{"servers": [{"path": 1}]}\')',
            'answered something else than expected',
        ),
        ('print(\'{"heat": "1"}\', end="")', 'did not answer within 0.5 s|answered more than'),
        ('print(\'{"missing": "heat"}\')', 'pip install gantt\\[heat\\]'),
    ],
    ids=range(10),
)
def test_a_child_that_fails_is_an_error_that_names_the_template(tmp_path, program, expected):
    path = tmp_path / 'child.py'
    path.write_text(program)
    seconds = 0.5 if '0.5 s' in expected else 60
    with HeatLibrary(seconds=seconds, program=path) as library:
        with pytest.raises(exceptions.InvalidMessage, match=expected) as caught:
            library.read('web.yaml')
        assert caught.value.message.startswith(('web.yaml: ', 'python: '))


def test_a_child_that_died_is_started_again_for_the_next_template(tmp_path):
    path = tmp_path / 'child.py'
    path.write_text(
        'import json, os\n'
        'print(json.dumps({"heat": "1", "network": "refused"}), flush=True)\n'
        'if "bad" in input(): os.abort()\n'
        'print(json.dumps({"servers": []}))\n'
    )
    with HeatLibrary(program=path) as library:
        with pytest.raises(exceptions.InvalidMessage, match=r'^bad.yaml: .* signal 6'):
            library.read('bad.yaml')
        assert library.read('good.yaml').servers == []
        assert library.notes[0].startswith('read by openstack-heat 1, without network: connections')


def test_another_python_is_named(tmp_path):
    source = TemplateSource(path='web.yaml', flavors=FLAVORS, python=str(tmp_path / 'none'))
    with pytest.raises(exceptions.InvalidMessage, match='python: .*none: No such file'):
        convert(source)
    with pytest.raises(exceptions.InvalidMessage, match='FILE: expected a file'):
        convert(TemplateSource(path='-', flavors=FLAVORS))


LIMITED = """
import importlib.util, json, os, socket, subprocess, sys
spec = importlib.util.spec_from_file_location('child', sys.argv[1])
child = importlib.util.module_from_spec(spec)
spec.loader.exec_module(child)
child.close_network()
child.set_limits()
def tried(call):
    try:
        call()
    except BaseException as e:
        return type(e).__name__
    return 'done'
print(json.dumps({
    'connect': tried(lambda: socket.create_connection(('127.0.0.1', 1), timeout=5)),
    'name': tried(lambda: socket.getaddrinfo('example.org', 80)),
    'udp': tried(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))),
    'run': tried(lambda: subprocess.run(['true'])),
    'write': tried(lambda: os.write(os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY), b'x')),
    'memory': tried(lambda: bytearray(2 << 30)),
}))
"""


def test_the_child_has_no_network_no_programs_no_files_and_little_memory(tmp_path):
    process = subprocess.run(
        [sys.executable, '-I', '-c', LIMITED, str(PROGRAM), str(tmp_path / 'file')],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(process.stdout) == {
        'connect': 'PermissionError',
        'name': 'PermissionError',
        'udp': 'PermissionError',
        'run': 'PermissionError',
        'write': 'OSError',
        'memory': 'MemoryError',
    }
