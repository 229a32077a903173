# SPDX-License-Identifier: Apache-2.0
"""A stored plan that this release cannot read is shown as such, and can be given back."""

import json

import httpx2 as httpx
import msgspec
import pytest
import sqlalchemy as sa

from gantt.cmd.http_app import make_app
from gantt.db.schema import models
from gantt.groups.model import group_answer
from gantt.http.context import Caller
from tests.http.callers import LATEST
from tests.http.site import Site, fixed
from tests.planner import a_description, a_member, a_plan_request

_t = models.group_plans


def of_a_later_release(row):
    return {'description': json.dumps({**json.loads(row.description), 'later': 1}).encode()}


def cut_off(row):
    return {'description': bytes(row.description)[:-3]}


def no_text(row):
    return {'description': b'\xff\xfe'}


def with_another_answer(row):
    body = msgspec.msgpack.decode(bytes(row.plan)[len(group_answer.GROUP_ANSWER_PREFIX) :])
    return {
        'plan': group_answer.GROUP_ANSWER_PREFIX
        + msgspec.msgpack.encode({**body, 'revision': 'two'})
    }


@pytest.fixture(params=[of_a_later_release, cut_off, no_text, with_another_answer])
def site(request):
    """Two plans of a project, of which the first cannot be read."""
    site = Site()
    site.groups = [
        site.plans.place_group(
            a_plan_request(a_description(a_member('web', 2)), project_id='red')
        ).group
        for _ in range(2)
    ]
    with site.world.store.database.engine.begin() as connection:
        mine = _t.c.group_uuid == site.groups[0]
        row = connection.execute(sa.select(_t).where(mine)).one()
        connection.execute(_t.update().where(mine).values(request.param(row)))
    return site


def as_caller(site, *roles):
    """A client of somebody in the project, where plans are made as well."""
    caller = Caller(user='eve', project='red', roles=roles)
    app = make_app(
        *(site.insights, site.world.store, site.client, site.metrics),
        strategy=lambda req: caller,
        plans=site.plans,
    )
    transport = httpx.WSGITransport(app)
    return httpx.Client(transport=transport, base_url='http://localhost', headers=LATEST)


def path(uuid):
    return f'/v1/group-plans/{uuid}'


@pytest.mark.parametrize('states', ['', '?states=true'])
@pytest.mark.parametrize('roles', [('admin',), ('member', 'reader')])
def test_a_list_has_it_with_the_problem_with_others_the_others(site, states, roles):
    with as_caller(site, *roles) as caller:
        response = caller.get(f'/v1/group-plans{states}')
    assert response.status_code == 200, response.text
    plans = {plan['group']: plan for plan in response.json()['group_plans']}
    assert [bool(plans[uuid]['problem']) for uuid in site.groups] == [True, False]
    assert plans[site.groups[1]]['members'] == 2
    if states:
        assert [plans[uuid]['states'] for uuid in site.groups] == [{'planned': 2}] * 2


def test_it_is_shown_with_its_places_extended_and_given_back(site):
    broken = site.groups[0]
    with as_caller(site, 'member', 'reader', 'admin') as caller:
        shown = caller.get(path(broken) + '?check=true')
        assert shown.status_code == 200, shown.text
        assert 'cannot be read by this release' in shown.json()['problem']
        assert [member['state'] for member in shown.json()['members']] == ['planned', 'planned']
        assert shown.json()['description'] is None
        extended = caller.put(path(broken) + '/lease', json={'seconds': 60})
        assert extended.status_code == 200, extended.text
        gone = caller.delete(path(broken))
        assert gone.status_code == 200, gone.text
        assert caller.get(path(broken)).status_code == 404
    assert site.world.store.plans.load_reservations([broken])[broken] == []


def test_it_is_not_changed_and_the_answer_says_why(site):
    broken = site.groups[0]
    body = {'request_id': fixed(9), 'group': a_description(a_member('web'), uuid=broken)}
    with as_caller(site, 'member', 'reader', 'admin') as caller:
        refused = caller.put(path(broken), json=body)
    assert (refused.status_code, refused.json()['errors'][0]['code']) == (
        503,
        'gantt.plan_unreadable',
    ), refused.text
