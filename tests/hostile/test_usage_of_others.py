# SPDX-License-Identifier: Apache-2.0
"""What a project sees of what is there: its own, and nothing of others."""

import pathlib
from collections.abc import Iterator

import pytest

from gantt.core.messages.request import RequestSpec, SelectDestinations
from tests.http.cloud import Cloud, a_cloud
from tests.http.identity import Keystone
from tests.http.site import fixed

OPERATORS = ('admin', 'system reader')
MEMBERS = ('reader', 'member', 'manager')


@pytest.fixture
def cloud(tmp_path: pathlib.Path) -> Iterator[Cloud]:
    keystone = Keystone()
    new_cloud = a_cloud(keystone, tmp_path)
    with new_cloud.client:
        yield new_cloud
    keystone.stop()


def _place(cloud: Cloud, number: int, project: str, count: int) -> None:
    cloud.site.client.select_destinations(
        SelectDestinations(
            request_id=fixed(number),
            spec=RequestSpec(resources={'VCPU': 1}, project_id=project),
            consumers=[fixed(number * 100 + i) for i in range(count)],
        )
    )


@pytest.mark.finding('N8', 'usage of one project is told to it and to operators')
def test_usage_is_of_the_own_project(cloud: Cloud) -> None:
    own = 'red'
    _place(cloud, 1, own, 2)
    _place(cloud, 2, 'blue', 3)
    for role in OPERATORS:
        usages = cloud.ask(role, 'GET', '/v1/usages').json()['usages']
        assert [(u['project_id'], u['claims']) for u in usages] == [('blue', 3), (own, 2)]
    for role in MEMBERS:
        answer = cloud.ask(role, 'GET', '/v1/usages')
        assert [(u['project_id'], u['claims']) for u in answer.json()['usages']] == [(own, 2)]
        assert 'blue' not in answer.text
        # A project that is there and one that is not are the same to others.
        refused = [
            cloud.ask(role, 'GET', f'/v1/usages/{name}') for name in ('blue', 'no-such-project')
        ]
        assert [answer.status_code for answer in refused] == [404, 404]
        shown = cloud.ask(role, 'GET', f'/v1/usages/{own}').json()
        assert (shown['consumers'], shown['amounts']) == (2, {'VCPU': 2})
    paged = cloud.ask('member', 'GET', '/v1/usages', marker='a', limit=1).json()
    assert [u['project_id'] for u in paged['usages']] == [own]


@pytest.mark.finding('N8', 'processes and hosts are for operators')
def test_what_runs_is_for_operators(cloud: Cloud) -> None:
    for path in ('/v1/services', '/v1/hosts/cmp-1/drain', '/v1/hosts/cmp-1/history'):
        for role in (*MEMBERS, 'service', 'other member'):
            answer = cloud.ask(role, 'GET', path)
            assert answer.status_code == 403, (role, path)
            assert 'cmp-1' not in answer.text
        assert cloud.ask('system reader', 'GET', path).status_code == 200
