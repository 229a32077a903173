# SPDX-License-Identifier: Apache-2.0
"""Nova's RequestSpec from plain data, made of flavor and image as its API makes it."""

from typing import Any

import world
from nova import objects
from nova.pci import request as pci_request
from nova.virt import hardware

_CELL = '11111111-2222-4333-8444-%012d'


def request_spec(case: dict[str, Any]) -> objects.RequestSpec:
    """What the conductor would send; whatever it raises, the API would have refused."""
    flavor = _flavor(case['flavor'])
    image = objects.ImageMeta.from_dict(case['image']) if case['image'] is not None else None
    spec = objects.RequestSpec(
        image=image,
        flavor=flavor,
        project_id=case['project_id'],
        user_id=case['user_id'],
        availability_zone=case.get('availability_zone'),
        num_instances=1,
        ignore_hosts=case.get('ignore_hosts') or None,
        force_hosts=case.get('force_hosts') or None,
        force_nodes=case.get('force_nodes') or None,
        requested_destination=_destination(case['destination']),
        retry=None,
        limits=objects.SchedulerLimits(),
        instance_group=_group(case['group'], _new(case)),
        scheduler_hints=case['hints'],
        instance_uuid=case['consumer'],
        is_bfv=case['is_bfv'],
        requested_resources=[],
    )
    image_meta = image if image is not None else objects.ImageMeta.from_dict({})
    spec.numa_topology = hardware.numa_get_constraints(flavor, image_meta)
    spec.pci_requests = _pci(flavor, image_meta, case)
    if case['network'] is not None:
        spec.network_metadata = world.network_metadata(case['network'])
    return spec


def _flavor(case: dict[str, Any]) -> objects.Flavor:
    return objects.Flavor(
        id=1,
        memory_mb=case['memory_mb'],
        vcpus=case['vcpus'],
        root_gb=case['root_gb'],
        ephemeral_gb=case['ephemeral_gb'],
        swap=case['swap'],
        name=case['name'],
        flavorid=case['name'],
        rxtx_factor=1.0,
        vcpu_weight=0,
        disabled=False,
        is_public=True,
        extra_specs=case['extra_specs'],
    )


def _destination(case: dict[str, Any] | None) -> objects.Destination | None:
    if case is None:
        return None
    cell = objects.CellMapping(uuid=case['cell']) if case['cell'] else None
    where = {name: case[name] for name in ('host', 'node')} if case.get('host') else {}
    return objects.Destination(
        cell=cell, allow_cross_cell_move=case['allow_cross_cell_move'], **where
    )


def _new(case: dict[str, Any]) -> list[str]:
    """Those that are placed together: Nova has them among the members of the group."""
    several = case.get('several')
    return [case['consumer'], *several] if several else []


def _group(case: dict[str, Any] | None, new: list[str]) -> objects.InstanceGroup | None:
    """:param new: members that are placed together with this one"""
    if case is None:
        return None
    # Old messages have the policy alone.
    old = {} if case.get('policies', ()) is None else {'policies': [case['policy']]}
    return objects.InstanceGroup(
        **old,
        uuid=case['uuid'],
        name=case['uuid'],
        policy=case['policy'],
        _rules=case['rules'],
        members=[*case['members'], *new],
        hosts=list(case['hosts']),
    )


def _pci(
    flavor: objects.Flavor, image: objects.ImageMeta, case: dict[str, Any]
) -> objects.InstancePCIRequests:
    """What the flavor's aliases ask for, and one request per port with a device."""
    policy = hardware.get_pci_numa_policy_constraint(flavor, image)
    requests = pci_request.get_pci_requests_from_flavor(flavor, affinity_policy=policy)
    for number, port in enumerate(case['ports']):
        requests.requests.append(
            objects.InstancePCIRequest(
                count=1,
                spec=[port],
                request_id=_CELL % number,
                requester_id=_CELL % (100 + number),
                numa_policy=case['port_policy'],
            )
        )
    requests.instance_uuid = case['consumer']
    return requests
