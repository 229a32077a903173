# SPDX-License-Identifier: Apache-2.0
"""Delegation of a request to a zone of another owner: the fields that placing it needs.

Fields that are not on the list stay here, a field that is added tomorrow too: the owner of the
guest, this zone's names of hosts and aggregates, its callers' names of their own things.  Where
such a field chooses the place, no host of that zone can be meant.
"""

from typing import Any

import msgspec

from gantt.core.messages.keys import known_keys
from gantt.core.messages.keys.known_keys import KeyKind
from gantt.core.messages.request import (
    Flavor,
    GroupRef,
    Image,
    RequestSpec,
    SelectDestinations,
)
from gantt.zones.model.messages import ZoneRecord

#: Fields of a spec that go down, and of its group.
SENT_SPEC_FIELDS = (
    *('resources', 'kind', 'max_resources', 'consumer_type', 'purpose', 'availability_zone'),
    *('required_traits', 'forbidden_traits', 'any_traits', 'same_host', 'different_host'),
    *('volume_backed', 'devices', 'networks', 'tree'),
)
SENT_GROUP_FIELDS = ('uuid', 'policy', 'max_per_host', 'member', 'policies')
#: Fields by which hosts of this zone are chosen.
LOCAL_HOST_FIELDS = ('force_hosts', 'force_nodes', 'destination', 'member_of')


def names_local_hosts(request: SelectDestinations) -> bool:
    """Return whether a request is for hosts that only this zone can mean."""
    return any(getattr(request.spec, name) for name in LOCAL_HOST_FIELDS)


def request_for_zone(zone: ZoneRecord, request: SelectDestinations) -> SelectDestinations:
    """Return a request as a child zone gets it: unchanged where that has the same owner."""
    if zone.trusted:
        return request
    spec, group = request.spec, request.spec.group
    flavor, image = spec.flavor.extra_specs, spec.image.properties
    below = RequestSpec(
        **_fields_of(spec, SENT_SPEC_FIELDS),
        group=None if group is None else GroupRef(**_fields_of(group, SENT_GROUP_FIELDS)),
        flavor=Flavor(
            extra_specs={key: text for key, text in flavor.items() if _is_placement_spec(key)}
        ),
        image=Image(
            properties={
                key: text for key, text in image.items() if _decides_placement(KeyKind.IMAGE, key)
            },
            disk_format=spec.image.disk_format,
        ),
        hints={
            key: text for key, text in spec.hints.items() if _decides_placement(KeyKind.HINT, key)
        },
    )
    return msgspec.structs.replace(request, spec=below, origin=None)


def _fields_of(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _decides_placement(of: KeyKind, key: str) -> bool:
    known_key = known_keys.known_key(of, key)
    return known_key is not None and known_key.places


def _is_placement_spec(key: str) -> bool:
    """Return whether an extra spec chooses hosts; one without a scope is a capability of them."""
    return _decides_placement(KeyKind.FLAVOR, key) or ':' not in key
