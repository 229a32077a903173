# SPDX-License-Identifier: Apache-2.0
"""What a project has in zones below is its own: bound by its quotas, listed, and taken back."""

import concurrent.futures

import httpx2 as httpx
import msgspec
import pytest

from gantt import exceptions
from gantt.cli.status import _status_lines
from gantt.cmd.http_app import make_app
from gantt.core.claims.claim import LOST_STATE
from gantt.core.records.decision import Outcome
from gantt.http.context import Caller
from gantt.zones.model.messages import ZoneChanges
from tests.world import a_request
from tests.zones.tree import until

LIMIT = 3
VERSION = {'OpenStack-API-Version': 'scheduler latest'}


def of_red(vcpu=1, **fields):
    """A request of the project red, which asks for itself."""
    request = a_request(vcpu=vcpu, alternates=0, **fields)
    spec = msgspec.structs.replace(request.spec, project_id='red')
    return msgspec.structs.replace(request, spec=spec, only_project='red')


def limited(zone, project='red', **limits):
    """Set quotas that are known at once."""
    names = {name.replace('class_', 'class:'): limit for name, limit in limits.items()}
    zone.store.quotas.set_quotas(project, names)
    zone.scheduler.quotas.read()
    zone.insights.quotas.read()


def seen(zone, path):
    return zone.get(path, **VERSION).json()


def member_of(zone, project='red'):
    """The HTTP interface as a member of a project has it."""
    caller = Caller(user='eve', project=project, roles=('member', 'reader'))
    options = {'strategy': lambda request: caller, 'zone_context': zone.around}
    app = make_app(zone.insights, zone.store, zone.client, zone.metrics, **options)
    transport = httpx.WSGITransport(app)
    return httpx.Client(transport=transport, base_url='http://localhost', headers=VERSION)


@pytest.mark.parametrize('limits', [{'live_claims': 2}, {'class_VCPU': 4}, {'claims_in_flight': 2}])
def test_a_quota_counts_what_is_below_before_anything_is_claimed_there(zone, limits):
    top, low = zone('top').hosts(1, 16), zone('low').hosts(2, 64)
    top.above(low)
    limited(top, **limits)
    placed = [top.select(of_red(2)).outcome for _ in range(2)]
    assert placed == [Outcome.PLACED] * 2
    assert low.live(), 'else nothing is shown'
    written = low.written()
    refused = [
        top.select(of_red(2)),
        top.select(of_red(2, hops=0)),
        top.select(of_red(2, dry_run=True)),
    ]
    assert [refusal.outcome for refusal in refused] == [Outcome.REFUSED] * 3
    assert {refusal.excess.used for refusal in refused} == {next(iter(limits.values()))}
    assert low.written() == written
    with pytest.raises(exceptions.QuotaExceeded):
        top.insights.quotas.check(of_red(2), True)
    shown = {limit.name: limit.used for limit in top.insights.quotas.quota_view('red').limits}
    assert (shown['live_claims'], shown['claims_in_flight']) == (2, 2)
    assert len(top.on_their_way()) == 2, 'nobody waits for who was refused'


def test_a_project_with_too_long_a_name_stays_here(zone):
    top, low = zone('top').hosts(1, 16), zone('low').hosts(1, 64)
    top.above(low)
    request = a_request(vcpu=1, project_id='p' * 256)
    answer = top.select(request)
    assert (answer.outcome, 'project_id has 256' in answer.reason) == (Outcome.REFUSED, True)
    assert (top.live(), low.live()) == (0, 0)
    assert top.select(msgspec.structs.replace(request, hops=0)).outcome is Outcome.PLACED


def test_a_dry_run_over_zones_is_refused_as_the_request_would_be(zone):
    top, low = zone('top'), zone('low').hosts(1, 64)
    top.above(low)
    limited(top, live_claims=1)
    assert top.select(of_red()).outcome is Outcome.PLACED
    body = {**msgspec.to_builtins(of_red()), 'dry_run': True}
    body.pop('only_project')
    response = top.post('/v1/requests', body)
    assert response.status_code == 403 and 'quota live_claims' in response.text, response.text


def test_eight_at_once_are_let_in_up_to_the_limit_and_no_further(zone):
    top = zone('top').hosts(1, 16)
    east, west = zone('east').hosts(2, 16), zone('west').hosts(2, 16)
    top.above(east, west)
    limited(top, live_claims=LIMIT)
    requests = [of_red(hops=n % 4 and 3) for n in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(top.select, requests))
    outcomes = [answer.outcome for answer in answers]
    assert outcomes.count(Outcome.PLACED) == LIMIT
    assert outcomes.count(Outcome.REFUSED) == 8 - LIMIT
    assert top.live() + east.live() + west.live() == LIMIT
    [placed, *_] = [answer for answer in answers if answer.outcome is Outcome.PLACED]
    top.cancel(placed.request_id)
    until(lambda: top.store.quotas.quota_usage(['red'])['red'].live_claims == LIMIT - 1)
    assert top.select(of_red()).outcome is Outcome.PLACED, 'what was let in has left'
    assert top.select(of_red()).outcome is Outcome.REFUSED


def test_shares_of_a_request_are_let_in_once(zone):
    top, low = zone('top').hosts(1, 4), zone('low').hosts(1, 4)
    top.above(low)
    limited(top, live_claims=8, class_VCPU=8)
    request = a_request(8, vcpu=1, alternates=0)
    spec = msgspec.structs.replace(request.spec, project_id='red')
    answer = top.select(msgspec.structs.replace(request, spec=spec))
    assert answer.outcome is Outcome.PLACED, answer.reason
    assert (top.live(), low.live()) == (4, 4)


def test_a_quota_of_a_zone_above_is_said_and_not_found_out(zone):
    """All tenants of the zone above are one project here."""
    top, low = zone('top'), zone('low').hosts(2, 16)
    top.above(low)
    limited(low, project='of-top', live_claims=1)
    assert top.select(a_request()).outcome is Outcome.PLACED
    answer = top.select(a_request())
    assert answer.outcome is Outcome.NO_VALID_HOST
    assert 'quota live_claims' in answer.reason
    assert low.live() == 1


def test_who_placed_a_guest_below_lists_it_shows_it_and_takes_it_back(zone):
    top, low = zone('top'), zone('low').hosts(1, 16)
    top.above(low)
    request = of_red(2)
    assert top.select(request).outcome is Outcome.PLACED
    for _ in range(3):  # its decision is not kept any more
        top.store.retention.purge(
            decisions=0, tombstone_seconds=1e6, request_seconds=1e6, limit=1000
        )
    red, blue = member_of(top), member_of(top, 'blue')
    [shown] = red.get('/v1/requests').json()['requests']
    assert (shown['request_id'], shown['claims']) == (request.request_id, 1)
    [claim] = red.get('/v1/claims').json()['claims']
    assert (claim['consumer'], claim['host'], claim['child']) == (request.consumers[0], '', '')
    assert claim['resources']['VCPU'] == 2
    assert red.get(f'/v1/claims/{claim["id"]}').json()['consumer'] == claim['consumer']
    path = f'/v1/requests/{request.request_id}'
    assert [row['id'] for row in red.get(path).json()['claims']] == [claim['id']]
    for other in ('/v1/requests', '/v1/claims'):
        assert blue.get(other).json()[other.rpartition('/')[2]] == []
    for other in (path, f'/v1/claims/{claim["id"]}'):
        assert blue.get(other).status_code == 404
    assert blue.delete(path).status_code == 404
    assert red.delete(path).status_code == 200
    assert low.live() == 0


def test_an_operator_sees_what_lives_below(zone):
    top, low = zone('top'), zone('low').hosts(1, 16)
    top.above(low)
    request = of_red(2)
    top.select(request)
    top.recorder.flush()
    [claim] = seen(top, '/v1/claims')['claims']
    assert (claim['host'], claim['child'], claim['project_id']) == ('', 'low', 'red')
    assert seen(top, f'/v1/claims/{claim["id"][:13]}')['id'] == claim['id']
    assert [row['id'] for row in seen(top, '/v1/claims?limit=1')['claims']] == [claim['id']]
    assert top.delete(f'/v1/claims/{claim["id"]}?reason=x').status_code == 400
    status = seen(top, '/v1/status')
    assert (status['claims'], status['child_claims']) == (0, 1)
    lines = '\n'.join(_status_lines(status, 100))
    assert '0 live, 1 in zones below' in lines
    assert 'different filters' not in lines, 'of one process'


def test_what_is_lost_below_is_listed_by_that_until_somebody_ends_it(zone):
    top, low = zone('top'), zone('low').hosts(1, 16)
    top.above(low)
    top.over_zones.follower.stop(10.0)
    remaining, lost = of_red(), of_red()
    top.select(remaining), top.select(lost)
    [row] = top.store.child_claims.find(lost.request_id)
    unchanged = ZoneChanges(incarnation=1, revision=1.0, claims=[])
    top.store.zone_claims.note_child_changes(low.uuid, unchanged, {row.claim_id: LOST_STATE}, 1)

    def listed(state):
        query = 'lost=true' if state == 'lost' else f'state={state}'
        return [row['id'] for row in seen(top, f'/v1/claims?{query}')['claims']]

    assert listed('lost') == [row.claim_id]
    assert row.claim_id not in listed('reserved') + listed('confirmed')
    [shown] = member_of(top).get('/v1/claims?lost=true').json()['claims']
    assert (shown['id'], shown['state'], shown['child']) == (row.claim_id, 'lost', '')
    assert member_of(top, 'blue').get('/v1/claims?lost=true').json()['claims'] == []
    both = top.get('/v1/claims?lost=true&state=reserved')
    assert (both.status_code, 'what is reserved is not lost' in both.text) == (400, True)
    path = f'/v1/claims/{row.claim_id}?reason=x'
    assert 'low; which does not know it any more; cancel' in top.delete(path).text
    top.cancel(lost.request_id)
    assert listed('lost') == []
    assert listed('released') == [row.claim_id]
    assert f'{row.claim_id} ended before: it is released' in top.delete(path).text
