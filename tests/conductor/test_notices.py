# SPDX-License-Identifier: Apache-2.0
"""Notifications of ``select_destinations``: the same as Nova makes of the same request."""

import uuid

import pytest

from gantt.nova.wire import notifier

pytestmark = pytest.mark.rabbit

CAPTURES = [
    'boot',
    'boot-multi3',
    'boot-anti-affinity-third',
    'boot-az-host',
    'boot-host-2.74',
    'live-migrate',
    'resize',
    'unshelve',
]
#: What the unversioned form says of objects by accident.
INSIDE = ('pci_requests', 'numa_topology')


@pytest.mark.parametrize('capture', CAPTURES)
def test_both_forms_are_those_of_nova(conductor, capture):
    notices = conductor.notices(capture, [str(uuid.uuid4())], cells=1)
    older, newer = notices['sent']
    assert notifier.versioned(notices['spec']) == newer['payload']
    ours, theirs = notifier.unversioned(notices['spec']), older['payload']
    for payload in (ours, theirs):
        for name in INSIDE:
            payload['request_spec']['instance_properties'].pop(name)
    assert ours == theirs
    assert older['event_type'] == newer['event_type'] == notifier.START
    assert (older['publisher_id'], newer['publisher_id']) == (
        'scheduler.scheduler-1',
        'nova-scheduler:scheduler-1',
    )
