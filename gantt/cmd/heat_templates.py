# SPDX-License-Identifier: Apache-2.0
"""Read templates with Heat's own library, in a process of its own; nothing of Gantt is imported.

Run by path, with a Python that has openstack-heat.  Each line of standard input is a job as JSON,
each line of standard output its answer: the servers and server groups that the template expands to,
or why it is refused.  Templates come from anywhere: the process has no network, starts no programs,
writes no files, and ends itself at limits of CPU time and memory.

What is not known before resources are made is filled in by a marker.  Where a marker is in a value
that is needed, the template is refused by the name of the resource.  Functions may hide a marker
(digest, yaql): each template is expanded twice with different markers, and results are compared.
"""

import copy
import ctypes
import functools
import importlib
import json
import os
import re
import resource as limits
import signal
import sys

CLONE_NEWNET, CLONE_NEWUSER = 0x40000000, 0x10000000
#: Address space, and CPU time of one template.
MEMORY_BYTES = 1 << 30
CPU_SECONDS = 60
#: Resources that one template may expand to, and nested stacks below each other.
RESOURCES_MAX = 10_000
DEPTH_MAX = 10
#: Audit events of the interpreter for what a template is no reason for.
REFUSED_EVENTS = (
    'socket.bind',
    'socket.connect',
    'socket.getaddrinfo',
    'socket.gethostbyaddr',
    'socket.gethostbyname',
    'socket.sendmsg',
    'socket.sendto',
    'os.exec',
    'os.fork',
    'os.forkpty',
    'os.posix_spawn',
    'os.system',
    'subprocess.Popen',
)
#: What takes room in a cloud but is no server; prefixes of types.
ROOM = (
    'AWS::EC2::Volume',
    'AWS::ElasticLoadBalancing::',
    'AWS::RDS::',
    'OS::Cinder::Volume',
    'OS::Heat::Stack',
    'OS::Magnum::Bay',
    'OS::Magnum::Cluster',
    'OS::Manila::Share',
    'OS::Octavia::LoadBalancer',
    'OS::Sahara::Cluster',
    'OS::Senlin::Cluster',
    'OS::Senlin::Node',
    'OS::Trove::Cluster',
    'OS::Trove::Instance',
    'OS::Zun::Container',
)
#: Of these prefixes, types that only describe.
NO_ROOM = ('OS::Cinder::VolumeType', 'OS::Manila::ShareType', 'OS::Magnum::ClusterTemplate')
#: Markers; behind each is the salt of the expansion.
UNKNOWN_TEXT = re.compile(r'gantt-unknown\(([^()]*)\)')
REFERENCE = re.compile(r'gantt-resource\(([^()]*)\)')
#: Classes of Heat by name: import_module makes others than its own loader of plugins did.
SERVER = 'heat.engine.resources.openstack.nova.server.Server'
INSTANCE = 'heat.engine.resources.aws.ec2.instance.Instance'
TEMPLATE = 'heat.engine.resources.template_resource.TemplateResource'
PARENT = 'heat.engine.resources.stack_resource.StackResource'
GROUPS = (
    'heat.engine.resources.openstack.heat.resource_group.ResourceGroup',
    'heat.engine.resources.openstack.heat.instance_group.InstanceGroup',
)
#: Properties of groups that have the number of their members.
SIZES = ('count', 'desired_capacity', 'min_size', 'DesiredCapacity', 'MinSize', 'Size')


class RefusedTemplate(Exception):
    """A template that cannot be read: the field, and what is wrong with it."""

    def __init__(self, field, problem):
        super().__init__(f'{field}: {problem}')
        self.field, self.problem = field, problem


def close_network():
    """Return how the network is shut off; this process never opens a connection again."""
    libc = ctypes.CDLL(None, use_errno=True)
    has_namespace = any(
        libc.unshare(flags) == 0 for flags in (CLONE_NEWNET, CLONE_NEWNET | CLONE_NEWUSER)
    )

    def refuse(event, _args):
        if event in REFUSED_EVENTS:
            raise PermissionError(f'{event} is refused: templates are read without a network')

    sys.addaudithook(refuse)
    return 'namespace' if has_namespace else 'refused'


def set_limits():
    """Limit memory, and files to none."""
    limits.setrlimit(limits.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    limits.setrlimit(limits.RLIMIT_FSIZE, (0, 0))
    limits.setrlimit(limits.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def limit_cpu():
    """Limit the CPU time from now on."""
    used = limits.getrusage(limits.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + CPU_SECONDS
    limits.setrlimit(limits.RLIMIT_CPU, (seconds, limits.RLIM_INFINITY))


@functools.cache
def module(name):
    """Return a module of Heat; they are imported when limits are set."""
    return importlib.import_module(name)


def is_a(resource, *names):
    """Return whether the class of a resource, or one above it, has one of these names."""
    return any(f'{kind.__module__}.{kind.__qualname__}' in names for kind in type(resource).__mro__)


def start_heat():
    """Import Heat and register its resources.  :raises ModuleNotFoundError: it is not installed"""
    cfg = module('oslo_config.cfg')
    module('heat.common.config')
    cfg.CONF([], project='heat', default_config_files=[], default_config_dirs=[])
    cfg.CONF.set_override('plugin_dirs', [])
    cfg.CONF.set_override('max_resources_per_stack', -1)
    cfg.CONF.set_override('max_nested_stack_depth', DEPTH_MAX)
    module('logging').disable(module('logging').CRITICAL)
    # A group makes a client for messages, though it sends none.
    module('heat.common.messaging').setup('fake://', optional=True)
    module('heat.engine.resources').initialise()
    module('heatclient.common.template_utils')


class Expansion:
    """One expansion of a template, to its servers and server groups.

    :param salt: end of markers and of the stack's name
    """

    def __init__(self, template, salt):
        self._salt = salt
        self._count = 0
        self._nested_by_path = {}
        #: Names of server groups by their reference.
        self._groups = {}
        self._resources = []
        context = module('heat.common.context').RequestContext(
            username='u' + salt,
            project_id='p' + salt,
            user_id='i' + salt,
            auth_token='t',  # nosec B106 # no password
        )
        stack = module('heat.engine.stack').Stack(
            context, 'stack' + salt, template, strict_validate=False
        )
        self._walk(self._prepared(stack, ()), ())

    def facts(self):
        """Return servers, server groups, and what else takes room.  :raises RefusedTemplate:"""
        servers, groups, others = [], [], []
        for path, resource in self._resources:
            name = resource.type()
            if resource.external_id is not None:
                others.append({'path': path, 'problem': 'exists already'})
            elif is_a(resource, SERVER):
                servers.append(self._server(path, resource))
            elif is_a(resource, INSTANCE):
                servers.append(self._instance(path, resource))
            elif name == 'OS::Nova::ServerGroup':
                groups.append(self._group(path, resource))
            elif name.startswith(ROOM) and not name.startswith(NO_ROOM):
                others.append({'path': path, 'problem': f'takes room that is not planned ({name})'})
        return {'servers': servers, 'groups': groups, 'others': others}

    # -- resources ---------------------------------------------------------------------
    def _prepared(self, stack, path):
        """Return the stack, each of its resources with a reference of its own."""
        # Before definitions are read: the time to update one grows with their number.
        update = module('heat.engine.stk_defn').update_resource_data
        for name in _names_in(stack):
            update(stack.defn, name, self._node(stack, name, (*path, name)))
        return stack

    def _node(self, stack, name, path):
        """Return data of a resource that is not made, as functions of the template see it."""
        data = module('heat.engine.node_data').NodeData(
            1, name, 'u', None, {}, 'CREATE', 'COMPLETE'
        )
        return _Node(
            data,
            functools.partial(self._reference, stack, name, path),
            functools.partial(self._attribute, stack, name, path),
        )

    def _reference(self, stack, name, path):
        """Return the id of a resource: what its template names as such, or a marker."""
        nested = self._template_stack(stack, name, path)
        if nested is not None and 'OS::stack_id' in nested.outputs:
            return nested.outputs['OS::stack_id'].get_value()
        return f'gantt-resource({address(path)}){self._salt}'

    def _attribute(self, stack, name, path, attribute):
        """Return an attribute: the output of a nested stack, or a marker."""
        names = attribute if isinstance(attribute, tuple) else (attribute,)
        nested = self._template_stack(stack, name, path)
        if nested is not None and names[0] in nested.outputs:
            value = nested.outputs[names[0]].get_value()
            return module('heat.engine.attributes').select_from_attribute(value, names[1:])
        return _Unknown(f'gantt-unknown({address(path)}.{names[0]}){self._salt}')

    def _template_stack(self, stack, name, path):
        """Return the nested stack of a resource that is a template; None: it is none."""
        resource = stack.resources[name]
        return self._nested(resource, path) if is_a(resource, TEMPLATE) else None

    def _walk(self, stack, path):
        # In the order of the template: "stack.resources" has that of a set.
        names = [name for name in _names_in(stack) if name in stack.resources]
        for name in names:
            resource = stack.resources[name]
            self._count += 1
            if self._count > RESOURCES_MAX:
                raise RefusedTemplate(
                    address((*path, name)), f'expected at most {RESOURCES_MAX} resources in all'
                )
            full = (*path, name)
            if resource.type() == 'OS::Nova::ServerGroup':
                self._groups[f'gantt-resource({address(full)}){self._salt}'] = full
            nested = None
            if is_a(resource, PARENT):
                if is_a(resource, *GROUPS):
                    self._check_size(resource, full)
                nested = self._nested(resource, full)
            if nested is None:
                self._resources.append((full, resource))
            elif is_a(resource, *GROUPS):
                self._walk_members(nested, full)
            else:
                self._walk(nested, full)

    def _walk_members(self, nested, path):
        """Walk members of a group, which are numbers in paths: names of some are random."""
        before = len(self._resources)
        self._walk(nested, path)
        numbers = {name: number for number, name in enumerate(_names_in(nested))}
        for position in range(before, len(self._resources)):
            full, resource = self._resources[position]
            number = numbers[full[len(path)]]
            self._resources[position] = (
                (*path, number, *full[len(path) + 1 :]),
                resource,
            )
        for reference, full in self._groups.items():
            if full[: len(path)] == path and full[len(path)] in numbers:
                number = numbers[full[len(path)]]
                self._groups[reference] = (*path, number, *full[len(path) + 1 :])

    def _check_size(self, resource, path):
        for field in (
            'count',
            'desired_capacity',
            'min_size',
            'DesiredCapacity',
            'MinSize',
            'Size',
        ):
            if field in resource.properties.props:
                value = self._value(path, resource, field)
                if value is not None and int(value) > RESOURCES_MAX:
                    raise RefusedTemplate(
                        f'{address(path)}.{field}', f'expected at most {RESOURCES_MAX}; got {value}'
                    )

    def _nested(self, resource, path):
        if path not in self._nested_by_path:
            # Not that of groups, which has one member.
            parent = module('heat.engine.resources.stack_resource').StackResource
            try:
                nested = parent.get_nested_parameters_stack(resource)
            except RefusedTemplate:
                raise
            except Exception as e:
                raise RefusedTemplate(address(path), problem_of(e)) from None
            if nested is None:
                raise RefusedTemplate(
                    address(path), f'what {resource.type()} expands to is not known before create'
                )
            self._nested_by_path[path] = self._prepared(nested, path)
        return self._nested_by_path[path]

    # -- values ------------------------------------------------------------------------
    def _value(self, path, resource, field):
        """Return the value of a property that a place depends on.  :raises RefusedTemplate:"""
        where = f'{address(path)}.{field}'
        try:
            value = resource.properties[field]
        except RefusedTemplate:
            raise
        except Exception as e:
            if UNKNOWN_TEXT.search(str(e)):
                raise _unknown(where, str(e)) from None
            raise RefusedTemplate(where, problem_of(e)) from None
        return self._known(where, value)

    def _known(self, where, value):
        """Return the value.  :raises RefusedTemplate: something in it is not known before create"""
        for text in _texts(value):
            if UNKNOWN_TEXT.search(text):
                raise _unknown(where, text)
            if match := REFERENCE.search(text):
                raise RefusedTemplate(where, f'the id of {match[1]} is not known before create')
        return value

    def _metadata(self, path, resource):
        where = f'{address(path)}.metadata.gantt'
        try:
            value = (resource.t.metadata() or {}).get('gantt')
        except Exception as e:
            raise RefusedTemplate(where, problem_of(e)) from None
        return self._known(where, value)

    def _server(self, path, resource):
        hints = self._hints(path, resource, 'scheduler_hints', lambda given: given or {})
        return {
            'path': path,
            'flavor': self._value(path, resource, 'flavor'),
            'image': self._image(path, resource, 'image'),
            'availability_zone': self._value(path, resource, 'availability_zone'),
            'volume_backed': self._boots_from_volume(path, resource),
            'metadata': self._metadata(path, resource),
            **hints,
        }

    def _instance(self, path, resource):
        def pairs(given):
            return {pair['Key']: pair['Value'] for pair in given or []}

        return {
            'path': path,
            'flavor': self._value(path, resource, 'InstanceType'),
            'image': self._image(path, resource, 'ImageId'),
            'availability_zone': self._value(path, resource, 'AvailabilityZone'),
            'volume_backed': False,
            'metadata': self._metadata(path, resource),
            **self._hints(path, resource, 'NovaSchedulerHints', pairs),
        }

    def _image(self, path, resource, field):
        """Return the image; None where the template makes it: its id is not known and left open."""
        try:
            return self._value(path, resource, field)
        except RefusedTemplate:
            return None

    def _hints(self, path, resource, field, read):
        """Return hints, and the server group that they name, by its path."""
        where = f'{address(path)}.{field}'
        try:
            hints = dict(read(resource.properties[field]))
        except Exception as e:
            if UNKNOWN_TEXT.search(str(e)):
                raise _unknown(where, str(e)) from None
            raise RefusedTemplate(where, problem_of(e)) from None
        group = hints.pop('group', None) or None
        if not isinstance(group, str | None):
            raise RefusedTemplate(f'{where}.group', 'expected a reference to a server group')
        if group in self._groups:
            group = list(self._groups[group])
        else:
            self._known(f'{where}.group', group)
        return {'group': group, 'hints': self._known(where, hints)}

    @staticmethod
    def _boots_from_volume(path, resource):
        """Return whether the root disk is a volume; which one does not matter."""
        sources = ('volume_id', 'snapshot_id', 'image', 'image_id')
        try:
            old = resource.properties['block_device_mapping'] or []
            new = resource.properties['block_device_mapping_v2'] or []
            has_image = bool(resource.properties['image'])
        except Exception as e:
            raise RefusedTemplate(f'{address(path)}.block_device_mapping', problem_of(e)) from None
        if any(device['device_name'] in ('vda', '/dev/vda') for device in old):
            return True
        return any(
            any(device.get(source) for source in sources)
            and (str(device.get('boot_index')) == '0' or not has_image)
            for device in new
        )

    def _group(self, path, resource):
        return {
            'path': path,
            'policies': self._value(path, resource, 'policies'),
            'rules': self._value(path, resource, 'rules'),
            'metadata': self._metadata(path, resource),
        }


def _names_in(stack):
    """Return names of resources as written, those that a condition leaves out too."""
    return list(stack.t.t.get(stack.t.RESOURCES) or {})


class _Node:
    """Data of a resource that is not made, with an id and attributes that functions return."""

    def __init__(self, data, reference_id, attribute):
        self._data = data
        self.reference_id, self.attribute = reference_id, attribute

    def __getattr__(self, name):
        return getattr(self._data, name)


class _Unknown(str):
    """A text in place of a value that is not known; so is what is selected from it."""

    __slots__ = ()

    def __getitem__(self, _key):
        return self


def _unknown(where, text):
    name = UNKNOWN_TEXT.findall(text)[0]
    return RefusedTemplate(where, f'{name} is not known before create')


def _texts(value):
    """Yield texts in a value, keys as well."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


def address(path):
    """Return the address of a resource, as people write it."""
    return '.'.join(map(str, path))


#: Errors of Heat whose text has names of types, files and sections, and no values of properties.
_NAMING_ERRORS = (
    'CommandError',
    'CircularDependencyException',
    'EntityNotFound',
    'HTTPNotFound',
    'InvalidGlobalResource',
    'InvalidTemplateAttribute',
    'InvalidTemplateReference',
    'InvalidTemplateSection',
    'InvalidTemplateVersion',
    'InvalidTemplateVersions',
    'NotFound',
    'PermissionError',
    'RequestLimitExceeded',
    'ResourceTypeUnavailable',
    'StackResourceUnavailable',
    'TemplateNotFound',
    'UnknownUserParameter',
    'URLError',
    'UserParameterMissing',
)


#: Texts of other errors whose groups are such names.
_NAMING_TEXTS = [
    (re.compile(pattern), problem)
    for pattern, problem in (
        (
            r'The Resource Type \(([^()]*)\) could not be found',
            'Heat has no type {0}; an environment may map it to a template, or to OS::Heat::None',
        ),
        (
            r"Could not fetch remote template '([^']*)'",
            'the template {0} is not read, as there is no network',
        ),
        (r'Property ([\w:.-]+) not assigned', 'expected a value of {0}'),
    )
]


def problem_of(error):
    """Return what is wrong.  Values of properties may be secret: only names are repeated."""
    if isinstance(error, MemoryError):
        return f'takes more than {MEMORY_BYTES >> 20} MiB of memory'
    if isinstance(error, RecursionError):
        return 'is nested without an end; expected a template that does not include itself'
    reason = getattr(error, 'reason', None)
    if isinstance(reason, FileNotFoundError):
        return f'{reason.strerror}: {reason.filename}'
    text = str(error)
    if match := UNKNOWN_TEXT.search(text):
        return f'{match[1]} is not known before create'
    for pattern, problem in _NAMING_TEXTS:
        if match := pattern.search(text):
            return problem.format(*match.groups())
    kind = type(error).__name__
    if kind in _NAMING_ERRORS:
        line = text.splitlines()[0] if text else kind
        if position := re.search(r'line \d+, column \d+', text):
            line += f' ({position[0]})'
        return line
    path = '.'.join(map(str, getattr(error, 'path', ())))
    return f'Heat refuses {path or "it"} ({kind})'


# -- jobs ------------------------------------------------------------------------------
def convert(job):
    """Return what a template expands to.  :raises RefusedTemplate:"""
    utils = module('heatclient.common.template_utils')
    try:
        files, document = utils.get_template_contents(template_file=job['template'])
        env_files, env = utils.process_multiple_environments_and_files(job['environments'])
        files = {**env_files, **files}
    except Exception as e:
        raise RefusedTemplate('template', problem_of(e)) from None
    first, second = (
        _expanded(document, files, env, job['parameters'], salt) for salt in ('a', 'bcd')
    )
    for kind, facts in first.items():
        if len(facts) != len(second[kind]):
            raise RefusedTemplate('template', f'the number of {kind} is not known before create')
        for one, other in zip(facts, second[kind], strict=True):
            if one != other:
                raise RefusedTemplate(
                    address(one['path']), 'depends on what is not known before create'
                )
    return first


def _expanded(document, files, env, given, salt):
    document, env, files = copy.deepcopy(document), copy.deepcopy(env), dict(files)
    try:
        environment = module('heat.engine.environment').Environment(env)
        template = module('heat.engine.template').Template(document, files=files, env=environment)
        schemata = template.param_schemata(environment.param_defaults)
        environment.params.update(given)
    except Exception as e:
        raise RefusedTemplate('template', problem_of(e)) from None
    for name in environment.params:
        if name not in schemata:
            raise RefusedTemplate(f'parameters.{name}', 'expected a parameter of the template')
    for name, schema in schemata.items():
        if schema.default is None and name not in {
            **environment.params,
            **environment.param_defaults,
        }:
            raise RefusedTemplate(
                f'parameters.{name}', f'expected a value: --parameter {name}=VALUE'
            )
    try:
        return Expansion(template, salt).facts()
    except RefusedTemplate:
        raise
    except Exception as e:
        resources = document.get('resources') or document.get('Resources') or {}
        unknown = [
            name
            for name, given in resources.items()
            if isinstance(given, dict) and f'({given.get("type", given.get("Type"))})' in str(e)
        ]
        raise RefusedTemplate(unknown[0] if unknown else 'template', problem_of(e)) from None


def main():
    """Answer jobs until there are no more."""
    answers = os.fdopen(os.dup(1), 'w')
    with open(os.devnull, 'w') as nothing:
        # Libraries print and warn, and what they print may be secret.
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)

    def answer(**body):
        answers.write(json.dumps(body) + '\n')
        answers.flush()

    network = close_network()
    set_limits()
    limit_cpu()
    try:
        start_heat()
    except ModuleNotFoundError as e:
        answer(missing=e.name)
        return
    version = module('importlib.metadata').version('openstack-heat')
    answer(heat=version, network=network)
    for line in sys.stdin:
        limit_cpu()
        try:
            answer(**convert(json.loads(line)))
        except RefusedTemplate as e:
            answer(field=e.field, problem=e.problem)
        except Exception as e:
            answer(field='template', problem=problem_of(e))


if __name__ == '__main__':
    main()
