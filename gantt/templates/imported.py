# SPDX-License-Identifier: Apache-2.0
"""A description of a group that is made of servers and server groups of a template."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import msgspec

from gantt import exceptions
from gantt.cli.endpoint import load_body
from gantt.core.messages.keys.nova_hints import MEMBER_HINT, PLAN_HINT
from gantt.core.messages.policy_set import MEMBERS_MAX
from gantt.groups.model import group_description
from gantt.templates.flavors import Flavors

POLICIES = ('affinity', 'anti-affinity', 'soft-affinity', 'soft-anti-affinity')
_SOFT = 'soft-'
#: Fields of a member that a template may give: its count, its own policies.
_METADATA_FIELDS = ('count', 'policies', 'alternatives')
#: Hints that say which place a create is to have, and nothing of what it needs.
HINTS_OF_CREATES = frozenset({'group', PLAN_HINT, MEMBER_HINT})


class ImportedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a group, and what it was made of.

    :ivar description: body of a ``GroupDescription``
    :ivar addresses: name of a member of it -> addresses in the template, in order
    :ivar left_out: lines for resources that are no members
    :ivar notes: lines about how the template was read
    """

    description: dict[str, Any]
    addresses: dict[str, list[str]]
    left_out: list[str] = []
    notes: list[str] = []


class TemplateSource(msgspec.Struct, frozen=True, kw_only=True):
    """A template to be converted, as named on the command line.

    :ivar path: its file; ``-`` is standard input
    :ivar environments: files with parameters and types, later ones win
    :ivar parameters: values by name
    :ivar python: Python that has the library that reads it; None: this one
    """

    path: str
    flavors: Flavors
    environments: Sequence[str] = ()
    parameters: Mapping[str, str] = {}
    python: str | None = None

    def document(self) -> Any:
        """Return the document of a kind that has no options.

        :raises InvalidMessage: it was given options
        :raises Failure: the file cannot be read
        """
        for option in ('environments', 'parameters', 'python'):
            if getattr(self, option):
                raise exceptions.invalid(option, 'expected none: this kind of template has none')
        return load_body(self.path)


class TemplateServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server that a template makes.

    :ivar resource: what its name is of: servers of one resource that are alike are one member
    :ivar name: name of the member where all servers of the resource are alike
    :ivar own_name: its name where they are not
    :ivar group: address of its server group
    :ivar fields: of the member, from the server's metadata
    """

    address: str
    resource: Hashable
    name: str
    own_name: str
    spec: dict[str, Any]
    group: str | None = None
    fields: dict[str, Any] = {}


class TemplateGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A server group that a template makes.

    :ivar name: of the subgroup that it becomes where it has several members
    :ivar max_per_host: most servers on a host; None or 0: no limit
    :ivar more_policies: policies from its metadata, without a target: about its servers
    """

    address: str
    name: str
    policies: Sequence[str]
    max_per_host: int | None = None
    more_policies: Sequence[dict[str, Any]] = ()


def metadata_fields(fields: Any, where: str) -> dict[str, Any]:
    """Return fields of a member from metadata of its server.

    :raises InvalidMessage: names ``where``
    """
    policies = fields.get('policies', []) if isinstance(fields, dict) else None
    if (
        not isinstance(policies, list)
        or not all(isinstance(policy, dict) for policy in policies)
        or not set(fields) <= set(_METADATA_FIELDS)
    ):
        raise exceptions.invalid(
            where, f'expected an object with {", ".join(_METADATA_FIELDS)}; policies as a list'
        )
    return dict(fields)


def import_group(
    servers: Sequence[TemplateServer],
    groups: Sequence[TemplateGroup],
    *,
    where: str,
    left_out: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> ImportedGroup:
    """Return the group of these servers.

    :param where: the field that an error about their number names
    :raises InvalidMessage: names the address and what was expected there
    """
    if len(servers) > MEMBERS_MAX:
        raise exceptions.invalid(
            where, f'expected at most {MEMBERS_MAX} instances that are created; got {len(servers)}'
        )
    left_out = list(left_out)
    members: dict[str, dict[str, Any]] = {}
    addresses: dict[str, list[str]] = {}
    names_by_group: dict[str, list[str]] = {}
    policies: list[dict[str, Any]] = []
    for alike in _alike(servers):
        first = alike[0]
        others = [server for server in servers if server.resource == first.resource]
        own = first.own_name if len(others) > len(alike) else first.name
        name = _free_name(own, members)
        members[name], own_policies = _member(first, name, len(alike))
        addresses[name] = [server.address for server in alike]
        policies += own_policies
        if first.group is not None:
            names_by_group.setdefault(first.group, []).append(name)
    subgroups: dict[str, list[str]] = {}
    for group in groups:
        names = names_by_group.get(group.address)
        if not names:
            left_out.append(f'{group.address}: no instance that is created is in it')
            continue
        subject = names[0]
        if len(names) > 1:
            subject = _free_name(group.name, {**members, **subgroups})
            subgroups[subject] = names
        policies.append(_policy(group, subject))
        policies += [{'of': subject, **policy} for policy in group.more_policies]
    description = {'policies': policies, 'subgroups': subgroups, 'members': [*members.values()]}
    description = {field: value for field, value in description.items() if value}
    group_description.read(description, inside='description')
    return ImportedGroup(
        description=description, addresses=addresses, left_out=left_out, notes=list(notes)
    )


def _alike(servers: Sequence[TemplateServer]) -> list[list[TemplateServer]]:
    """Return servers of one resource with equal needs together, in order."""
    alike: dict[str, list[TemplateServer]] = {}
    for server in servers:
        what = (server.resource, server.spec, server.group, server.fields)
        alike.setdefault(repr(what), []).append(server)
    return list(alike.values())


def _member(
    server: TemplateServer, name: str, count: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the description of a member, and policies of its own."""
    fields = dict(server.fields)
    policies = [{'of': name, **policy} for policy in fields.pop('policies', [])]
    given = fields.get('count', count)
    most = given[-1] if isinstance(given, list) and given else given
    if isinstance(most, int) and most < count:
        raise exceptions.invalid(
            f'{server.address}.metadata.gantt',
            f'count: expected at least the {count} instances that are created',
        )
    member: dict[str, Any] = {'name': name}
    if count > 1:
        member['count'] = count
    return {**member, **fields, 'spec': server.spec}, policies


def _policy(group: TemplateGroup, subject: str) -> dict[str, Any]:
    """Return the policy of a server group.  :raises InvalidMessage:"""
    names = group.policies
    if len(names) != 1 or names[0] not in POLICIES:
        raise exceptions.invalid(
            f'{group.address}.policies', f'expected one of {", ".join(POLICIES)}; got {names}'
        )
    policy: dict[str, Any] = {'policy': names[0].removeprefix(_SOFT), 'of': subject}
    if names[0].startswith(_SOFT):
        policy['soft'] = 1
    if group.max_per_host:
        policy['max_per_domain'] = group.max_per_host
    return policy


def _free_name(name: str, taken: Mapping[str, object]) -> str:
    """Return the name, with a number behind it where it is taken."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f'{name}.{number}'
    return free
