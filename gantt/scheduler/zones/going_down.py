# SPDX-License-Identifier: Apache-2.0
"""What goes down of a request to a zone of another owner: a list of what it needs to place it.

What is not on the list stays here, a field that is added tomorrow too: whose guest it is, what this
zone calls its hosts and aggregates, what its callers call their own things.  Where that is what
chooses the place, none of that zone can be meant.
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

#: Fields of a spec, and of its group.
NEEDED = (
    *('resources', 'kind', 'most', 'consumer_type', 'purpose', 'availability_zone'),
    *('required_traits', 'forbidden_traits', 'any_traits', 'same_host', 'different_host'),
    *('volume_backed', 'devices', 'networks', 'tree'),
)
OF_GROUP = ('uuid', 'policy', 'max_per_host', 'member', 'policies')
#: Fields by which hosts of this zone are chosen.
OF_OWN_HOSTS = ('force_hosts', 'force_nodes', 'destination', 'member_of')


def names_own_hosts(request: SelectDestinations) -> bool:
    """Whether it is for hosts that only this zone can mean."""
    return any(getattr(request.spec, name) for name in OF_OWN_HOSTS)


def told(zone: ZoneRecord, request: SelectDestinations) -> SelectDestinations:
    """A request as a zone hears of it: all of it, where that is of the same owner."""
    if zone.trusted:
        return request
    spec, group = request.spec, request.spec.group
    flavor, image = spec.flavor.extra_specs, spec.image.properties
    below = RequestSpec(
        **_of(spec, NEEDED),
        group=None if group is None else GroupRef(**_of(group, OF_GROUP)),
        flavor=Flavor(extra_specs={k: of for k, of in flavor.items() if _is_placing(k)}),
        image=Image(
            properties={k: of for k, of in image.items() if _is_read(KeyOf.IMAGE, k)},
            disk_format=spec.image.disk_format,
        ),
        hints={k: of for k, of in spec.hints.items() if _is_read(KeyOf.HINT, k)},
    )
    return msgspec.structs.replace(request, spec=below, origin=None)


def _of(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _is_read(of: KeyOf, key: str) -> bool:
    known = known_keys.known(of, key)
    return known is not None and known.places


def _is_placing(key: str) -> bool:
    """Whether an extra spec chooses hosts; one without a scope is a capability of them."""
    return _is_read(KeyOf.FLAVOR, key) or ':' not in key
