# SPDX-License-Identifier: Apache-2.0
"""Fields of a request by the rule that they need: an allow-list, and the rule for the rest.

A member of a project states what its guests need and which of its own they are to be near to.  A
field that chooses among hosts by their properties lets its caller find out, one request after the
other, what the hosts are, have and run; a field that names a host takes a place on it. A field that
is added tomorrow is not on the list, and needs the rule for choosing hosts until it is put there.
"""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from gantt.core.messages import quoting
from gantt.core.messages.keys import nova_hints
from gantt.core.messages.request import Lifecycle, Purpose, SelectDestinations

CLAIM_POLICY = 'gantt:requests:create:claim'
MIGRATE_POLICY = 'gantt:requests:create:migrate'
RULES_POLICY = 'gantt:requests:create:rules'
TRUSTED_POLICY = 'gantt:requests:create:trusted'

#: Fields of the request's owner, or of what a guest needs: for every caller of the route.
MEMBER_FIELDS = frozenset(
    {
        'body.request_id',
        'body.consumers',
        'body.alternates',
        'body.budget_ms',
        'body.lease_seconds',
        'body.repeat',
        'body.origin',
        'body.trace',
        'body.hops',
        'body.only_project',  # replaced where the caller acts for one project
        'body.spec.resources',
        'body.spec.kind',
        'body.spec.max_resources',
        'body.spec.tree.devices',  # but for their traits
        'body.spec.tree.group_policy',
        'body.spec.tree.same_subtree',
        'body.spec.consumer_type',
        'body.spec.availability_zone',
        'body.spec.project_id',
        'body.spec.user_id',  # have to be the caller's
        'body.spec.same_host',
        'body.spec.different_host',  # have to be of its project
        *(
            f'body.spec.hints.{name}'
            for name in (*nova_hints.CONSUMER_HINTS, nova_hints.GROUP_HINT)
        ),
        f'body.spec.hints.{nova_hints.PLAN_HINT}',
        f'body.spec.hints.{nova_hints.MEMBER_HINT}',
        'body.spec.group.uuid',
        'body.spec.group.member',
        'body.spec.group.policy',
        'body.spec.group.max_per_host',
        'body.spec.flavor.name',
        'body.spec.image.uuid',
        'body.spec.image.disk_format',
        'body.spec.volume_backed',
    }
)
#: Fields whose own fields, or keys, are checked one by one.
NESTED_FIELDS = frozenset(
    {
        'body.spec',
        'body.spec.group',
        'body.spec.tree',
        'body.spec.flavor',
        'body.spec.flavor.extra_specs',
        'body.spec.image',
        'body.spec.image.properties',
        'body.spec.hints',
    }
)
#: Fields that take a place on a named host, or are trusted as they are.
TRUSTED_FIELDS = frozenset(
    {
        'body.spec.force_hosts',
        'body.spec.force_nodes',
        'body.spec.destination',
        'body.spec.group.members',
        'body.spec.group.hosts',
        'body.spec.move_id',
        'body.parent',
        'body.places',
        'body.via',
        'body.rule_generation',
    }
)
#: Fields that zones send to their child zones of any owner.
ZONE_FIELDS = frozenset({'body.dry_run', 'body.via', 'body.rule_generation'})
_PURPOSES = {
    Purpose.MIGRATE: MIGRATE_POLICY,
    Purpose.LIVE_MIGRATE: MIGRATE_POLICY,
    Purpose.EVACUATE: TRUSTED_POLICY,
}
_PLAIN_PURPOSES = ', '.join(purpose for purpose in Purpose if purpose not in _PURPOSES)


class ProtectedField(NamedTuple):
    """A field of a request that needs a rule in addition to that of the route.

    :ivar field: its path, as in the errors of a body
    :ivar expected: value for callers that do not meet the rule
    """

    field: str
    rule: str
    expected: str


def protected_fields(body: SelectDestinations) -> Iterator[ProtectedField]:
    """Yield every field and key beyond those of a member, in the order of the types."""
    if not body.dry_run:
        yield ProtectedField('body.dry_run', CLAIM_POLICY, 'true')
    if body.lifecycle is not Lifecycle.HOST:
        yield ProtectedField('body.lifecycle', TRUSTED_POLICY, f"'{Lifecycle.HOST}'")
    purpose = body.spec.purpose
    if purpose in _PURPOSES:
        yield ProtectedField('body.spec.purpose', _PURPOSES[purpose], f'one of {_PLAIN_PURPOSES}')
    yield from _protected_by_value('body', body)
    for number, device in enumerate(body.spec.tree.devices if body.spec.tree else ()):
        for name in ('required_traits', 'forbidden_traits'):
            if getattr(device, name):
                yield ProtectedField(
                    f'body.spec.tree.devices[{number}].{name}', RULES_POLICY, 'nothing'
                )


#: Checked by their values, above.
_FIELDS_BY_VALUE = frozenset({'body.dry_run', 'body.lifecycle', 'body.spec.purpose'})


def _protected_by_value(path: str, value: Any) -> Iterator[ProtectedField]:
    for name, inner in _fields_of(value):
        field = f'{path}.{name}'
        if field in MEMBER_FIELDS or field in _FIELDS_BY_VALUE:
            continue
        if field in NESTED_FIELDS:
            yield from _protected_by_value(field, inner)
        else:
            shown = f'{path}.{quoting.plain_text(name, quoting.QUOTED_CHARACTERS_MAX)}'
            yield ProtectedField(
                shown, TRUSTED_POLICY if field in TRUSTED_FIELDS else RULES_POLICY, 'nothing'
            )


def _fields_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields and keys with values: no defaults, no empty lists."""
    if isinstance(value, dict):
        yield from ((name, inner) for name, inner in value.items() if inner != [])
        return
    for name, default in _defaults(value.__class__):
        inner = getattr(value, name)
        if inner != default:
            yield name, inner


@functools.cache
def _defaults(tp: type) -> tuple[tuple[str, Any], ...]:
    """Return each field with its default; ``NODEFAULT``, equal to no value, where it has none."""
    return tuple(
        (
            field.name,
            field.default
            if field.required or field.default is not msgspec.NODEFAULT
            else field.default_factory(),
        )
        for field in msgspec.structs.fields(tp)
    )
