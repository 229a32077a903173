# SPDX-License-Identifier: Apache-2.0
"""What Nova's scheduler would ask Placement for: amounts, traits and aggregates."""

import sys
import types
from typing import Any

from nova import objects

# Two of the request filters ask Neutron, and are not used here: its client need not be installed.
sys.modules.setdefault('nova.network.neutron', types.ModuleType('neutron'))

from nova.scheduler import request_filter, utils

#: Those of Nova's request filters that need no other service.
_FILTERS = (
    request_filter.require_tenant_aggregate,
    request_filter.map_az_to_placement_aggregate,
    request_filter.require_image_type_support,
    request_filter.compute_status_filter,
    request_filter.isolate_aggregates,
    request_filter.transform_image_metadata,
    request_filter.accelerators_filter,
    request_filter.packed_virtqueue_filter,
    request_filter.ephemeral_encryption_filter,
    request_filter.virtio_sound_filter,
    request_filter.tpm_secret_security_filter,
)
_known: list[objects.Aggregate] = []


def know_aggregates() -> None:
    """Aggregates are looked up among those of the cloud, and not in a database."""
    objects.AggregateList.get_by_metadata = staticmethod(_by_metadata)
    objects.AggregateList.get_non_matching_by_metadata_keys = staticmethod(_kept)


def _by_metadata(context, key=None, value=None):
    """As the database answers: of each aggregate found, the rows that were looked for."""
    assert key is not None or value is not None
    return _with(lambda k, v: (key is None or k == key) and (value is None or v == value))


def _kept(context, ignored_keys, key_prefix, value):
    return _with(lambda k, v: k.startswith(key_prefix) and v == value and k not in ignored_keys)


def _with(is_one):
    aggregates = []
    for aggregate in _known:
        metadata = {k: v for k, v in aggregate.metadata.items() if is_one(k, v)}
        if metadata:
            aggregates.append(objects.Aggregate(uuid=aggregate.uuid, metadata=metadata))
    return aggregates


def asked(spec: objects.RequestSpec, groups: list[objects.Aggregate]) -> dict[str, Any]:
    """The question; ``spec`` is changed on the way."""
    _known[:] = groups
    try:
        for set_on_request in _FILTERS:
            set_on_request(None, spec)
        request = utils.ResourceRequest.from_request_spec(spec)
    except Exception as e:
        return {'raises': f'{type(e).__name__}: {e}'}
    group = request.get_request_group(None)
    destination = spec.requested_destination
    return {
        'resources': dict(group.resources),
        'required': sorted(group.required_traits | request._root_required),
        'forbidden': sorted(group.forbidden_traits | request._root_forbidden),
        'aggregates': list(destination.aggregates or ()) if _has(destination, 'aggregates') else [],
        'outside': sorted(destination.forbidden_aggregates or ())
        if _has(destination, 'forbidden_aggregates')
        else [],
    }


def _has(destination: objects.Destination | None, name: str) -> bool:
    return destination is not None and name in destination
