# SPDX-License-Identifier: Apache-2.0
"""Quotas over HTTP: set by administrators, read by members, and what a refusal says."""

from typing import Any

import httpx2 as httpx
import pytest

from gantt.cmd import policies
from gantt.cmd.http_app import make_app
from gantt.http.context import Caller
from gantt.scheduler.quotas import REFRESH_SECONDS
from tests.http import identity
from tests.http.cloud import MEMBERS_CLAIM
from tests.http.site import Site, fixed

LATEST = {'OpenStack-API-Version': 'scheduler latest'}
MEMBER = Caller(user='eve', project='red', roles=('member', 'reader'))
ADMIN = Caller(user='ann', project='ops', roles=('admin', 'member', 'reader'))
SERVICE = Caller(user='nova', project='service', roles=('service',))


class Doors:
    """A site whose members may claim, and doors for callers."""

    def __init__(self, folder: Any, text: str = MEMBERS_CLAIM) -> None:
        (folder / 'policy.yaml').write_text(text)
        sections = {'api': {}, 'oslo_policy': {'policy_file': folder / 'policy.yaml'}}
        self.rules = policies.enforcer(identity.configuration(folder, sections))
        self.site = Site()
        self.kept: list[Any] = []
        self.numbers = iter(range(100, 10_000))

    def ask(self, caller: Caller, method: str, path: str, body: Any = None) -> httpx.Response:
        site = self.site
        app = make_app(
            site.insights,
            site.world.store,
            site.client,
            site.metrics,
            strategy=lambda req: caller,
            rules=self.rules,
            store_entry=self.kept.append,
        )
        with httpx.Client(transport=httpx.WSGITransport(app), base_url='http://gantt') as client:
            return client.request(method, path, json=body, headers=LATEST)

    def set(self, project: str, **limits: int | None) -> None:
        path = f'/v1/quotas/{project}'
        assert self.ask(ADMIN, 'PUT', path, {'limits': limits}).status_code == 200
        self.site.pass_seconds(REFRESH_SECONDS + 1)

    def place(self, caller: Caller, count: int = 1, **fields: Any) -> httpx.Response:
        number = next(self.numbers)
        spec = {'resources': {'VCPU': 1}} | ({} if caller is MEMBER else {'project_id': 'red'})
        body = {
            'request_id': fixed(number),
            'consumers': [fixed(number * 1000 + i) for i in range(count)],
            'spec': spec,
            **fields,
        }
        return self.ask(caller, 'POST', '/v1/requests', body)


@pytest.fixture
def doors(tmp_path: Any) -> Doors:
    return Doors(tmp_path)


def _limits(answer: httpx.Response) -> dict[str, tuple[int, int | None, str]]:
    body = answer.json()
    limits = body.get('now', body)['limits']
    return {limit['name']: (limit['limit'], limit['used'], limit['source']) for limit in limits}


def test_limits_are_set_shown_listed_and_taken_away(doors: Doors) -> None:
    path, body = '/v1/quotas/red', {'limits': {'live_claims': 3, 'class:VCPU': 9}}
    dry = doors.ask(ADMIN, 'PUT', f'{path}?dry_run=true', body).json()
    assert dry['message'] == 'quota of red would be: class:VCPU 9, live_claims 3'
    assert doors.ask(ADMIN, 'GET', '/v1/quotas').json()['quotas'] == []
    answer = doors.ask(ADMIN, 'PUT', path, body)
    assert _limits(answer)['live_claims'] == (3, 0, 'project')
    doors.set('default', server_groups=2)
    assert doors.place(MEMBER).status_code == 201
    assert _limits(doors.ask(MEMBER, 'GET', '/v1/limits')) == {
        'claims_in_flight': (-1, 1, 'options'),
        'class:VCPU': (9, 1, 'project'),
        'live_claims': (3, 1, 'project'),
        'reservations': (-1, 0, 'options'),
        'requests_per_minute': (-1, None, 'options'),
        'server_groups': (2, 0, 'default'),
    }
    page = doors.ask(ADMIN, 'GET', '/v1/quotas?limit=1').json()
    assert page['quotas'] == [{'project_id': 'default', 'limits': {'server_groups': 2}}]
    rest = doors.ask(ADMIN, 'GET', f'/v1/quotas?marker={page["next_marker"]}').json()
    assert rest['quotas'] == [{'project_id': 'red', 'limits': body['limits']}]
    doors.set('red', live_claims=None)
    assert _limits(doors.ask(ADMIN, 'GET', path))['live_claims'] == (-1, 1, 'options')
    assert doors.ask(ADMIN, 'DELETE', path).json()['message'] == 'quota of red is unset: class:VCPU'
    assert doors.ask(ADMIN, 'DELETE', path).status_code == 404
    events = [entry for entry in doors.kept if entry.action == 'gantt:quotas:set']
    assert events[0].message == 'quota of red is set: class:VCPU 9, live_claims 3'
    assert events[0].initiator.user_id == 'ann'


def test_a_member_reads_its_own_and_sets_nothing(doors: Doors) -> None:
    doors.set('blue', live_claims=3)
    asked = {
        ('GET', '/v1/quotas/red'): 200,
        ('GET', '/v1/limits'): 200,
        ('GET', '/v1/quotas/blue'): 404,
        ('GET', '/v1/quotas/nobody'): 404,
        ('GET', '/v1/quotas'): 403,
        ('DELETE', '/v1/quotas/red'): 403,
    }
    for (method, path), status in asked.items():
        assert doors.ask(MEMBER, method, path).status_code == status, path
    body = {'limits': {'live_claims': 1000}}
    assert doors.ask(MEMBER, 'PUT', '/v1/quotas/red', body).status_code == 403


@pytest.mark.parametrize(
    ('limits', 'field'),
    [({'claims': 1}, 'body.limits'), ({'live_claims': -7}, 'limits.live_claims'), ({}, 'body')],
)
def test_what_is_no_limit_is_refused_by_name(doors: Doors, limits: Any, field: str) -> None:
    answer = doors.ask(ADMIN, 'PUT', '/v1/quotas/red', {'limits': limits})
    assert answer.status_code == 400
    assert field in answer.json()['errors'][0]['detail']


@pytest.mark.parametrize('dry_run', [False, True])
def test_a_refusal_names_the_limit_what_is_used_and_what_was_asked(
    doors: Doors, dry_run: bool
) -> None:
    doors.set('red', live_claims=2)
    assert doors.place(SERVICE, 2).status_code == 201
    for caller in (MEMBER, SERVICE):
        answer = doors.place(caller, 3, dry_run=dry_run)
        [error] = answer.json()['errors']
        assert (answer.status_code, error['code']) == (403, 'gantt.quota_exceeded')
        assert error['detail'] == 'quota live_claims: 2 of 2 used, 3 requested'
        assert error['details']['limit'] == 2


def test_a_member_reads_why_in_its_decision(doors: Doors) -> None:
    doors.set('red', live_claims=0)
    assert doors.place(MEMBER).status_code == 403
    doors.site.world.turn()
    [line] = doors.ask(MEMBER, 'GET', '/v1/decisions').json()['decisions']
    shown = doors.ask(MEMBER, 'GET', f'/v1/decisions/{line["id"]}').json()
    assert shown['reason'] == 'quota live_claims: 0 of 0 used, 1 requested'


def test_a_dry_run_of_who_may_not_claim_is_told_what_a_service_would_be(tmp_path: Any) -> None:
    doors = Doors(tmp_path, '')
    doors.set('default', live_claims=0)
    assert doors.place(MEMBER, dry_run=True).status_code == 200
    assert doors.place(SERVICE).status_code == 201
    doors.set('red', live_claims=1)
    assert doors.place(MEMBER, dry_run=True).status_code == 403
    assert doors.place(SERVICE).status_code == 403


def test_too_many_requests_are_told_when_to_come_again(doors: Doors) -> None:
    doors.set('default', requests_per_minute=2)
    assert doors.place(MEMBER, dry_run=True).status_code == 200
    assert doors.place(MEMBER).status_code == 201
    answer = doors.place(MEMBER, dry_run=True)
    assert (answer.status_code, answer.headers['retry-after']) == (429, '30')
    assert answer.json()['errors'][0]['code'] == 'gantt.too_many_requests'
    assert doors.place(SERVICE).status_code == 201


def test_groups_of_a_project_are_bounded(doors: Doors) -> None:
    def create(caller: Caller, number: int, dry: bool = False) -> int:
        body = {'uuid': fixed(number), 'policy': 'affinity', 'project_id': 'red'}
        path = '/v1/server-groups' + ('?dry_run=true' if dry else '')
        return doors.ask(caller, 'POST', path, body).status_code

    doors.set('default', server_groups=1)
    assert create(MEMBER, 1) == 201
    assert create(MEMBER, 1) == 200
    assert [create(MEMBER, 2), create(MEMBER, 2, dry=True)] == [403, 403]
    assert create(ADMIN, 3) == 201
    doors.set('red', server_groups=2)
    assert create(ADMIN, 4) == 403
    assert doors.ask(MEMBER, 'DELETE', f'/v1/server-groups/{fixed(1)}').status_code == 200
    assert create(MEMBER, 2) == 201
