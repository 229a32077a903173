# SPDX-License-Identifier: Apache-2.0
"""A decision comes back from its bytes as it was, however little of it is kept."""

import pathlib
import random

import msgspec
import pytest

from gantt import plugin_loader
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records import decision_codec
from gantt.core.records.decision import Decision
from gantt.core.table.host_table import HostTable
from tests.core.builders import NOW, a_change, a_host, an_id, decide
from tests.properties.clouds import a_cloud, a_random_request, a_table

DATA = pathlib.Path(__file__).parents[1] / 'data'
PIPELINE = plugin_loader.load_pipeline()


def back(decision: Decision, request: SelectDestinations) -> Decision:
    stored = decision_codec.unpack(decision_codec.pack(decision, request))
    assert stored.request == request
    return stored.decision


@pytest.mark.parametrize('seed', range(60), ids=str)
def test_any_decision_comes_back(seed):
    rng = random.Random(seed)
    table = a_table(a_cloud(rng))
    for number in range(3):
        request = a_random_request(rng, number)
        decision = decide(table, request, PIPELINE)
        assert back(decision, request) == msgspec.structs.replace(decision, provider_ids=b'')


def many(
    hosts: int, members: int, pipeline: Pipeline = PIPELINE
) -> tuple[Decision, SelectDestinations]:
    table = HostTable.build([a_change(a_host(n)) for n in range(1, hosts + 1)], [], {}, (), NOW)
    request = SelectDestinations(
        request_id=an_id(1),
        spec=RequestSpec(resources={'VCPU': 1, 'MEMORY_MB': 512}),
        consumers=[an_id(i, 7) for i in range(members)],
    )
    return decide(table, request, pipeline), request


def test_members_after_the_first_cost_no_byte_per_host():
    single, fifty = (len(decision_codec.pack(*many(2000, members))) for members in (1, 50))
    assert fifty < single + 49 * 2000
