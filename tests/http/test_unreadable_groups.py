# SPDX-License-Identifier: Apache-2.0
"""A stored group that this release cannot read is shown as such, obeyed by nobody, and removed."""

import pytest

from gantt.db.schema import models
from tests.conftest import READERS
from tests.http.callers import as_caller, ask
from tests.http.site import Site, fixed

_g = models.group_rules
SET = {'policies': [{'policy': 'anti-affinity', 'level': 'host'}]}
SPEC = {'resources': {'VCPU': 1}, 'group': {'uuid': fixed(1)}}


@pytest.fixture(params=READERS[:2])
def site(request, make_store):
    return Site(store=make_store(request.param))


def spoil(site, values):
    with site.world.store.database.engine.begin() as connection:
        connection.execute(_g.update().where(_g.c.uuid == fixed(1)).values(values))


def test_it_is_listed_beside_others_refuses_its_requests_and_is_removed(site):
    rules = [
        {'policies': '{"later": 1}'},
        {'policies': '{"policies": [{'},
        {'policy': 'later', 'policies': None},
    ]
    with as_caller(site, 'admin') as admin:
        for number, rule in enumerate(rules, 10):
            for group in (1, 2):
                body = {'uuid': fixed(group), **SET}
                assert admin.post('/v1/server-groups', json=body).status_code in (200, 201)
            spoil(site, rule)
            listed = admin.get('/v1/server-groups')
            assert listed.status_code == 200, listed.text
            groups = {
                shown_group['uuid']: shown_group for shown_group in listed.json()['server_groups']
            }
            shown = admin.get(f'/v1/server-groups/{fixed(1)}').json()
            assert groups == {fixed(1): shown, fixed(2): groups[fixed(2)]}
            assert 'cannot be read by this release' in shown['problem']
            assert not groups[fixed(2)].get('problem')
            # A process that knew it before, and one that starts now.
            for _ in range(2):
                site.world.turn()
                refused = ask(admin, number, SPEC)
                assert refused.status_code == 503, refused.text
                assert 'rule of a server group cannot be read' in refused.text
                site.world.another_scheduler()
            assert ask(admin, number + 100, {'resources': {'VCPU': 1}}).status_code < 300
            again = admin.post('/v1/server-groups', json={'uuid': fixed(1), **SET})
            assert again.status_code in (400, 503), again.text
            gone = admin.delete(f'/v1/server-groups/{fixed(1)}')
            assert gone.status_code == 200, gone.text
    assert site.world.store.claims.list_claims(group=fixed(1)) == []


def test_members_that_cannot_be_read_are_those_that_have_claims(site):
    with as_caller(site, 'admin') as admin:
        admin.post('/v1/server-groups', json={'uuid': fixed(1), **SET})
        spoil(site, {'members': '{"later": 1}'})
        answer = ask(admin, 1, SPEC)
        assert answer.status_code < 300, answer.text
        members = admin.get(f'/v1/server-groups/{fixed(1)}').json()['members']
    assert members == [fixed(1000)]
