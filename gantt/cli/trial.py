# SPDX-License-Identifier: Apache-2.0
"""Placement's interface for a dry run: reads are passed on, writes are judged on what is read.

That interface has no dry run.  A write is judged by the same rules as in the service, on the
inventories, usages, allocations and trees as they are read now, and refused in the wording of the
interface.  Two things cannot be read there: whether a host whose node has another name than its
service reports its inventories, and the unclaimed usage of a host, where an existing allocation is
to grow.
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

#: The largest amount; the longest name of a provider, in characters.
INT_MAX = 2_147_483_647
NAME_MAX = 200
_PROVIDERS = '/resource_providers'
_GENERATION = 'resource_provider_generation'
_CLASS = re.compile('[A-Z0-9_]{1,255}')
#: Reason why allocations are refused -> the interface's sentence.
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
#: Description of an object in one line: name -> value; '': no value.
Described = Mapping[str, str]

#: Patterns of names, as refusals of the interface quote them.
_AS_CLASS, _AS_CUSTOM = r'^[A-Z0-9_]+\Z', r'^CUSTOM_[A-Z0-9_]+\Z'


class Trial(Endpoint):
    """A dry-run endpoint.  Changes of a write are not sent, but visible to its next reads.

    :param placement: the endpoint to read from
    :param own: Gantt's own interface of the same service, for data that Placement's lacks
    :ivar differences: changes that would result, each with ``+``, ``-`` or ``~`` before it
    :ivar would_change: whether there would be any
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
        """Return the answer of a read, or the expected answer of a write.

        :raises Failure: it would be refused, or cannot be read
        """
        if method == 'GET':
            written = self._written.get(path) if not query else None
            return written or self._source.call(method, path, query, body, timeout, unwell)
        encoded(body)
        for write_method, pattern, judge in _WRITES:
            match = pattern.fullmatch(path)
            if write_method == method and match is not None:
                names = [unquote(name) for name in match.groups()]
                return judge(self, *names, *([] if body is None else [body]))
        raise AssertionError(f'no rule for {method} {path}')

    # -- names --------------------------------------------------------------------------
    def ensure_class(self, name: str) -> dict[str, Any]:
        """Judge PUT of a resource class."""
        if not resource_classes.CUSTOM.match(name):
            _refuse(400, f'JSON does not validate: {name!r} does not match {_AS_CUSTOM!r}')
        self.would_change |= name not in self._classes()
        return {}

    def delete_class(self, name: str) -> dict[str, Any]:
        """Judge DELETE of a resource class."""
        problem = 'Error in delete resource class: '
        if name in resource_classes.STANDARD:
            _refuse(400, f'{problem}Cannot delete standard resource class {name}.')
        self.get(f'/resource_classes/{base.path_part(name)}')
        roll_up = self._read_own('/v1/roll-up')
        if roll_up is not None and any(
            entry['resource_class'] == name for entry in roll_up['classes']
        ):
            _refuse(
                409, f'{problem}Cannot delete resource class {name}. Class is in use in inventory.'
            )
        self.would_change = True
        return {}

    def ensure_trait(self, name: str) -> dict[str, Any]:
        """Judge PUT of a trait."""
        if not resource_classes.CUSTOM.match(name):
            _refuse(
                400,
                'The trait is invalid. A valid trait must be no longer than 255 characters, start '
                'with the prefix "CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and "_"',
            )
        self.would_change |= name not in self._traits(name)
        return {}

    def delete_trait(self, name: str) -> dict[str, Any]:
        """Judge DELETE of a trait."""
        if name in STANDARD_TRAITS:
            _refuse(400, f'Cannot delete standard trait {name}.')
        if name not in self._traits(name):
            _refuse(404, f'No such trait(s): {name}.')
        if name in self._traits(name, associated=True):
            _refuse(409, f'The trait {name} is in use by a resource provider.')
        self.would_change = True
        return {}

    def _classes(self) -> set[str]:
        return {entry['name'] for entry in self.get('/resource_classes')['resource_classes']}

    def _traits(self, *names: str, **query: Any) -> set[str]:
        """Return those of some traits that exist."""
        return set(self.get('/traits', name=f'in:{",".join(names)}', **query)['traits'])

    # -- providers ----------------------------------------------------------------------
    def create_provider(self, body: dict[str, Any]) -> dict[str, Any]:
        """Judge POST of a provider."""
        name, uuid = body['name'], body.get('uuid') or str(uuids.uuid4())
        self._check_name(name, f'Unable to create resource provider "{name}", {uuid}: ')
        for key, value in (('uuid', uuid), ('name', name)):
            self._must_be_free(key, value, f'{key}: {value}')
        provider = {
            'name': name,
            'uuid': uuid,
            'parent_provider_uuid': body.get('parent_provider_uuid'),
        }
        self._written[_path(uuid)] = provider
        for key, nothing in (
            ('inventories', {}),
            ('usages', {}),
            ('traits', []),
            ('aggregates', []),
        ):
            self._written[_path(uuid, key)] = {_GENERATION: 0, key: nothing}
        self.would_change = True
        return provider

    def update_provider(self, uuid: str, body: dict[str, Any]) -> dict[str, Any]:
        """Judge PUT of a provider: its name and its parent."""
        stored = self._provider(uuid)
        problem = f'Unable to save resource provider {uuid}: '
        self._check_name(body['name'], problem)
        parent = body['parent_provider_uuid']
        if parent != stored['parent_provider_uuid']:
            host = self._host(stored)
            if host is not None:
                _refuse_as(rules.is_a_host(uuid, host['host']['name']))
            if parent is not None and uuid in self._above(parent):
                _refuse(
                    400,
                    f'{problem}Object action update failed because: creating loop in the provider '
                    'tree is not allowed.',
                )
        if body['name'] != stored['name']:
            self._must_be_ours(stored)
            self._must_be_free('name', body['name'], body['name'])
        self._differ(_place(stored), _place(body))
        return body

    def delete_provider(self, uuid: str) -> dict[str, Any]:
        """Judge DELETE of a provider."""
        provider = self._provider(uuid)
        host = self._host(provider)
        if host is not None:
            _refuse_as(rules.is_a_host(uuid, host['host']['name']))
        if any(member['parent_provider_uuid'] == uuid for member in self._tree(uuid)):
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
        provider: dict[str, Any] = self.get(_path(uuid))
        return provider

    def _tree(self, uuid: str) -> list[dict[str, Any]]:
        answer = self.get(_PROVIDERS, in_tree=uuid)
        return list(answer['resource_providers'])

    def _above(self, uuid: str) -> set[str]:
        """Return the uuids of a provider and its ancestors."""
        parents = {member['uuid']: member['parent_provider_uuid'] for member in self._tree(uuid)}
        ancestors: set[str] = set()
        while uuid is not None and uuid not in ancestors:
            ancestors.add(uuid)
            uuid = parents[uuid]
        return ancestors

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
        """Return the host that a provider is; None: it is none, or may not be read."""
        if provider['parent_provider_uuid'] is not None or _path(provider['uuid']) in self._written:
            return None
        host = self._read_own(f'/v1/hosts/{base.path_part(provider["name"])}')
        return host if host is not None and host['host']['uuid'] == provider['uuid'] else None

    def _reporting_host(self, provider: Mapping[str, Any]) -> str:
        """Return the host whose reports set the inventories; '': none, or it may not be read."""
        host = self._host(provider)
        return host['host']['name'] if host and host['inventories_by'] == 'reports' else ''

    def _must_be_ours(self, provider: Mapping[str, Any]) -> None:
        """Check that reports of a host do not own the provider.  :raises Failure: they do"""
        host = self._reporting_host(provider)
        if host:
            _refuse_as(rules.reports_it_itself(provider['uuid'], host))

    def _read_own(self, path: str) -> dict[str, Any] | None:
        """Read Gantt's own interface; None: not found, or not allowed for this caller."""
        try:
            answer: dict[str, Any] = self._own.get(path)
        except Failure as e:
            if e.error.get('status') in (403, 404):
                return None
            raise
        return answer

    # -- what a provider has --------------------------------------------------------------
    def set_inventories(self, uuid: str, body: dict[str, Any]) -> dict[str, Any]:
        """Judge PUT of all inventories of a provider."""
        self._must_be_ours(self._provider(uuid))
        inventories = {name: _inventory(numbers) for name, numbers in body['inventories'].items()}
        for name, inventory in inventories.items():
            if int((inventory.total - inventory.reserved) * inventory.allocation_ratio) < 0:
                _refuse(
                    400,
                    f'Unable to update inventory for resource provider {uuid}: Invalid inventory '
                    f"for '{name}' on resource provider '{uuid}'. The reserved value is greater "
                    'than total.',
                )
        unknown = self._unknown_classes(inventories)
        if unknown:
            _refuse(
                400,
                f'Unknown resource class in inventory for resource provider {uuid}: {unknown}',
            )
        try:
            rules.check_inventories(inventories)
            rules.check_used(uuid, self.get(_path(uuid, 'usages'))['usages'], inventories)
        except exceptions.InUse as e:
            classes_in_use: Any = e.kwargs['classes']
            core = [name for name in CORE_CLASSES if name in classes_in_use]
            names = ', '.join([*core, *(name for name in classes_in_use if name not in core)])
            _refuse(
                409,
                f"update conflict: Inventory for '{names}' on resource provider '{uuid}' in use.",
                'placement.inventory.inuse',
            )
        except exceptions.GanttError as e:
            _refuse_as(e)
        path = _path(uuid, 'inventories')
        before = {
            name: _inventory(numbers) for name, numbers in self.get(path)['inventories'].items()
        }
        self._differ(_amounts(before), _amounts(inventories))
        self._written[path] = body
        return body

    def set_traits(self, uuid: str, body: dict[str, Any]) -> dict[str, Any]:
        """Judge PUT of all traits of a provider."""
        self._must_be_ours(self._provider(uuid))
        custom = sorted(set(body['traits']) - set(STANDARD_TRAITS))
        missing = sorted(set(custom) - self._traits(*custom)) if custom else []
        if missing:
            _refuse(400, f'No such trait {", ".join(missing)}')
        return self._replace(uuid, 'traits', body)

    def set_aggregates(self, uuid: str, body: dict[str, Any]) -> dict[str, Any]:
        """Judge PUT of all aggregates of a provider."""
        self._must_be_ours(self._provider(uuid))
        return self._replace(uuid, 'aggregates', body)

    def _replace(self, uuid: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
        before, path = self.get(_path(uuid, key))[key], _path(uuid, key)
        noun = key.removesuffix('s')
        self._differ(*({f'{noun} {name}': '' for name in names} for names in (before, body[key])))
        self._written[path] = body
        return body

    def _unknown_classes(self, names: Mapping[str, Any]) -> str:
        """Return the message about unknown resource classes; '': all exist."""
        missing = sorted(names.keys() - self._classes())
        return f'No such resource class {", ".join(missing)}.' if missing else ''

    # -- allocations ----------------------------------------------------------------------
    def set_allocations(self, consumer: str, body: dict[str, Any]) -> dict[str, Any]:
        """Judge PUT of the allocations of a consumer."""
        if not _CLASS.fullmatch(body['consumer_type']):
            _refuse(
                400,
                f'JSON does not validate: {body["consumer_type"]!r} does not match {_AS_CLASS!r}',
            )
        before = _shares(self.get(f'/allocations/{consumer}')['allocations'])
        requested = _shares(body['allocations'])
        refusal = self._why_not(before, requested)
        if refusal is not None:
            unknown = self._unknown_classes(
                {name: 0 for shares in requested.values() for name in shares}
            )
            if unknown:
                _refuse(400, f'Unable to allocate inventory for consumer {consumer}: {unknown}')
            _refuse(409, f'Unable to allocate inventory: {refusal}')
        self._differ(*map(_by_provider, (before, requested)))
        return {}

    def _why_not(
        self, before: Mapping[str, dict[str, int]], wanted: Mapping[str, dict[str, int]]
    ) -> str | None:
        ids = {uuid: number for number, uuid in enumerate(sorted(before.keys() | wanted.keys()))}
        states = {ids[uuid]: self._state(uuid) for uuid in wanted}
        old, new = (
            {ids[uuid]: shares for uuid, shares in allocations.items()}
            for allocations in (before, wanted)
        )
        refusal = why_not_written(states, [old], [new])
        if refusal is not None:
            uuid = next(uuid for uuid, number in ids.items() if number == refusal.provider_id)
            return _NOT_ALLOCATED[refusal.why].format(
                classes=', '.join(refusal.names), provider=uuid
            )
        for uuid, amounts in wanted.items():
            for name, amount in amounts.items():
                grows = amount - before.get(uuid, {}).get(name, 0)
                if grows > 0 and not self._has_room(uuid, states[ids[uuid]], name, grows):
                    return _NOT_ALLOCATED['capacity'].format(classes=name, provider=uuid)
        return None

    def _state(self, uuid: str) -> ProviderState:
        answer = self.get(_path(uuid, 'inventories'))
        inventories = {
            name: _inventory(inventory) for name, inventory in answer['inventories'].items()
        }
        if self._reporting_host(self._provider(uuid)):
            # A report without max_unit means the whole amount; it is shown as unlimited.
            for name, inventory in inventories.items():
                if inventory.max_unit == INT_MAX:
                    inventories[name] = replace(inventory, max_unit=None)
        used = self.get(_path(uuid, 'usages'))['usages']
        return ProviderState(
            name=uuid,
            generation=answer[_GENERATION],
            inventories=inventories,
            room={
                name: inventory.cap - used.get(name, 0) for name, inventory in inventories.items()
            },
        )

    def _has_room(self, uuid: str, state: ProviderState, name: str, grows: int) -> bool:
        """Return whether so much more is free, unclaimed usage included where it is readable."""
        if state.inventories[name].unit_problem(grows) is not None:
            return True
        answer = self.get(_PROVIDERS, uuid=uuid, resources=f'{name}:{grows}')
        return bool(answer['resource_providers'])

    def delete_allocations(self, consumer: str) -> dict[str, Any]:
        """Judge DELETE of the allocations of a consumer."""
        before = _shares(self.get(f'/allocations/{consumer}')['allocations'])
        if not before:
            _refuse(404, f"No allocations for consumer '{consumer}'")
        self._differ(_by_provider(before), {})
        return {}

    # -- differences ------------------------------------------------------------------------
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
    """Return an inventory of a body.  :raises Failure: a number exceeds the maximum"""
    for name, value in numbers.items():
        if name != 'allocation_ratio' and value > INT_MAX:
            _refuse(
                400, f'JSON does not validate: {value} is greater than the maximum of {INT_MAX}'
            )
    return Inventory(**{'max_unit': INT_MAX, **numbers})


def _amounts(inventories: Mapping[str, Inventory]) -> Described:
    """Return inventories in the form of ``--inventory``, without default numbers."""
    described = {}
    for name, inventory in inventories.items():
        numbers = {
            'reserved': inventory.reserved,
            'min_unit': inventory.min_unit,
            'max_unit': inventory.max_unit,
            'step_size': inventory.step_size,
            'allocation_ratio': f'{inventory.allocation_ratio:g}',
        }
        rest = (f',{key}={value}' for key, value in numbers.items() if value != _DEFAULTS[key])
        described[name] = f'{inventory.total}{"".join(rest)}'
    return described


_DEFAULTS = {
    **{'reserved': 0, 'min_unit': 1, 'max_unit': INT_MAX, 'step_size': 1},
    'allocation_ratio': '1',
}


def _place(provider: Mapping[str, Any]) -> Described:
    return {'name': provider['name'], 'parent': provider['parent_provider_uuid'] or 'none'}


def _shares(allocations: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    return {uuid: allocation['resources'] for uuid, allocation in allocations.items()}


def _by_provider(shares: Mapping[str, Mapping[str, int]]) -> Described:
    return {
        f'{uuid}:{name}': str(amount)
        for uuid, amounts in shares.items()
        for name, amount in amounts.items()
    }


_NAME = '([^/]+)'
#: Method and path of a write, and the method that judges it.
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
