# SPDX-License-Identifier: Apache-2.0
"""Extra specs and image properties of Nova's that are fields of a request here.

``resources:CLASS``, ``trait:TRAIT``, their numbered groups and ``group_policy`` of a flavor, the
traits that an image requires, and the amounts of persistent and encrypted memory, are supported in
every interface, by the rules of Nova's own translation for Placement.  Where the field is given as
well both have to be the same; 0 removes a class from those that Nova derives from the columns of a
flavor, and from no field.  All other extra specs and properties stay texts for the filters that
read them.
"""

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from gantt.core.messages import base, resource_classes
from gantt.core.messages.base import FieldError
from gantt.core.messages.keys.topology_settings import TopologySettings, pmem_class
from gantt.core.messages.tree_request import GroupPolicy, ResourceGroup, TreeRequest

GROUP_POLICY = 'group_policy'
#: Keys of an image: names with commas between, as Nova sends them; ``trait:NAME`` as in Glance.
TRAITS_REQUIRED_KEY, TRAIT_PREFIX = 'traits_required', 'trait:'
_GROUP_KEY_PREFIXES = ('resources', 'trait', GROUP_POLICY)
_RESOURCE = re.compile(r'resources([0-9A-Za-z_-]*):(.+)\Z', re.DOTALL)
_TRAIT = re.compile(r'trait([0-9A-Za-z_-]*):(.+)\Z', re.DOTALL)
_NAME = re.compile(base.NAME_PATTERN)
#: Most digits of an amount; larger ones are refused as numbers, with the limit.
_DIGITS_MAX = 20
_AMOUNT_MAX, _CLASSES_MAX, _TRAITS_MAX = 2**40, 64, 512


class FlavorRequest:
    """Amounts by class, 0 being none at all, and traits that extra specs request.

    :ivar groups: amounts and traits of the numbered groups, by suffix
    :ivar policy: group policy of the numbered groups; '': none given
    """

    __slots__ = ('forbidden', 'groups', 'policy', 'required', 'resources')

    def __init__(self) -> None:
        self.resources: dict[str, int] = {}
        self.required: list[str] = []
        self.forbidden: list[str] = []
        self.groups: dict[str, FlavorRequest] = {}
        self.policy = ''

    def group(self, suffix: str) -> 'FlavorRequest':
        """Return the numbered group of a suffix; '': itself."""
        return self.groups.setdefault(suffix, FlavorRequest()) if suffix else self

    def classes(self) -> set[str]:
        """Return the classes that have amounts, in whatever group."""
        return self.resources.keys() | {
            n for numbered in self.groups.values() for n in numbered.resources
        }

    def as_group(self) -> ResourceGroup:
        """Return a numbered group as one of ``spec.tree``."""
        return ResourceGroup(
            resources={name: amount for name, amount in self.resources.items() if amount},
            required_traits=sorted(set(self.required)),
            forbidden_traits=sorted(set(self.forbidden)),
        )


def read(specs: Mapping[str, str], properties: Mapping[str, str]) -> FlavorRequest:
    """Return requirements that extra specs of a flavor and properties of an image express.

    :raises FieldError: names the extra spec, or the property
    """
    request = _read_flavor(specs)
    request.required += _read_image(properties)
    settings = TopologySettings(specs, properties)
    if settings.is_on('mem_encryption'):
        request.resources['MEM_ENCRYPTION_CONTEXT'] = 1
    classes = list(map(pmem_class, settings.pmem()))
    for name in classes:
        request.resources[name] = classes.count(name)
    return request


def _read_flavor(specs: Mapping[str, str]) -> FlavorRequest:
    request = FlavorRequest()
    for key, value in specs.items():
        if not key.startswith(_GROUP_KEY_PREFIXES):
            continue
        field = f'flavor.extra_specs.{key}'
        resource, trait = _RESOURCE.match(key), _TRAIT.match(key)
        if key == GROUP_POLICY:
            if value not in ('none', 'isolate'):
                raise FieldError(field, f"expected 'none' or 'isolate', got {value!r}")
            request.policy = value
        elif resource is not None:
            group = request.group(resource[1])
            group.resources[resource[2]] = _amount_of(resource[2], value, field)
        elif trait is not None:
            group = request.group(trait[1])
            lists = {'required': group.required, 'forbidden': group.forbidden}
            if value not in lists:
                raise FieldError(field, f"expected 'required' or 'forbidden', got {value!r}")
            lists[value].append(_trait_of(trait[2], field))
    if len(request.groups) > 1 and not request.policy:
        problem = (
            f"expected 'none' or 'isolate' with {len(request.groups)} numbered groups, got none"
        )
        raise FieldError(f'flavor.extra_specs.{GROUP_POLICY}', problem)
    return request


def _amount_of(name: str, text: str, field: str) -> int:
    stripped = text.strip()
    if not (
        stripped.isascii()
        and stripped.isdigit()
        and len(stripped) <= _DIGITS_MAX
        and resource_classes.is_class_name(name)
    ):
        raise FieldError(
            field, f'expected a resource class and an amount, got {text[:_DIGITS_MAX]!r}'
        )
    if int(stripped) > _AMOUNT_MAX:
        raise FieldError(field, f'expected at most {_AMOUNT_MAX}, got {stripped}')
    return int(stripped)


def _trait_of(name: str, field: str) -> str:
    if len(name) > base.NAME_MAX or not _NAME.search(name):
        raise FieldError(field, f'expected a trait of 1 to {base.NAME_MAX} characters')
    return name


def _read_image(properties: Mapping[str, str]) -> list[str]:
    traits = []
    for part in properties.get(TRAITS_REQUIRED_KEY, '').split(','):
        if name := part.strip():
            traits.append(_trait_of(name, f'image.properties.{TRAITS_REQUIRED_KEY}'))
    for key, value in properties.items():
        if key.startswith(TRAIT_PREFIX):
            field = f'image.properties.{key}'
            if value != 'required':
                raise FieldError(field, f"expected 'required', got {value!r}")
            traits.append(_trait_of(key.removeprefix(TRAIT_PREFIX), field))
    return traits


def changed_fields(spec: Any) -> dict[str, Any]:
    """Return the fields of a spec that its flavor and its image change, with their new values.

    :raises FieldError: the extra spec and the field differ
    """
    request = read(spec.flavor.extra_specs, spec.image.properties)
    new_values = {
        'resources': _amounts(spec.resources, request.resources),
        'required_traits': _union_of(spec.required_traits, request.required, 'required_traits'),
        'forbidden_traits': _union_of(spec.forbidden_traits, request.forbidden, 'forbidden_traits'),
        'tree': _tree(spec.tree, request),
    }
    return {name: value for name, value in new_values.items() if value is not getattr(spec, name)}


def _amounts(given: dict[str, int], asked: Mapping[str, int]) -> dict[str, int]:
    new = {}
    for name, amount in asked.items():
        amount_given = given.get(name, 0)
        if amount and amount_given not in (0, amount):
            _refuse_difference(f'resources:{name}', f'resources.{name}', amount_given, amount)
        if amount and not amount_given:
            new[name] = amount
    if len(given) + len(new) > _CLASSES_MAX:
        raise FieldError('flavor.extra_specs', f'expected at most {_CLASSES_MAX} classes in all')
    return {**given, **new} if new else given


def _union_of(given: list[str], asked: list[str], field: str) -> list[str]:
    new = [name for name in dict.fromkeys(asked) if name not in given]
    if len(given) + len(new) > _TRAITS_MAX:
        raise FieldError(field, f'expected at most {_TRAITS_MAX} with those of the extra specs')
    return [*given, *new] if new else given


def _tree(given: TreeRequest | None, asked: FlavorRequest) -> TreeRequest | None:
    if not asked.groups:
        return given
    groups = {} if given is None else dict(given.groups)
    policy = None if given is None else given.group_policy
    new_policy = GroupPolicy(asked.policy) if asked.policy else policy
    if policy not in (None, new_policy):
        _refuse_difference(GROUP_POLICY, 'tree.group_policy', str(policy), asked.policy)
    for suffix, numbered in asked.groups.items():
        group = numbered.as_group()
        if groups.setdefault(suffix, group) != group:
            _refuse_difference(
                f'resources{suffix}', f'tree.groups.{suffix}', 'another group', 'this one'
            )
    if given is not None and (groups, new_policy) == (given.groups, policy):
        return given
    try:
        if given is None:
            return TreeRequest(groups=groups, group_policy=new_policy)
        return msgspec.structs.replace(given, groups=groups, group_policy=new_policy)
    except FieldError as e:
        raise FieldError(f'tree.{e.field}', e.problem) from None


def _refuse_difference(key: str, field: str, given: object, asked: object) -> NoReturn:
    problem = f'expected it or the field {field}; both are given, {asked} and {given}'
    raise FieldError(f'flavor.extra_specs.{key}', problem)
