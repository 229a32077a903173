# SPDX-License-Identifier: Apache-2.0
"""Device aliases: the names that ``pci_passthrough:alias`` may use."""

from typing import Annotated

import msgspec

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.base import Message, Name, Text
from gantt.core.messages.keys.topology_settings import (
    FALSE,
    TRUE,
    TopologySettings,
    positive,
    refuse,
)
from gantt.core.messages.request import DeviceRequest, RequestSpec
from gantt.core.messages.topology_request import Affinity, DeviceSpec, DeviceWish

KEY = 'pci_passthrough:alias'
FIELD = f'request.spec.flavor.extra_specs.{KEY}'
#: Upper bounds of names in one request, and of devices under one name.
NAMES_MAX, COUNT_MAX = 64, 1024
_TYPES = ('type-PCI', 'type-PF', 'type-VF', 'vdpa')


class Alias(Message, frozen=True, kw_only=True):
    """An object of the option; of several with one name any is suitable.

    :ivar numa_policy: the same in all of one name
    :ivar live_migratable: yes or no as text; the tag of a pool is ``true`` or ``false``
    """

    name: Name
    vendor_id: Text = ''
    product_id: Text = ''
    device_type: Text = ''
    numa_policy: Affinity | None = None
    resource_class: Text = ''
    traits: Text = ''
    live_migratable: Text | None = None
    tags: Annotated[dict[Name, Text], msgspec.Meta(max_length=64)] = {}

    @property
    def spec(self) -> DeviceSpec:
        """Required properties of a device."""
        tags = {key.lower(): value.lower() for key, value in self.tags.items()}
        for key in ('resource_class', 'traits'):
            if getattr(self, key):
                tags[key] = getattr(self, key).lower()
        if self.live_migratable is not None:
            is_migratable = self.live_migratable.strip().lower() in TRUE
            tags['live_migratable'] = 'true' if is_migratable else 'false'
        return DeviceSpec(
            vendor_id=self.vendor_id.lower(),
            product_id=self.product_id.lower(),
            dev_type=self.device_type.lower(),
            tags=tuple(sorted(tags.items())),
        )


class Aliases:
    """Known aliases and their device specs."""

    def __init__(self, found: list[Alias], option: str) -> None:
        self._specs: dict[str, tuple[DeviceSpec, ...]] = {}
        self._policies: dict[str, Affinity] = {}
        for alias in found:
            if alias.device_type and alias.device_type not in _TYPES:
                raise _wrong(
                    option, f'{alias.name}: device_type {alias.device_type!r} is none of {_TYPES}'
                )
            migratable = alias.live_migratable
            if migratable is not None and migratable.strip().lower() not in (*TRUE, *FALSE):
                raise _wrong(
                    option, f'{alias.name}: live_migratable {migratable!r} is neither yes nor no'
                )
            policy = alias.numa_policy or Affinity.LEGACY
            if self._policies.setdefault(alias.name, policy) is not policy:
                raise _wrong(option, f'{alias.name}: two numa_policy for one name')
            self._specs[alias.name] = (*self._specs.get(alias.name, ()), alias.spec)

    def wishes(self, spec: RequestSpec) -> tuple[DeviceWish, ...]:
        """Return the devices of a request.

        :raises InvalidMessage: an undeclared name, or a wrong count
        """
        named = self._named(spec)
        named_aliases = {wish.alias for wish in named}
        described = [
            _wish(device)
            for device in spec.devices
            if not device.alias or device.alias not in named_aliases
        ]
        return (*named, *described)

    def _named(self, spec: RequestSpec) -> list[DeviceWish]:
        """Return the devices that the flavor names, except aliases only the request describes."""
        text = spec.flavor.extra_specs.get(KEY, '')
        parts = [part.strip() for part in text.split(',') if part.strip()]
        if not parts:
            return []
        policy = TopologySettings(spec.flavor.extra_specs, spec.image.properties).same(
            'pci_numa_affinity_policy', Affinity
        )
        if len(parts) > NAMES_MAX:
            refuse(FIELD, f'expected at most {NAMES_MAX} names, got {len(parts)}')
        described = {device.alias for device in spec.devices}
        device_wishes = []
        for part in parts:
            name, _, count = (piece.strip() for piece in part.partition(':'))
            if name not in self._specs:
                if name in described:
                    continue
                names = ', '.join(sorted(self._specs)) or 'none'
                refuse(FIELD, f'no device is called {name!r} here; known: {names}')
            device_wishes.append(
                DeviceWish(
                    alias=name,
                    count=positive(count, FIELD, COUNT_MAX) if count else 1,
                    specs=self._specs[name],
                    affinity=Affinity(policy) if policy else self._policies[name],
                )
            )
        return device_wishes


def _wish(one: DeviceRequest) -> DeviceWish:
    specs = tuple(
        DeviceSpec(
            vendor_id=kind.vendor_id.lower(),
            product_id=kind.product_id.lower(),
            dev_type=kind.device_type.lower(),
            tags=tuple(sorted((k.lower(), v and v.lower()) for k, v in kind.tags.items())),
        )
        for kind in one.any_of
    )
    return DeviceWish(one.alias or one.port, one.count, specs, one.affinity)


def read_option(text: str, option: str) -> Aliases:
    """Return the aliases of an option: a JSON list of objects, or one object.

    :raises Misconfigured: names the problem
    """
    if not text.strip():
        return Aliases([], option)
    try:
        body = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as e:
        raise _wrong(option, f'not valid JSON: {e}') from None
    try:
        aliases = base.decode(
            [body] if isinstance(body, dict) else body, list[Alias], inside=option
        )
    except exceptions.InvalidMessage as e:
        raise _wrong(option, str(e)) from None
    return Aliases(aliases, option)


def _wrong(option: str, problem: str) -> exceptions.Misconfigured:
    return exceptions.Misconfigured(
        option=option,
        problem=problem,
        fix='Expected e.g. [{"name": "gpu", "vendor_id": "10de", "product_id": "1eb8"}]',
    )
