# SPDX-License-Identifier: Apache-2.0
"""``gantt zone tree``, health and the conditions of zones below, over HTTP."""

from gantt.cli import main
from gantt.core.records.decision import Outcome
from gantt.zones.service.conditions import ZoneConditions, ZoneState
from tests.world import a_request
from tests.zones.tree import until


def tree(zone):
    return zone.get('/v1/zone-tree').json()


def shown(zone, capsys, *words):
    code = main.main(['--endpoint', zone.url, 'zone', *words])
    output = capsys.readouterr()
    return code, output.out or output.err


def test_the_tree_has_this_zone_its_parents_and_its_children(zone, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '200')
    east, north = zone('east').hosts(3), zone('north').hosts(2)
    top = zone('top').hosts(1).above(east, north)
    over = zone('over').above(top)
    assert over.select(a_request(vcpu=2)).outcome is Outcome.PLACED
    top_tree = tree(top)
    assert (top_tree['uuid'], top_tree['hosts'], top_tree['hosts_up']) == (top.uuid, 1, 1)
    assert [(parent['name'], parent['project_id']) for parent in top_tree['parents']] == [
        ('over', 'of-over')
    ]
    rows = [
        (child['name'], child['state'], child['hosts'], child['room'], child['complete'])
        for child in top_tree['children']
    ]
    assert rows == [('east', 'responding', 3, 3, True), ('north', 'responding', 2, 2, True)]
    # Of what is below it a zone says how much there is, and nothing else.
    below = tree(over)
    assert [(child['name'], child['hosts']) for child in below['children']] == [('top', 6)]
    assert not any(name in str(below) for name in (east.uuid, north.uuid, 'east', 'north'))
    assert below['children'][0]['claims'] == top_tree['parents'][0]['claims'] == 1
    code, out = shown(top, capsys, 'tree')
    assert code == 0, out
    lines = out.splitlines()
    assert lines[0] == (
        'over (parent): project of-over, leases of 600 s at most, 1 live claim of it here'
    )
    assert lines[1].startswith(f'└─ this zone ({top.uuid}): 1 host, 1 up, ')
    assert lines[2].startswith('   ├─ east: responding in ') and '3 hosts, 3 with room' in lines[2]
    assert lines[3].startswith('   └─ north: ')


def test_a_zone_below_that_is_not_well_says_why(zone, capsys):
    east, cloud, other = zone('east').hosts(1), zone('cloud').hosts(1), zone('other').hosts(1)
    top = zone('top').above(east, cloud, other)
    top.put('/v1/zones/cloud', {'last_resort': True})
    east.put('/v1/parents/top', {'enabled': False})
    cloud.cut()
    top.put('/v1/zones/other', {'enabled': False})
    states = {child['name']: (child['state'], child['hosts']) for child in tree(top)['children']}
    assert states == {
        'east': ('forbidden', None),
        'cloud': ('unresponsive', None),
        'other': ('disabled', None),
    }
    code, out = shown(top, capsys, 'tree')
    assert code == 0 and 'cloud: unresponsive, last resort, 0 live claims of here' in out
    assert 'gantt.forbidden' in out  # what it says no with
    # None of it is a reason to take this API out of service.
    until(lambda: 'child zones' in health(top)['zones']['detail'])
    until(lambda: not health(top)['zones']['ok'])
    response = top.get('/v1/health')
    assert response.status_code == 200 and response.json()['healthy']
    detail = health(top)['zones']['detail']
    assert 'cloud unresponsive' in detail and 'east forbidden' in detail and 'other' not in detail


def health(zone):
    return {check['name']: check for check in zone.get('/v1/health').json()['checks']}


def test_other_scores_and_another_clock_are_seen(zone):
    top = zone('top').above(zone('east').hosts(1))

    def condition_with(scores, ahead):
        parts = top.around
        top.insights.refresh()
        now = top.insights.cache
        [condition] = ZoneConditions(
            parts.calls,
            parts.directory.children,
            lambda: scores,
            now.clock,
            lambda: now.database_now - ahead,
        ).query_all()
        return condition.state, condition.problem

    own = top.around.score_set()
    assert condition_with(own, 0.0) == (ZoneState.RESPONDING, '')
    assert condition_with(own, 100.0) == (
        ZoneState.RESPONDING,
        'the clock of its database is 100 s before ours',
    )
    state, problem = condition_with('other', 0.0)
    assert state is ZoneState.SCORE_MISMATCH and 'do not count' in problem


def test_who_has_no_zones_below_is_well(zone):
    alone = zone('alone').hosts(1)
    assert health(alone)['zones'] == {
        'name': 'zones',
        'ok': True,
        'detail': 'there are no child zones',
        'code': '',
    }
    assert tree(alone)['children'] == tree(alone)['parents'] == []


def test_a_place_below_is_shown_with_its_zone_and_how_many_alternates_it_has(zone, capsys):
    top = zone('top').hosts(1, 2).above(zone('east').hosts(4, 4))

    def select(*words):
        code = main.main(['--endpoint', top.url, 'select', '--resource', *words])
        assert code == 0, capsys.readouterr().err
        return capsys.readouterr().out.splitlines()

    lines = select('VCPU=4', '--count', '2')
    assert lines[0] == 'placed 2 in zone east'
    assert [line for line in lines if line.endswith('  2 in zone east')], lines
    lines = select('VCPU=2', '--count', '5')
    assert lines[0] == 'placed 5 on 1 host and in zone east'
