# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of a nova-compute that was left on a host which has an agent of its own."""

import uuid

import msgspec
import pytest

from gantt import client, exceptions
from gantt.core.messages.report import ClaimUpdate, HostReport, RegisterHost, Running
from gantt.core.messages.resource_classes import Inventory
from tests.conductor.site import CELL

pytestmark = [pytest.mark.rabbit, pytest.mark.postgresql]
HOST, OTHER = 'compute-003', 'compute-004'


def test_they_end_no_claim_and_the_source_takes_no_host(cloud, conductor):
    claims, stats = client.ClaimsClient(cloud._carrier), client.StatsClient(cloud._carrier)
    registered = claims.register_host(
        RegisterHost(name=HOST, boot_nonce='own', cell=CELL, zone='nova', reporter='host')
    )
    guest = str(uuid.uuid4())
    conductor.select('boot', [guest], alternates=True, force=HOST)
    (claim,) = cloud.claims(guest)
    claims.confirm_claims(
        ClaimUpdate(name=HOST, epoch=registered.epoch, sequence=1, claim_ids=[claim.id])
    )
    report = HostReport(
        name=HOST,
        epoch=registered.epoch,
        sequence=2,
        full=True,
        inventories={
            'VCPU': Inventory(total=64),
            'MEMORY_MB': Inventory(total=1 << 20),
            'DISK_GB': Inventory(total=4000),
        },
        running=[Running(consumer=guest, claim_id=claim.id)],
        pending=[],
    )
    assert stats.update_resource_stats(report).outcome == 'applied'
    conductor.cast('delete_instance_info', host_name=HOST, instance_uuid=guest)
    for _ in range(3):
        conductor.cast('sync_instance_info', host_name=HOST, instance_uuids=[])
    # What is said after it has been heard: so these have, too.
    marker = str(uuid.uuid4())
    for _ in range(2):
        conductor.cast('sync_instance_info', host_name=OTHER, instance_uuids=[marker])
    cloud.until(lambda: cloud.live(marker) == [(OTHER, 'confirmed')], 'the marker')
    assert cloud.live(guest) == [(HOST, 'confirmed')]
    with pytest.raises(exceptions.HostHeld, match=HOST):
        claims.register_host(RegisterHost(name=HOST, boot_nonce='source', reporter='nova'))
    again = msgspec.structs.replace(report, sequence=3)
    assert stats.update_resource_stats(again).outcome == 'applied'
