# SPDX-License-Identifier: Apache-2.0
"""Delegation of a request to a zone of another owner: the fields that placing it needs.

Fields that are not on the list stay here, a field that is added tomorrow too: the owner of the
guest, this zone's names of hosts and aggregates, its callers' names of their own things.  Where
such a field chooses the place, no host of that zone can be meant.
"""

from typing import Any

import msgspec

from gantt.core.messages.keys import known_keys
from gantt.core.messages.keys.known_keys import KeyOf
from gantt.core.messages.request import (
    Flavor,
    GroupRef,
    Image,
    RequestSpec,
    SelectDestinations,
)
from gantt.core.zones.messages import ZoneRecord

#: Fields of a spec that go down, and of its group.
NEEDED = (
    *('resources', 'kind', 'max_resources', 'consumer_type', 'purpose', 'availability_zone'),
    *('required_traits', 'forbidden_traits', 'any_traits', 'same_host', 'different_host'),
    *('volume_backed', 'devices', 'networks', 'tree'),
)
OF_GROUP = ('uuid', 'policy', 'max_per_host', 'member', 'policies')
#: Fields by which hosts of this zone are chosen.
OF_LOCAL_HOSTS = ('force_hosts', 'force_nodes', 'destination', 'member_of')


def names_local_hosts(request: SelectDestinations) -> bool:
    """Return whether a request is for hosts that only this zone can mean."""
    return any(getattr(request.spec, name) for name in OF_LOCAL_HOSTS)


def for_zone(zone: ZoneRecord, request: SelectDestinations) -> SelectDestinations:
    """Return a request as a child zone gets it: unchanged where that has the same owner."""
    if zone.trusted:
        return request
    spec, group = request.spec, request.spec.group
    flavor, image = spec.flavor.extra_specs, spec.image.properties
    below = RequestSpec(
        **_of(spec, NEEDED),
        group=None if group is None else GroupRef(**_of(group, OF_GROUP)),
        flavor=Flavor(extra_specs={key: text for key, text in flavor.items() if _is_placing(key)}),
        image=Image(
            properties={key: text for key, text in image.items() if _is_read(KeyOf.IMAGE, key)},
            disk_format=spec.image.disk_format,
        ),
        hints={key: text for key, text in spec.hints.items() if _is_read(KeyOf.HINT, key)},
    )
    return msgspec.structs.replace(request, spec=below, origin=None)


def _of(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _is_read(of: KeyOf, key: str) -> bool:
    known_key = known_keys.known(of, key)
    return known_key is not None and known_key.places


def _is_placing(key: str) -> bool:
    """Return whether an extra spec chooses hosts; one without a scope is a capability of them."""
    return _is_read(KeyOf.FLAVOR, key) or ':' not in key
