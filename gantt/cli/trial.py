# SPDX-License-Identifier: Apache-2.0
"""Placement's interface for a dry run: reads are its own, writes are judged by what is read.

That interface has no dry run.  What a write would meet is told by the same rules that the service
judges it by, on the inventories, usages, allocations and trees as they are read now, and refused in
the words of the interface.  Two things cannot be read there: whether a host whose node has another
name than its service reports what it has, and what nobody has claimed but a host runs, where an
allocation that is there already is to grow.
"""

import re
import uuid as uuids
from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from urllib.parse import unquote

from msgspec.structs import replace

from gantt import exceptions
from gantt.cli import base
from gantt.cli.endpoint import Endpoint, Failure, encoded
from gantt.core.claims.acceptance import ProviderState, why_not_written
from gantt.core.messages import resource_classes
from gantt.core.messages.resource_classes import CORE_CLASSES, Inventory
from gantt.core.resources import provider as rules
from gantt.standard_traits import STANDARD_TRAITS

#: What an amount has to be at most; a name of a provider has at most so many characters.
INT_MAX = 2_147_483_647
NAME_MAX = 200
_PROVIDERS = '/resource_providers'
_GENERATION = 'resource_provider_generation'
_CLASS = re.compile('[A-Z0-9_]{1,255}')
#: Why allocations are refused -> in the words of the interface.
_NOT_ALLOCATED = {
    'missing': "Inventory for '{classes}' on resource provider '{provider}' invalid.",
    'units': (
        "Unable to create allocation for '{classes}' on resource provider '{provider}'. The "
        'requested amount would violate inventory constraints.'
    ),
    'capacity': (
        "Unable to create allocation for '{classes}' on resource provider '{provider}'. The "
        'requested amount would exceed the capacity.'
    ),
}
#: What is told of a thing in one line: its name -> its value; '': it has none.
Described = Mapping[str, str]

#: Patterns of names, as the interface words its refusals.
_AS_CLASS, _AS_CUSTOM = r'^[A-Z0-9_]+\Z', r'^CUSTOM_[A-Z0-9_]+\Z'


class Trial(Endpoint):
    """Changes nothing.  What one write of it would have changed, its next reads show.

    :param placement: where to read
    :param own: Gantt's own interface of the same service, for what Placement's has not
    :ivar differences: what would be otherwise, each with ``+``, ``-`` or ``~`` before it
    :ivar would_change: whether anything would
    """

    def __init__(self, placement: Endpoint, own: Endpoint) -> None:
        super().__init__(placement.url, placement.timeout)
        self.differences: list[str] = []
        self.would_change = False
        self._source = placement
        self._own = own
        self._written: dict[str, Any] = {}

    def call(
        self,
        method: str,
        path: str,
        query: dict[str, Any],
        body: Any = None,
        timeout: float | None = None,
        unwell: bool = False,
    ) -> Any:
        """A read; or what a write would be answered.

        :raises Failure: it would be refused, or cannot be read
        """
        if method == 'GET':
            found = self._written.get(path) if not query else None
            return found or self._source.call(method, path, query, body, timeout, unwell)
        encoded(body)
        for known, pattern, judge in _WRITES:
            match = pattern.fullmatch(path)
            if known == method and match is not None:
                names = [unquote(name) for name in match.groups()]
                return judge(self, *names, *([] if body is None else [body]))
        raise AssertionError(f'no rule for {method} {path}')

    # -- names --------------------------------------------------------------------------
    def ensure_class(self, name: str) -> dict[str, Any]:
        """PUT of a resource class."""
        if not resource_classes.CUSTOM.match(name):
            _refuse(400, f'JSON does not validate: {name!r} does not match {_AS_CUSTOM!r}')
        self.would_change |= name not in self._classes()
        return {}

    def delete_class(self, name: str) -> dict[str, Any]:
        """DELETE of a resource class."""
        problem = 'Error in delete resource class: '
        if name in resource_classes.STANDARD:
            _refuse(400, f'{problem}Cannot delete standard resource class {name}.')
        self.get(f'/resource_classes/{base.path_part(name)}')
        had = self._read_own('/v1/roll-up')
        if had is not None and any(one['resource_class'] == name for one in had['classes']):
            _refuse(
                409, f'{problem}Cannot delete resource class {name}. Class is in use in inventory.'
            )
        self.would_change = True
        return {}

    def ensure_trait(self, name: str) -> dict[str, Any]:
        """PUT of a trait."""
        if not resource_classes.CUSTOM.match(name):
            _refuse(
                400,
                'The trait is invalid. A valid trait must be no longer than 255 characters, start '
                'with the prefix "CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and "_"',
            )
        self.would_change |= name not in self._traits(name)
        return {}

    def delete_trait(self, name: str) -> dict[str, Any]:
        """DELETE of a trait."""
        if name in STANDARD_TRAITS:
            _refuse(400, f'Cannot delete standard trait {name}.')
        if name not in self._traits(name):
            _refuse(404, f'No such trait(s): {name}.')
        if name in self._traits(name, associated=True):
            _refuse(409, f'The trait {name} is in use by a resource provider.')
        self.would_change = True
        return {}

    def _classes(self) -> set[str]:
        return {one['name'] for one in self.get('/resource_classes')['resource_classes']}

    def _traits(self, *names: str, **query: Any) -> set[str]:
        """Those of some names that are there."""
        return set(self.get('/traits', name=f'in:{",".join(names)}', **query)['traits'])

    # -- providers ----------------------------------------------------------------------
    def create_provider(self, body: dict[str, Any]) -> dict[str, Any]:
        """POST of a provider."""
        name, uuid = body['name'], body.get('uuid') or str(uuids.uuid4())
        self._check_name(name, f'Unable to create resource provider "{name}", {uuid}: ')
        for key, value in (('uuid', uuid), ('name', name)):
            self._must_be_free(key, value, f'{key}: {value}')
        made = {
            'name': name,
            'uuid': uuid,
            'parent_provider_uuid': body.get('parent_provider_uuid'),
        }
        self._written[_path(uuid)] = made
        for key, nothing in (
            ('inventories', {}),
            ('usages', {}),
            ('traits', []),
            ('aggregates', []),
        ):
            self._written[_path(uuid, key)] = {_GENERATION: 0, key: nothing}
        self.would_change = True
        return made

    def update_provider(self, uuid: str, body: dict[str, Any]) -> dict[str, Any]:
        """PUT of a provider: its name and its parent."""
        now = self._provider(uuid)
        problem = f'Unable to save resource provider {uuid}: '
        self._check_name(body['name'], problem)
        parent = body['parent_provider_uuid']
        if parent != now['parent_provider_uuid']:
            host = self._host(now)
            if host is not None:
                _refuse_as(rules.is_a_host(uuid, host['host']['name']))
            if parent is not None and uuid in self._above(parent):
                _refuse(
                    400,
                    f'{problem}Object action update failed because: creating loop in the provider '
                    'tree is not allowed.',
                )
        if body['name'] != now['name']:
            self._must_be_ours(now)
            self._must_be_free('name', body['name'], body['name'])
        self._differ(_place(now), _place(body))
        return body

    def delete_provider(self, uuid: str) -> dict[str, Any]:
        """DELETE of a provider."""
        provider = self._provider(uuid)
        host = self._host(provider)
        if host is not None:
            _refuse_as(rules.is_a_host(uuid, host['host']['name']))
        if any(one['parent_provider_uuid'] == uuid for one in self._tree(uuid)):
            _refuse(
                409,
                f'Unable to delete parent resource provider {uuid}: It has child resource '
                'providers.',
                'placement.resource_provider.cannot_delete_parent',
            )
        if self.get(_path(uuid, 'allocations'))['allocations']:
            _refuse(
                409,
                f'Unable to delete resource provider {uuid}: Resource provider has allocations.',
                'placement.resource_provider.inuse',
            )
        self.would_change = True
        return {}

    def _provider(self, uuid: str) -> dict[str, Any]:
        found: dict[str, Any] = self.get(_path(uuid))
        return found

    def _tree(self, uuid: str) -> list[dict[str, Any]]:
        found = self.get(_PROVIDERS, in_tree=uuid)
        return list(found['resource_providers'])

    def _above(self, uuid: str) -> set[str]:
        """A provider and all that it is below of."""
        parents = {one['uuid']: one['parent_provider_uuid'] for one in self._tree(uuid)}
        found: set[str] = set()
        while uuid is not None and uuid not in found:
            found.add(uuid)
            uuid = parents[uuid]
        return found

    def _check_name(self, name: str, problem: str) -> None:
        if not name:
            _refuse(400, f'{problem}Object action create failed because: name is required')
        if len(name) > NAME_MAX:
            _refuse(400, f'{problem}expected a name of at most {NAME_MAX} characters')
        try:
            rules.check(name, None, {})
        except exceptions.InvalidMessage as e:
            _refuse(400, f'{problem}{e.message}')

    def _must_be_free(self, key: str, value: str, what: str) -> None:
        if self.get(_PROVIDERS, **{key: value})['resource_providers']:
            _refuse(
                409,
                f'Conflicting resource provider {what} already exists.',
                'placement.duplicate_name',
            )

    def _host(self, provider: Mapping[str, Any]) -> dict[str, Any] | None:
        """The host that a provider is; None: it is none, or nobody may know."""
        if provider['parent_provider_uuid'] is not None or _path(provider['uuid']) in self._written:
            return None
        found = self._read_own(f'/v1/hosts/{base.path_part(provider["name"])}')
        return found if found is not None and found['host']['uuid'] == provider['uuid'] else None

    def _reporting_host(self, provider: Mapping[str, Any]) -> str:
        """The host whose reports say what it has; '': none's do, or nobody may know."""
        host = self._host(provider)
        return host['host']['name'] if host and host['inventories_by'] == 'reports' else ''

    def _must_be_ours(self, provider: Mapping[str, Any]) -> None:
        """:raises Failure: what it has is for the reports of a host to say"""
        host = self._reporting_host(provider)
        if host:
            _refuse_as(rules.reports_it_itself(provider['uuid'], host))

    def _read_own(self, path: str) -> dict[str, Any] | None:
        """Of Gantt's own interface; None: it is not there, or not for this caller."""
        try:
            found: dict[str, Any] = self._own.get(path)
        except Failure as e:
            if e.error.get('status') in (403, 404):
                return None
            raise
        return found

    # -- what a provider has --------------------------------------------------------------
    def set_inventories(self, uuid: str, body: dict[str, Any]) -> dict[str, Any]:
        """PUT of all inventories of a provider."""
        self._must_be_ours(self._provider(uuid))
        wanted = {name: _inventory(numbers) for name, numbers in body['inventories'].items()}
        for name, one in wanted.items():
            if int((one.total - one.reserved) * one.allocation_ratio) < 0:
                _refuse(
                    400,
                    f'Unable to update inventory for resource provider {uuid}: Invalid inventory '
                    f"for '{name}' on resource provider '{uuid}'. The reserved value is greater "
                    'than total.',
                )
        unknown = self._unknown_classes(wanted)
        if unknown:
            _refuse(
                400,
                f'Unknown resource class in inventory for resource provider {uuid}: {unknown}',
            )
        try:
            rules.check_inventories(wanted)
            rules.check_used(uuid, self.get(_path(uuid, 'usages'))['usages'], wanted)
        except exceptions.InUse as e:
            gone: Any = e.kwargs['classes']
            core = [name for name in CORE_CLASSES if name in gone]
            names = ', '.join([*core, *(name for name in gone if name not in core)])
            _refuse(
                409,
                f"update conflict: Inventory for '{names}' on resource provider '{uuid}' in use.",
                'placement.inventory.inuse',
            )
        except exceptions.GanttError as e:
            _refuse_as(e)
        path = _path(uuid, 'inventories')
        before = {n: _inventory(one) for n, one in self.get(path)['inventories'].items()}
        self._differ(_amounts(before), _amounts(wanted))
        self._written[path] = body
        return body

    def set_traits(self, uuid: str, body: dict[str, Any]) -> dict[str, Any]:
        """PUT of all traits of a provider."""
        self._must_be_ours(self._provider(uuid))
        custom = sorted(set(body['traits']) - set(STANDARD_TRAITS))
        missing = sorted(set(custom) - self._traits(*custom)) if custom else []
        if missing:
            _refuse(400, f'No such trait {", ".join(missing)}')
        return self._replace(uuid, 'traits', body)

    def set_aggregates(self, uuid: str, body: dict[str, Any]) -> dict[str, Any]:
        """PUT of all aggregates that a provider is in."""
        self._must_be_ours(self._provider(uuid))
        return self._replace(uuid, 'aggregates', body)

    def _replace(self, uuid: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
        before, path = self.get(_path(uuid, key))[key], _path(uuid, key)
        one = key.removesuffix('s')
        self._differ(*({f'{one} {name}': '' for name in names} for names in (before, body[key])))
        self._written[path] = body
        return body

    def _unknown_classes(self, names: Mapping[str, Any]) -> str:
        """What is said of classes that are not there; '': all are."""
        missing = sorted(names.keys() - self._classes())
        return f'No such resource class {", ".join(missing)}.' if missing else ''

    # -- allocations ----------------------------------------------------------------------
    def set_allocations(self, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        """PUT of all that a consumer is to have."""
        if not _CLASS.fullmatch(body['consumer_type']):
            _refuse(
                400,
                f'JSON does not validate: {body["consumer_type"]!r} does not match {_AS_CLASS!r}',
            )
        before = _shares(self.get(f'/allocations/{consumer}')['allocations'])
        wanted = _shares(body['allocations'])
        refusal = self._why_not(before, wanted)
        if refusal is not None:
            unknown = self._unknown_classes({name: 0 for one in wanted.values() for name in one})
            if unknown:
                _refuse(400, f'Unable to allocate inventory for consumer {consumer}: {unknown}')
            _refuse(409, f'Unable to allocate inventory: {refusal}')
        self._differ(*map(_by_provider, (before, wanted)))
        return {}

    def _why_not(
        self, before: Mapping[str, dict[str, int]], wanted: Mapping[str, dict[str, int]]
    ) -> str | None:
        ids = {uuid: number for number, uuid in enumerate(sorted(before.keys() | wanted.keys()))}
        states = {ids[uuid]: self._state(uuid) for uuid in wanted}
        old, new = ({ids[uuid]: one for uuid, one in of.items()} for of in (before, wanted))
        found = why_not_written(states, [old], [new])
        if found is not None:
            uuid = next(uuid for uuid, number in ids.items() if number == found.provider_id)
            return _NOT_ALLOCATED[found.why].format(classes=', '.join(found.names), provider=uuid)
        for uuid, amounts in wanted.items():
            for name, amount in amounts.items():
                grows = amount - before.get(uuid, {}).get(name, 0)
                if grows > 0 and not self._has_room(uuid, states[ids[uuid]], name, grows):
                    return _NOT_ALLOCATED['capacity'].format(classes=name, provider=uuid)
        return None

    def _state(self, uuid: str) -> ProviderState:
        found = self.get(_path(uuid, 'inventories'))
        inventories = {name: _inventory(one) for name, one in found['inventories'].items()}
        if self._reporting_host(self._provider(uuid)):
            # What a report leaves out is as much as there is; it is shown as if there were no end.
            for name, one in inventories.items():
                if one.max_unit == INT_MAX:
                    inventories[name] = replace(one, max_unit=None)
        used = self.get(_path(uuid, 'usages'))['usages']
        return ProviderState(
            name=uuid,
            generation=found[_GENERATION],
            inventories=inventories,
            room={name: one.cap - used.get(name, 0) for name, one in inventories.items()},
        )

    def _has_room(self, uuid: str, state: ProviderState, name: str, grows: int) -> bool:
        """Whether so much more is free, with what runs there unclaimed, as far as can be read."""
        if state.inventories[name].unit_problem(grows) is not None:
            return True
        found = self.get(_PROVIDERS, uuid=uuid, resources=f'{name}:{grows}')
        return bool(found['resource_providers'])

    def delete_allocations(self, consumer: str) -> dict[str, Any]:
        """DELETE of all that a consumer has."""
        before = _shares(self.get(f'/allocations/{consumer}')['allocations'])
        if not before:
            _refuse(404, f"No allocations for consumer '{consumer}'")
        self._differ(_by_provider(before), {})
        return {}

    # -- what would be otherwise ------------------------------------------------------------
    def _differ(self, before: Described, after: Described) -> None:
        for key in sorted(before.keys() | after.keys()):
            old, new = before.get(key), after.get(key)
            if old == new:
                continue
            sign = '+' if old is None else '-' if new is None else '~'
            value = old if new is None else new
            was = f' (was {old})' if sign == '~' else ''
            self.differences.append(f'{sign} {key}{f"={value}" if value else ""}{was}')
            self.would_change = True


def _path(uuid: str, rest: str = '') -> str:
    return f'{_PROVIDERS}/{uuid}' + (f'/{rest}' if rest else '')


def _refuse(status: int, detail: str, code: str = 'placement.undefined_code') -> NoReturn:
    raise Failure(detail, error={'status': status, 'detail': detail, 'code': code})


def _refuse_as(error: exceptions.GanttError) -> NoReturn:
    _refuse(error.http_status, error.message)


def _inventory(numbers: Mapping[str, Any]) -> Inventory:
    """:raises Failure: a number is more than the interface takes"""
    for name, value in numbers.items():
        if name != 'allocation_ratio' and value > INT_MAX:
            _refuse(
                400, f'JSON does not validate: {value} is greater than the maximum of {INT_MAX}'
            )
    return Inventory(**{'max_unit': INT_MAX, **numbers})


def _amounts(inventories: Mapping[str, Inventory]) -> Described:
    """Inventories as they are given to ``--inventory``: what is not the default."""
    found = {}
    for name, one in inventories.items():
        numbers = {
            'reserved': one.reserved,
            'min_unit': one.min_unit,
            'max_unit': one.max_unit,
            'step_size': one.step_size,
            'allocation_ratio': f'{one.allocation_ratio:g}',
        }
        rest = (f',{key}={value}' for key, value in numbers.items() if value != _DEFAULTS[key])
        found[name] = f'{one.total}{"".join(rest)}'
    return found


_DEFAULTS = {
    **{'reserved': 0, 'min_unit': 1, 'max_unit': INT_MAX, 'step_size': 1},
    'allocation_ratio': '1',
}


def _place(provider: Mapping[str, Any]) -> Described:
    return {'name': provider['name'], 'parent': provider['parent_provider_uuid'] or 'none'}


def _shares(allocations: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    return {uuid: one['resources'] for uuid, one in allocations.items()}


def _by_provider(shares: Mapping[str, Mapping[str, int]]) -> Described:
    return {f'{u}:{name}': str(amount) for u, one in shares.items() for name, amount in one.items()}


_NAME = '([^/]+)'
#: Method and path of a write -> how it is judged.
_WRITES: tuple[tuple[str, re.Pattern[str], Callable[..., dict[str, Any]]], ...] = tuple(
    (method, re.compile(path), judge)
    for method, path, judge in (
        ('PUT', f'/resource_classes/{_NAME}', Trial.ensure_class),
        ('DELETE', f'/resource_classes/{_NAME}', Trial.delete_class),
        ('PUT', f'/traits/{_NAME}', Trial.ensure_trait),
        ('DELETE', f'/traits/{_NAME}', Trial.delete_trait),
        ('POST', _PROVIDERS, Trial.create_provider),
        ('PUT', f'{_PROVIDERS}/{_NAME}', Trial.update_provider),
        ('DELETE', f'{_PROVIDERS}/{_NAME}', Trial.delete_provider),
        ('PUT', f'{_PROVIDERS}/{_NAME}/inventories', Trial.set_inventories),
        ('PUT', f'{_PROVIDERS}/{_NAME}/traits', Trial.set_traits),
        ('PUT', f'{_PROVIDERS}/{_NAME}/aggregates', Trial.set_aggregates),
        ('PUT', f'/allocations/{_NAME}', Trial.set_allocations),
        ('DELETE', f'/allocations/{_NAME}', Trial.delete_allocations),
    )
)
