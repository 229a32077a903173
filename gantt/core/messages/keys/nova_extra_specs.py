# SPDX-License-Identifier: Apache-2.0
"""Extra specs and image properties of Nova's that are fields of a request here.

``resources:CLASS``, ``trait:TRAIT``, their numbered groups and ``group_policy`` of a flavor, the
traits that an image requires, and what persistent and encrypted memory take of a host, are
understood at every door, by the rules of Nova's own translation for Placement.  Where the field is
given as well both have to say the same; 0 takes a class out of what Nova makes of the columns of a
flavor, and out of no field.  All other extra specs and properties stay what they are: texts for the
filters that read them.
"""

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from gantt.core.messages import base, resource_classes
from gantt.core.messages.base import Misfit
from gantt.core.messages.keys.topology_settings import TopologySettings, pmem_class
from gantt.core.messages.tree_request import GroupPolicy, ResourceGroup, TreeRequest

GROUP_POLICY = 'group_policy'
#: Of an image: names with commas between, as Nova sends them; ``trait:NAME`` as Glance has them.
TRAITS, TRAIT_PREFIX = 'traits_required', 'trait:'
_PREFIXES = ('resources', 'trait', GROUP_POLICY)
_RESOURCE = re.compile(r'resources([0-9A-Za-z_-]*):(.+)\Z', re.DOTALL)
_TRAIT = re.compile(r'trait([0-9A-Za-z_-]*):(.+)\Z', re.DOTALL)
_NAME = re.compile(base.NAME)
#: Digits of an amount at most; larger ones are refused as numbers, with the limit.
_DIGITS_MAX = 20
_AMOUNT_MAX, _CLASSES_MAX, _TRAITS_MAX = 2**40, 64, 512


class FlavorRequest:
    """Amounts by class, 0 being none at all, and traits that extra specs ask for.

    :ivar groups: the same by suffix, of the groups that are numbered
    :ivar policy: of these; '': they say none
    """

    __slots__ = ('forbidden', 'groups', 'policy', 'required', 'resources')

    def __init__(self) -> None:
        self.resources: dict[str, int] = {}
        self.required: list[str] = []
        self.forbidden: list[str] = []
        self.groups: dict[str, FlavorRequest] = {}
        self.policy = ''

    def group(self, suffix: str) -> 'FlavorRequest':
        """The numbered group of a suffix; '': itself."""
        return self.groups.setdefault(suffix, FlavorRequest()) if suffix else self

    def classes(self) -> set[str]:
        """Those that it says amounts of, in whatever group."""
        return self.resources.keys() | {n for one in self.groups.values() for n in one.resources}

    def as_group(self) -> ResourceGroup:
        """A numbered group as one of ``spec.tree``."""
        return ResourceGroup(
            resources={name: amount for name, amount in self.resources.items() if amount},
            required_traits=sorted(set(self.required)),
            forbidden_traits=sorted(set(self.forbidden)),
        )


def read(specs: Mapping[str, str], properties: Mapping[str, str]) -> FlavorRequest:
    """Requirements that extra specs of a flavor and properties of an image express.

    :raises Misfit: names the extra spec, or the property
    """
    found = _of_flavor(specs)
    found.required += _of_image(properties)
    settings = TopologySettings(specs, properties)
    if settings.is_on('mem_encryption'):
        found.resources['MEM_ENCRYPTION_CONTEXT'] = 1
    classes = list(map(pmem_class, settings.pmem()))
    for name in classes:
        found.resources[name] = classes.count(name)
    return found


def _of_flavor(specs: Mapping[str, str]) -> FlavorRequest:
    found = FlavorRequest()
    for key, value in specs.items():
        if not key.startswith(_PREFIXES):
            continue
        field = f'flavor.extra_specs.{key}'
        resource, trait = _RESOURCE.match(key), _TRAIT.match(key)
        if key == GROUP_POLICY:
            if value not in ('none', 'isolate'):
                raise Misfit(field, f"expected 'none' or 'isolate', got {value!r}")
            found.policy = value
        elif resource is not None:
            group = found.group(resource[1])
            group.resources[resource[2]] = _amount_of(resource[2], value, field)
        elif trait is not None:
            group = found.group(trait[1])
            lists = {'required': group.required, 'forbidden': group.forbidden}
            if value not in lists:
                raise Misfit(field, f"expected 'required' or 'forbidden', got {value!r}")
            lists[value].append(_trait_of(trait[2], field))
    if len(found.groups) > 1 and not found.policy:
        problem = f"expected 'none' or 'isolate' with {len(found.groups)} numbered groups, got none"
        raise Misfit(f'flavor.extra_specs.{GROUP_POLICY}', problem)
    return found


def _amount_of(name: str, text: str, field: str) -> int:
    stripped = text.strip()
    if not (
        stripped.isascii()
        and stripped.isdigit()
        and len(stripped) <= _DIGITS_MAX
        and resource_classes.is_class_name(name)
    ):
        raise Misfit(field, f'expected a resource class and an amount, got {text[:_DIGITS_MAX]!r}')
    if int(stripped) > _AMOUNT_MAX:
        raise Misfit(field, f'expected at most {_AMOUNT_MAX}, got {stripped}')
    return int(stripped)


def _trait_of(name: str, field: str) -> str:
    if len(name) > base.NAME_MAX or not _NAME.search(name):
        raise Misfit(field, f'expected a trait of 1 to {base.NAME_MAX} characters')
    return name


def _of_image(properties: Mapping[str, str]) -> list[str]:
    found = []
    for part in properties.get(TRAITS, '').split(','):
        if name := part.strip():
            found.append(_trait_of(name, f'image.properties.{TRAITS}'))
    for key, value in properties.items():
        if key.startswith(TRAIT_PREFIX):
            field = f'image.properties.{key}'
            if value != 'required':
                raise Misfit(field, f"expected 'required', got {value!r}")
            found.append(_trait_of(key.removeprefix(TRAIT_PREFIX), field))
    return found


def fields(spec: Any) -> dict[str, Any]:
    """Fields of a spec with what its flavor and its image add to them; those that change.

    :raises Misfit: the extra spec and the field differ
    """
    asked = read(spec.flavor.extra_specs, spec.image.properties)
    found = {
        'resources': _amounts(spec.resources, asked.resources),
        'required_traits': _united(spec.required_traits, asked.required, 'required_traits'),
        'forbidden_traits': _united(spec.forbidden_traits, asked.forbidden, 'forbidden_traits'),
        'tree': _tree(spec.tree, asked),
    }
    return {name: value for name, value in found.items() if value is not getattr(spec, name)}


def _amounts(given: dict[str, int], asked: Mapping[str, int]) -> dict[str, int]:
    new = {}
    for name, amount in asked.items():
        known = given.get(name, 0)
        if amount and known not in (0, amount):
            _differ(f'resources:{name}', f'resources.{name}', known, amount)
        if amount and not known:
            new[name] = amount
    if len(given) + len(new) > _CLASSES_MAX:
        raise Misfit('flavor.extra_specs', f'expected at most {_CLASSES_MAX} classes in all')
    return {**given, **new} if new else given


def _united(given: list[str], asked: list[str], field: str) -> list[str]:
    new = [name for name in dict.fromkeys(asked) if name not in given]
    if len(given) + len(new) > _TRAITS_MAX:
        raise Misfit(field, f'expected at most {_TRAITS_MAX} with those of the extra specs')
    return [*given, *new] if new else given


def _tree(given: TreeRequest | None, asked: FlavorRequest) -> TreeRequest | None:
    if not asked.groups:
        return given
    groups = {} if given is None else dict(given.groups)
    policy = None if given is None else given.group_policy
    wanted = GroupPolicy(asked.policy) if asked.policy else policy
    if policy not in (None, wanted):
        _differ(GROUP_POLICY, 'tree.group_policy', str(policy), asked.policy)
    for suffix, one in asked.groups.items():
        group = one.as_group()
        if groups.setdefault(suffix, group) != group:
            _differ(f'resources{suffix}', f'tree.groups.{suffix}', 'another group', 'this one')
    if given is not None and (groups, wanted) == (given.groups, policy):
        return given
    try:
        if given is None:
            return TreeRequest(groups=groups, group_policy=wanted)
        return msgspec.structs.replace(given, groups=groups, group_policy=wanted)
    except Misfit as e:
        raise Misfit(f'tree.{e.field}', e.problem) from None


def _differ(key: str, field: str, given: object, asked: object) -> NoReturn:
    problem = f'expected it or the field {field}; both are given, {asked} and {given}'
    raise Misfit(f'flavor.extra_specs.{key}', problem)
