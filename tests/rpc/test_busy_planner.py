# SPDX-License-Identifier: Apache-2.0
"""Who plans groups has as many to plan as it takes: that is said at once, and nobody else waits."""

import uuid

import pytest

from gantt import exceptions
from gantt.core.messages.request import RequestSpec
from gantt.groups.client import PlannerClient
from tests.planner import a_plan_request
from tests.rpc.planning_bus import PlanningBus
from tests.rpc.test_whole_service import HOSTS


def test_a_full_queue_is_an_error_at_once_and_schedulers_place_all_the_same():
    served = PlanningBus(runs=False, queue_limit=1)
    try:
        calls = PlannerClient(served.carrier())
        with pytest.raises(exceptions.Busy, match='being planned'):
            calls.place_group(a_plan_request(budget_ms=300))
        with pytest.raises(exceptions.Busy, match='1 groups wait to be planned'):
            calls.place_group(a_plan_request(budget_ms=300))
        answer = served.scheduler().select_destinations(
            spec=RequestSpec(resources={'VCPU': 1}), consumers=[str(uuid.uuid4())]
        )
        assert answer.selections[0][0].host in HOSTS
    finally:
        served.close()
