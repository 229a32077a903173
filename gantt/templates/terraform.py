# SPDX-License-Identifier: Apache-2.0
"""Plans of Terraform and OpenTofu, as ``terraform show -json`` prints them.

Instances that are to be created become members, those of one resource that are alike one member
with a count; server groups become policies.  Form of the plan: version 1 of
https://developer.hashicorp.com/terraform/internals/json-format

The id of a server group is not known before it is made, so that the plan does not say which group
an instance is in: the configuration does, by references, through variables and outputs of modules.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.nova.model import flavor as nova_flavor
from gantt.templates.flavors import Flavors
from gantt.templates.imported import (
    HINTS_OF_CREATES,
    ImportedGroup,
    TemplateGroup,
    TemplateServer,
    TemplateSource,
    import_group,
    metadata_fields,
)

_INSTANCE, _GROUP = 'openstack_compute_instance_v2', 'openstack_compute_servergroup_v2'
#: Key of metadata whose value, as JSON, has fields of the member: its count, its own policies.
_METADATA_KEY = 'gantt'
_KEY = r'(?:\[(?:"((?:[^"\\]|\\.)*)"|(\d+))\])?'
_GROUP_REFERENCE = re.compile(rf'{_GROUP}\.([\w-]+){_KEY}')
_MODULE_STEP = re.compile(rf'module\.([\w-]+){_KEY}')
#: References by which instances of a resource differ.
_OWN_KEY = ('each.key', 'count.index')

Key = str | int | None


class _Module(msgspec.Struct):
    """Configuration of a module; what is not listed is not read."""

    resources: 'list[_ConfiguredResource]' = []
    module_calls: 'dict[str, _ModuleCall]' = {}
    outputs: 'dict[str, _Output]' = {}


class _ConfiguredResource(msgspec.Struct):
    type: str = ''
    name: str = ''
    expressions: dict[str, Any] = {}


class _ModuleCall(msgspec.Struct):
    module: _Module
    expressions: dict[str, Any] = {}


class _Output(msgspec.Struct):
    expression: Any = None


class _Configuration(msgspec.Struct):
    root_module: _Module


class _Change(msgspec.Struct):
    actions: list[str]
    after: dict[str, Any] | None = None
    after_unknown: dict[str, Any] = {}


class _ResourceChange(msgspec.Struct):
    """Change of one resource; ``index`` is its key of count or for_each."""

    address: str
    mode: str
    type: str
    name: str
    change: _Change
    module_address: str = ''
    index: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | str | None = None


class _TerraformPlan(msgspec.Struct):
    format_version: str
    configuration: _Configuration
    resource_changes: list[_ResourceChange] = []


class _BlockDevice(msgspec.Struct):
    boot_index: int | None = None
    destination_type: str | None = None


class _InstanceValues(msgspec.Struct):
    """Values of an instance that its place depends on."""

    flavor_name: str | None = None
    flavor_id: str | None = None
    image_id: str | None = None
    availability_zone: str | None = None
    metadata: dict[str, str | None] | None = None
    scheduler_hints: list[dict[str, str | int | list[str] | dict[str, str] | None]] | None = None
    block_device: list[_BlockDevice] | None = None


class _GroupRules(msgspec.Struct):
    max_server_per_host: int | None = None


class _GroupValues(msgspec.Struct):
    policies: list[str] | None = None
    rules: list[_GroupRules] | None = None


class _ModuleInstance(NamedTuple):
    """A module below another; ``key`` of count or for_each."""

    name: str
    key: Key


Path = tuple[_ModuleInstance, ...]


class _Resource(NamedTuple):
    """A resource that is to be made.

    :ivar unknown: by field, True or a structure with True where values are not known yet
    """

    address: str
    path: Path
    name: str
    key: Key
    values: Any
    unknown: dict[str, Any]

    def value(self, field: str) -> Any:
        """Return a value; None: it has none.  :raises InvalidMessage: it is not known yet"""
        value = getattr(self.values, field)
        if value is None and self.unknown.get(field):
            raise exceptions.invalid(
                f'{self.address}.{field}', 'is not known before apply; expected a value'
            )
        return value


def convert(source: TemplateSource) -> ImportedGroup:
    """Return the group that a plan in a file is to make.  :raises Failure, InvalidMessage:"""
    return convert_plan(source.document(), source.flavors)


def convert_plan(document: Any, flavors: Flavors) -> ImportedGroup:
    """Return the group that a plan is to make.

    :raises InvalidMessage: names the address of the resource and what was expected there
    """
    version = str(document.get('format_version', '')) if isinstance(document, dict) else ''
    if not version.startswith('1.'):
        raise exceptions.invalid(
            'format_version',
            f'expected 1, as "terraform show -json PLAN" prints it; got {version or "none"}',
        )
    return _Conversion(base.decode(document, _TerraformPlan, inside='plan'), flavors).group()


class _Conversion:
    """Conversion of one plan."""

    def __init__(self, plan: _TerraformPlan, flavors: Flavors) -> None:
        self._root = plan.configuration.root_module
        self._flavors = flavors
        self._left_out: list[str] = []
        created = list(self._created(plan.resource_changes))
        self._instances = [resource for kind, resource in created if kind == _INSTANCE]
        self._groups = [resource for kind, resource in created if kind == _GROUP]

    def group(self) -> ImportedGroup:
        """Return the group.  :raises InvalidMessage:"""
        where = 'resource_changes'
        if not self._instances:
            raise exceptions.invalid(
                where, f'expected an {_INSTANCE} that is to be created; there is none'
            )
        servers = [self._server(instance) for instance in self._instances]
        used = {server.group for server in servers}
        groups = [self._server_group(group, group.address in used) for group in self._groups]
        return import_group(servers, groups, where=where, left_out=self._left_out)

    def _created(self, changes: Sequence[_ResourceChange]) -> Iterator[tuple[str, _Resource]]:
        for change in changes:
            kind, address = change.type, change.address
            if change.mode != 'managed' or kind not in (_INSTANCE, _GROUP):
                continue
            if 'create' not in change.change.actions:
                actions = ' and '.join(change.change.actions) or 'none'
                self._left_out.append(f'{address}: is not created; its actions are {actions}')
                continue
            values = base.decode(
                change.change.after or {},
                _InstanceValues if kind == _INSTANCE else _GroupValues,
                inside=address,
            )
            unknown = change.change.after_unknown
            path = _path(change.module_address)
            yield kind, _Resource(address, path, change.name, change.index, values, unknown)

    # -- members -----------------------------------------------------------------------
    def _server(self, instance: _Resource) -> TemplateServer:
        group = self._group_of(instance)
        return TemplateServer(
            address=instance.address,
            resource=(instance.path, instance.name),
            name=_plain_name(instance.path, instance.name, None),
            own_name=_plain_name(instance.path, instance.name, instance.key),
            spec=self._spec(instance),
            group=group and group.address,
            fields=self._fields_of_metadata(instance),
        )

    @staticmethod
    def _server_group(group: _Resource, is_used: bool) -> TemplateGroup:
        limits = [rules.max_server_per_host for rules in group.values.rules or []]
        return TemplateGroup(
            address=group.address,
            name=_plain_name(group.path, group.name, group.key),
            policies=(group.value('policies') or []) if is_used else [],
            max_per_host=next(filter(None, reversed(limits)), None),
        )

    @staticmethod
    def _fields_of_metadata(instance: _Resource) -> dict[str, Any]:
        text = (instance.value('metadata') or {}).get(_METADATA_KEY)
        if text is None:
            return {}
        field = f'{instance.address}.metadata.{_METADATA_KEY}'
        try:
            fields = msgspec.json.decode(str(text))
        except msgspec.DecodeError as e:
            raise exceptions.invalid(field, f'expected JSON: {e}') from None
        return metadata_fields(fields, field)

    def _spec(self, instance: _Resource) -> dict[str, Any]:
        """Return the spec of a member.  :raises InvalidMessage:"""
        known = instance.values.flavor_name or instance.values.flavor_id
        if not known:
            raise exceptions.invalid(
                f'{instance.address}.flavor_name', 'is not known before apply; expected a value'
            )
        flavor = self._flavors.get(known)
        if flavor is None:
            raise exceptions.invalid(
                f'{instance.address}.flavor_name', f'{known!r} is not among the flavors'
            )
        image = {'uuid': instance.values.image_id} if instance.values.image_id else {}
        needs = nova_flavor.needs_of(flavor, image, volume=_boots_from_volume(instance))
        spec = {field: value for field, value in needs.items() if value}
        # The provider fills it in where none is configured: then it is not known, and any will do.
        is_configured = 'availability_zone' in self._expressions(instance)
        zone = (
            instance.value('availability_zone')
            if is_configured
            else instance.values.availability_zone
        )
        if zone:
            if ':' in zone:
                raise exceptions.invalid(
                    f'{instance.address}.availability_zone',
                    f'expected a zone without a host, which the plan is to choose; got {zone!r}',
                )
            spec['availability_zone'] = zone
        hints = self._hints(instance)
        return spec | ({'hints': hints} if hints else {})

    @staticmethod
    def _hints(instance: _Resource) -> dict[str, list[str]]:
        """Return hints but for the group and the plan, as lists of text."""
        hints: dict[str, list[str]] = {}
        for number, block in enumerate(instance.value('scheduler_hints') or []):
            unknown = _nth(instance.unknown.get('scheduler_hints'), number)
            more = block.get('additional_properties')
            given = {**block, **(more if isinstance(more, dict) else {})}
            for name, value in given.items():
                is_read = name not in HINTS_OF_CREATES and name != 'additional_properties'
                if is_read and value not in (None, [], ''):
                    texts = value if isinstance(value, list) else [value]
                    hints[name] = [str(text) for text in texts]
            for name, state in unknown.items():
                is_unknown = state is True or (isinstance(state, list) and any(state))
                if name not in HINTS_OF_CREATES and is_unknown:
                    raise exceptions.invalid(
                        f'{instance.address}.scheduler_hints.{name}',
                        'is not known before apply; expected a value, or a server group',
                    )
        return hints

    # -- groups ------------------------------------------------------------------------
    def _group_of(self, instance: _Resource) -> _Resource | None:
        """Return the server group of an instance; None: it is in none.  :raises InvalidMessage:"""
        field = f'{instance.address}.scheduler_hints.group'
        blocks = instance.value('scheduler_hints') or []
        unknown = instance.unknown.get('scheduler_hints')
        for number, block in enumerate(blocks):
            if block.get('group'):
                raise exceptions.invalid(
                    field,
                    f'{block["group"]} is not made by this plan; expected a reference to a '
                    f'{_GROUP} of it',
                )
            if _nth(unknown, number).get('group') is True:
                break
        else:
            return None
        references = [
            reference
            for block in _blocks(self._expressions(instance).get('scheduler_hints'))
            for reference in _references(block.get('group'))
        ]
        groups = self._resolve(instance.path, references, instance.key)
        if len(groups) != 1:
            names = ', '.join(sorted(group.address for group in groups)) or 'none'
            raise exceptions.invalid(
                field,
                'expected a reference to one server group that is created, not through a local '
                f'value, which plans leave out; found {names} by '
                f'{", ".join(references) or "no reference"}',
            )
        return groups[0]

    def _resolve(
        self,
        path: Path,
        references: Sequence[str],
        key: Key,
        seen: set[tuple[Path, str]] | None = None,
    ) -> list[_Resource]:
        """Return server groups that an expression in a module refers to.

        ``each.key`` and ``count.index`` are the key of a group where the expression has them: how
        they are used is not in a plan.

        :param key: of the resource or module whose expression it is
        :param seen: references that were followed already, each by its module
        """
        seen = set() if seen is None else seen
        references = [reference for reference in references if (path, reference) not in seen]
        seen.update((path, reference) for reference in references)
        own_key = any(reference in _OWN_KEY for reference in references)
        groups: dict[str, _Resource] = {}
        keys_by_name: dict[str, set[Key]] = {}
        for reference in references:
            if (match := _GROUP_REFERENCE.match(reference)) is not None:
                keys_by_name.setdefault(match[1], set()).add(_key_of(match, 2))
        for name, keys in keys_by_name.items():
            named = [group for group in self._groups if (group.path, group.name) == (path, name)]
            chosen = (keys - {None}) or ({key} if own_key else {None})
            for group in named:
                if chosen == {None} or group.key in chosen:
                    groups[group.address] = group
        for reference in references:
            head, _, rest = reference.partition('.')
            referenced: list[_Resource] = []
            if head == 'var' and path:
                call = self._module(path[:-1]).module_calls.get(path[-1].name)
                name = re.split(r'[.\[]', rest)[0]
                outer = _references(call.expressions.get(name)) if call else []
                referenced = self._resolve(path[:-1], outer, path[-1].key, seen)
            elif head == 'module' and (match := _MODULE_STEP.match(reference)) is not None:
                output = reference[match.end() :].lstrip('.').partition('.')[0]
                referenced = self._of_output(path, match, output, key if own_key else None, seen)
            groups.update((group.address, group) for group in referenced)
        return list(groups.values())

    def _of_output(
        self,
        path: Path,
        match: re.Match[str],
        output: str,
        key: Key,
        seen: set[tuple[Path, str]],
    ) -> list[_Resource]:
        """Return server groups that an output of a module below ``path`` refers to."""
        name, given = match[1], _key_of(match, 2)
        modules = {
            group.path[len(path)]
            for group in self._groups
            if group.path[: len(path)] == path
            and len(group.path) > len(path)
            and group.path[len(path)].name == name
        }
        wanted = given if given is not None else key
        referenced: list[_Resource] = []
        for module in modules:
            if wanted is not None and module.key not in (None, wanted):
                continue
            inner = (*path, module)
            configured = self._module(inner).outputs.get(output)
            references = _references(configured.expression) if configured else []
            referenced += self._resolve(inner, references, None, seen)
        return referenced

    # -- configuration -----------------------------------------------------------------
    def _module(self, path: Path) -> _Module:
        module = self._root
        for step in path:
            call = module.module_calls.get(step.name)
            module = call.module if call else _Module()
        return module

    def _expressions(self, resource: _Resource) -> dict[str, Any]:
        for configured in self._module(resource.path).resources:
            if (configured.type, configured.name) == (_INSTANCE, resource.name):
                return configured.expressions
        return {}


def _boots_from_volume(instance: _Resource) -> bool:
    devices = instance.values.block_device or []
    return any(d.boot_index == 0 and d.destination_type == 'volume' for d in devices)


def _plain_name(path: Path, name: str, key: Key) -> str:
    """Return a name made of modules, resource and keys."""
    steps = [*path, _ModuleInstance(name, key)]
    parts = [step.name if step.key is None else f'{step.name}-{step.key}' for step in steps]
    return '-'.join(parts)


def _path(address: str) -> Path:
    return tuple(
        _ModuleInstance(match[1], _key_of(match, 2)) for match in _MODULE_STEP.finditer(address)
    )


def _key_of(match: re.Match[str], first: int) -> Key:
    """Return the key in brackets, a text or a number; None: there is none."""
    text, number = match[first], match[first + 1]
    if number is not None:
        return int(number)
    return None if text is None else re.sub(r'\\(.)', r'\1', text)


def _references(expression: Any) -> list[str]:
    """Return references of an expression; a list of blocks, or a constant, has none."""
    references = expression.get('references') if isinstance(expression, dict) else None
    return [str(reference) for reference in references] if isinstance(references, list) else []


def _blocks(expression: Any) -> list[dict[str, Any]]:
    """Return nested blocks of an expression, each with its own expressions."""
    blocks = expression if isinstance(expression, list) else []
    return [block for block in blocks if isinstance(block, dict)]


def _nth(values: Any, number: int) -> dict[str, Any]:
    is_there = isinstance(values, list) and number < len(values)
    return values[number] if is_there and isinstance(values[number], dict) else {}
