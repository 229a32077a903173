# SPDX-License-Identifier: Apache-2.0
"""Lists of groups and requests, in pages and of one project."""

from tests.builders import a_draft, a_group, changed, claimed
from tests.conftest import READERS

KINDS = READERS


def test_groups_come_in_pages_by_uuid(store):
    uuids = sorted(store.groups.save_group(a_group()).uuid for _ in range(5))
    seen = []
    while page := store.groups.list_groups(2, seen[-1] if seen else None):
        assert len(page) <= 2
        seen += [group.uuid for group in page]
    assert seen == uuids


def test_groups_of_a_project_come_without_those_of_others(store):
    for i in range(6):
        store.groups.save_group(a_group(project_id=('red', 'blue', None)[i % 3]))
    [first] = store.groups.list_groups(1, None, 'blue')
    [second] = store.groups.list_groups(5, first.uuid, 'blue')
    assert first.uuid < second.uuid
    assert {first.project_id, second.project_id} == {'blue'}
    assert store.groups.list_groups(9, None, 'green') == []


def test_requests_and_claims_of_a_project_are_listed_without_those_of_others(store, host):
    ids = {}
    for project in ('red', 'blue', 'red'):
        draft = a_draft().taking(host)
        drafted = draft.fields['claims'][0]
        claim = changed(drafted.claim, project_id=project)
        claimed(store, draft.having(claims=[changed(drafted, claim=claim)]))
        ids.setdefault(project, []).append(draft.id)
    mine = sorted(ids['red'])
    requests = store.requests.list_requests(10, None, 'red')
    assert [(request.id, request.state, request.claims) for request in requests] == [
        (request_id, 'placed', 1) for request_id in mine
    ]
    assert [request.id for request in store.requests.list_requests(1, mine[0], 'red')] == [mine[1]]
    assert (
        store.requests.list_requests(10, mine[1], 'red')
        == store.requests.list_requests(10, None, 'green')
        == []
    )
    assert [request.id for request in store.requests.list_requests(10)] == sorted(
        [*mine, *ids['blue']]
    )
    assert requests[0].updated_at > 0
    assert sorted(claim.request_id for claim in store.claims.list_claims(project='red')) == mine
