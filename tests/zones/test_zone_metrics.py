# SPDX-License-Identifier: Apache-2.0
"""What is counted of zones below."""

from gantt.core.messages.request import CancelClaims
from gantt.core.records.decision import Outcome
from tests.world import a_request


def test_calls_silent_zones_and_what_they_were_not_told_are_counted(zone):
    east, cloud, other = zone('east').hosts(2), zone('cloud'), zone('other')
    top = zone('top').above(east, cloud, other)
    metrics, follower = top.metrics, top.over_zones.follower
    follower.stop(5.0)

    def calls(of, call, outcome):
        labels = {'zone': of, 'call': call, 'outcome': outcome}
        return metrics.value('gantt_zone_call_duration_seconds', **labels)

    def zones():
        return [
            metrics.value('gantt_zones', state=state)
            for state in ('responding', 'unresponsive', 'disabled')
        ]

    top.put('/v1/zones/other', {'enabled': False})
    top.zones.directory.refresh()
    request = a_request()
    assert top.select(request).outcome is Outcome.PLACED
    assert calls('east', 'evaluate', 'answered') == calls('east', 'allocate', 'answered') == 1
    assert calls('cloud', 'evaluate', 'answered') == 1
    assert calls('other', 'evaluate', 'answered') == 0
    follower.step()
    assert zones() == [2, 0, 1]
    cloud.cut()
    east.cut()
    top.scheduler.cancel(CancelClaims(request_id=request.request_id))
    follower.step()
    assert zones() == [0, 2, 1]
    assert metrics.value('gantt_zone_releases_pending') == 1
    # As it was cancelled; it is tried again after a pause.
    assert calls('east', 'release', 'unresponsive') == 1
    assert calls('cloud', 'changes', 'unresponsive') == 1
    other.put('/v1/parents/top', {'enabled': False})
    follower.step()
    assert calls('other', 'changes', 'refused') == 1
