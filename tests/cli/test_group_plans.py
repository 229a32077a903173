# SPDX-License-Identifier: Apache-2.0
"""Groups that are placed as a whole, by commands: planned, shown, created, changed, given back."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from gantt.groups import plan_picture
from tests.cli.conftest import Gantt, Run, run
from tests.cli.test_golden import compare
from tests.http.site import Site, fixed

GROUP = fixed(7)
SVG = '{http://www.w3.org/2000/svg}'
WEB = {'resources': {'VCPU': 1, 'MEMORY_MB': 1024}}
DB = {'resources': {'VCPU': 4, 'MEMORY_MB': 4096}}
NEEDS = ('--resource', 'VCPU=1', '--resource', 'MEMORY_MB=1024')


@pytest.fixture
def file(tmp_path: Path) -> Any:
    """``file(count=2)``: a description as a file of its own."""

    def made(count: int = 2, form: str = 'yaml', **fields: Any) -> str:
        body = {
            'uuid': GROUP,
            'policies': [
                'anti-affinity',
                {'policy': 'spread', 'level': 'room', 'min_domains': 2, 'of': 'web'},
                {'policy': 'affinity', 'level': 'zone', 'soft': 2},
            ],
            'members': [
                {'name': 'web', 'count': count, 'spec': WEB},
                {'name': 'db', 'spec': DB},
            ],
            **fields,
        }
        path = tmp_path / f'group-{len(list(tmp_path.iterdir()))}.{form}'
        path.write_text(yaml.safe_dump(body) if form == 'yaml' else json.dumps(body))
        return str(path)

    return made


def answered(succeeded: Run) -> Any:
    assert succeeded.code == 0, succeeded.err
    return json.loads(succeeded.out)


def shown(gantt: Gantt, *more: str) -> Any:
    return answered(gantt('group', 'show', GROUP, '-f', 'json', *more))


def states(gantt: Gantt) -> dict[str, str]:
    return {member['name']: member['state'] for member in shown(gantt)['plan']['members']}


def hosts(gantt: Gantt) -> dict[str, str]:
    return {member['name']: member['host'] for member in shown(gantt)['plan']['members']}


# -- what people read --------------------------------------------------------------------
def test_it_reads_as_reviewed(gantt: Gantt, file: Any) -> None:
    def reads(name: str, *words: str) -> None:
        printed = gantt(*words)
        assert all(len(line) <= 80 for line in printed.out.splitlines())
        compare(f'group-{name}', printed)

    ids = ('--request-id', fixed(8))
    reads('plan-dry', 'group', 'plan', file(9), '--dry-run', *ids)
    reads('plan-refused', 'group', 'plan', file(9), *ids)
    reads('plan', 'group', 'plan', file(), *ids)
    reads('plans', 'group', 'plans')
    reads('explain', 'explain', fixed(8))
    assert gantt('select', '--group', GROUP, '--member', 'web-2', *NEEDS).code == 0
    reads('show', 'group', 'show', GROUP, '--check')


def test_what_if_is_a_line_for_each_policy(gantt: Gantt, file: Any) -> None:
    planned = gantt('group', 'plan', file(9), '--dry-run', '--what-if')
    assert planned.code == 2 and all(len(line) <= 80 for line in planned.out.splitlines())
    for line in ('anti-affinity at host ', 'spread of web at room ', 'affinity at zone (soft 2) '):
        assert f'\n{line}' in planned.out
    assert 'leave out anti-affinity at host: all that have to be placed could be' in planned.out
    planned = gantt('group', 'plan', file(policies=[]), '--dry-run', '--what-if')
    assert 'there is no policy to leave out' in planned.out


def test_a_group_that_was_planned_without_a_policy_has_none(gantt: Gantt, file: Any) -> None:
    assert gantt('group', 'plan', file(policies=[])).code == 0
    assert gantt('group', 'show', GROUP).out.splitlines()[1] == 'no policy'
    assert gantt('group', 'list', '-f', 'value', '-c', 'POLICY').out == 'none\n'


def test_what_if_is_of_a_dry_run(site: Site, gantt: Gantt, file: Any) -> None:
    refused = gantt('group', 'plan', file(), '--what-if')
    assert refused.code == 64
    assert (
        '--what-if: expected with --dry-run' in refused.err and 'leave --what-if out' in refused.err
    )
    assert site.world.store.claims.list_claims() == []


# -- planned and created ------------------------------------------------------------------
def test_a_plan_holds_a_place_for_each_member(site: Site, gantt: Gantt, file: Any) -> None:
    answer = answered(gantt('group', 'plan', file(form='json'), '-f', 'json', '--lease', '600'))
    assert answer['group'] == GROUP and answer['lease_seconds'] == 600
    assert set(states(gantt).values()) == {'planned'}
    claims = site.world.store.claims.list_claims(state='reserved')
    assert sorted(claim.member_name or '' for claim in claims) == ['db', 'web-1', 'web-2']


def test_a_dry_run_claims_nothing_and_says_what_has_no_place(
    site: Site, gantt: Gantt, file: Any
) -> None:
    planned = gantt('group', 'plan', file(9), '--dry-run')
    assert planned.code == 2
    assert 'would place 5 members on 5 hosts' in planned.out and 'in conflict: ' in planned.out
    assert site.world.store.claims.list_claims() == []
    assert gantt('group', 'plan', file(), '--dry-run').code == 0
    assert site.world.store.claims.list_claims() == []


def test_a_repeat_under_its_id_is_one(site: Site, gantt: Gantt, file: Any) -> None:
    ask = ('group', 'plan', file(), '--request-id', fixed(8))
    assert gantt(*ask).out == gantt(*ask).out
    assert len(site.world.store.claims.list_claims()) == 3
    refused = gantt('group', 'plan', file(3), '--request-id', fixed(8))
    assert refused.code == 1 and 'gantt.request_id_reused' in refused.err


def test_members_are_created_by_name_and_by_what_they_need(gantt: Gantt, file: Any) -> None:
    planned = answered(gantt('group', 'plan', file(), '-f', 'json'))['plan']['members']
    place = {member['name']: member['host'] for member in planned}
    named = answered(gantt('select', '--group', GROUP, '--member', 'web-2', *NEEDS, '-f', 'json'))
    alike = answered(gantt('select', '--group', GROUP, *NEEDS, '-f', 'json'))
    hosts_of_both = [reply['answer']['selections'][0][0]['host'] for reply in (named, alike)]
    assert hosts_of_both == [place['web-2'], place['web-1']]
    assert states(gantt) == {'web-1': 'created', 'web-2': 'created', 'db': 'planned'}
    only = shown(gantt, '--state', 'planned')['plan']['members']
    assert [member['name'] for member in only] == ['db']


def test_a_create_that_differs_names_the_fields(gantt: Gantt, file: Any) -> None:
    gantt('group', 'plan', file())
    refused = gantt('select', '--group', GROUP, '--member', 'db', *NEEDS)
    assert refused.code == 1
    assert 'resources.MEMORY_MB: the plan has 4096, the request 1024' in refused.err


def test_a_create_that_took_a_place_is_explained_and_made_again(
    site: Site, gantt: Gantt, file: Any
) -> None:
    gantt('group', 'plan', file())
    ask = ('select', '--group', GROUP, '--member', 'web-1', *NEEDS, '--request-id', fixed(9))
    assert gantt(*ask).code == 0
    site.world.turn()
    site.world.scheduler.cache.log.flush(site.world.store.table_logs)
    assert 'the place of web-1 in revision 1 of the plan' in ' '.join(
        gantt('explain', fixed(9)).out.split()
    )
    assert gantt('replay', fixed(9)).code == 0


# -- its life ------------------------------------------------------------------------------
def test_a_group_is_changed_and_who_is_there_stays(gantt: Gantt, file: Any) -> None:
    gantt('group', 'plan', file())
    before = hosts(gantt)
    answer = answered(gantt('group', 'change', file(3), '--revision', '1', '-f', 'json'))
    assert sorted(answer['stayed']) == ['db', 'web-1', 'web-2'] and answer['revision'] == 2
    assert hosts(gantt) | before == hosts(gantt) and hosts(gantt).keys() == {*before, 'web-3'}
    late = gantt('group', 'change', file(2), '--revision', '1')
    assert late.code == 1 and 'request.revision: expected 2' in late.err


def test_what_changed_policies_would_violate_is_said_first(gantt: Gantt, file: Any) -> None:
    gantt('group', 'plan', file())
    changed = gantt('group', 'change', file(policies=['affinity']), '--dry-run')
    assert changed.code == 0, changed.err
    assert 'violated: affinity at host: only a move of ' in changed.out
    assert 'dry run: nothing is claimed' in changed.out


def test_a_lost_host_is_healed(site: Site, gantt: Gantt, file: Any) -> None:
    gantt('group', 'plan', file())
    before = hosts(gantt)
    site.silent.add(before['db'])
    for _ in range(4):
        site.pass_seconds(60)
    assert states(gantt) == {'web-1': 'planned', 'web-2': 'planned', 'db': 'lost'}
    dry = gantt('group', 'heal', GROUP, '--dry-run')
    assert 'would place 1 member on 1 host' in dry.out and hosts(gantt) == before
    answer = answered(gantt('group', 'heal', GROUP, '-f', 'json'))
    assert [member['name'] for member in answer['plan']['members']] == ['db']
    after = hosts(gantt)
    assert after['db'] != before['db'] and after['web-1'] == before['web-1']
    assert gantt('replay', GROUP).code == 0


def test_one_is_placed_anew_that_is_named(gantt: Gantt, file: Any) -> None:
    gantt('group', 'plan', file())
    before = hosts(gantt)
    healed = gantt('group', 'heal', GROUP, '--replace', 'web-2')
    assert 'placed 1 member on 1 host' in healed.out
    assert {n: h for n, h in hosts(gantt).items() if n != 'web-2'} == {
        n: h for n, h in before.items() if n != 'web-2'
    }
    wrong = gantt('group', 'heal', GROUP, '--replace', 'web-9')
    assert (
        wrong.code == 1 and "replace[0]: expected a member with a place; got 'web-9'" in wrong.err
    )


def test_places_are_held_longer_and_given_back(gantt: Gantt, file: Any) -> None:
    gantt('group', 'plan', file(), '--lease', '600')
    assert gantt('group', 'extend', GROUP, '--lease', '7200').code == 0
    assert shown(gantt)['plan']['lease_seconds'] > 7000
    dry = gantt('group', 'release', GROUP, '--dry-run')
    assert dry.out.startswith('dry run: ') and '3 places would be given back' in dry.out
    assert gantt('group', 'release', GROUP, '--reason', 'done').code == 0
    shown_group = gantt('group', 'show', GROUP)
    assert shown_group.code == 0 and 'nobody is in it' in shown_group.out
    assert (
        'nothing was checked: the group has no plan' in gantt('group', 'show', GROUP, '--check').out
    )
    assert gantt('group', 'plans').out == 'no group has a plan\n'
    gone = gantt('group', 'release', GROUP)
    assert gone.code == 1 and 'gantt.not_found' in gone.err


# -- pictures ---------------------------------------------------------------------------------
def test_a_plan_is_drawn_with_domains_hosts_and_members(gantt: Gantt, file: Any) -> None:
    assert gantt('group', 'plan', file(3)).code == 0
    where = {member['name']: member for member in shown(gantt)['plan']['members']}
    drawn = gantt('group', 'show', GROUP, '--picture').out
    for name, member in where.items():
        assert f'({name})' in drawn
        assert f'+- {member["host"]} -' in drawn
    assert max(map(len, drawn.splitlines())) <= 80
    assert '!' not in drawn.replace('with ! violates', '')

    picture = gantt('group', 'show', GROUP, '--svg').out
    root = ElementTree.fromstring(picture)
    texts = [element.text for element in root.iter(f'{SVG}text')]
    assert {*where, *(member['host'] for member in where.values())} <= set(texts)
    kinds = [element.get('class') for element in root.iter(f'{SVG}rect')]
    assert kinds.count('chip planned') == 4
    assert kinds.count('host') == len({member['host'] for member in where.values()})


def test_a_picture_marks_who_violates_a_policy_and_who_has_no_place() -> None:
    members = [
        {'name': name, 'host': host, 'state': state, 'levels': {'rack': 'r<1>'}}
        for name, host, state in (
            ('web-1', 'cmp-1', 'running'),
            ('web-2', 'cmp-1', 'planned'),
            ('a-name-that-is-longer-than-a-column', 'cmp-2', 'created'),
            ('db', '', 'lost'),
        )
    ]
    line = {'line': 'anti-affinity', 'is_hard': True, 'members': ['web-2']}
    plan = {'group': GROUP, 'revision': 1, 'members': members, 'violated': [line], 'decided': None}
    drawn = plan_picture.text_lines(plan, 40)
    assert '| [web-1] (web-2!)' in '\n'.join(drawn)
    assert drawn[-3:] == [
        'without a place: db',
        'violated: anti-affinity: only a move of',
        '  web-2 could mend it',
    ]
    root = ElementTree.fromstring('\n'.join(plan_picture.svg_lines(plan)))
    kinds = [element.get('class') for element in root.iter(f'{SVG}rect')]
    assert kinds.count('chip planned violating') == 1
    assert 'r<1>' in [element.text for element in root.iter(f'{SVG}text')]


def test_a_picture_is_one_of_two_forms(gantt: Gantt) -> None:
    for options in (('--picture', '--svg'), ('--svg', '-f', 'json')):
        refused = gantt('group', 'show', GROUP, *options)
        assert refused.code == 64 and 'expected one of them, and no -f' in refused.err


def test_a_picture_of_an_unreadable_plan_says_so() -> None:
    plan = {
        'group': GROUP,
        'revision': 1,
        'members': [{'name': 'a\uffff', 'host': 'h', 'state': 'planned', 'levels': {}}],
        'violated': None,
        'decided': None,
        'problem': 'the plan cannot be read',
    }
    assert 'the plan cannot be read' in plan_picture.text_lines(plan, 80)
    picture = '\n'.join(plan_picture.svg_lines(plan))
    assert 'the plan cannot be read' in picture
    ElementTree.fromstring(picture)


def test_without_a_plan_there_is_nothing_to_draw(gantt: Gantt) -> None:
    assert gantt('group', 'create', '--uuid', GROUP, '--policy', 'affinity', 'x').code == 0
    refused = gantt('group', 'show', GROUP, '--svg')
    assert refused.code == 1 and 'there is nothing to draw' in refused.err


# -- what is wrong --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ('text', 'why'),
    [
        ('[]', 'expected one object, the description of a group'),
        ('{policies: [affinity]}', 'members: who is to be placed? It has policies'),
        ('{group: [1]}', 'group: expected an object'),
        ('{members: [', 'neither JSON nor YAML'),
    ],
)
def test_a_file_of_another_form(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / 'group.yaml'
    path.write_text(text)
    refused = run('group', 'plan', str(path))
    assert refused.code == 64 and why in refused.err


WRONG = [
    ({'policies': [{'policy': 'affinity', 'level': 'rak'}]}, "'rak'; did you mean 'rack'?"),
    ({'policies': [{'policy': 'affinity', 'of': 'wbe'}]}, "'wbe'; did you mean 'web'?"),
    ({'members': [{'name': 'a', 'spec': WEB, 'user_data': 'x'}]}, 'members[0].user_data: '),
    ({'members': [{'name': 'a', 'count': 1001, 'spec': WEB}]}, 'members[0].count: '),
    ({'subgroups': {'all': []}}, 'subgroups.all: '),
    ({'members': [{'name': 'a', 'spec': {'resources': {'VCPU': 0}}}]}, 'spec.resources'),
]


def test_what_is_wrong_is_named_by_its_field(site: Site, gantt: Gantt, file: Any) -> None:
    for fields, why in WRONG:
        refused = gantt('group', 'plan', file(**fields))
        assert refused.code == 1 and why in refused.err
    assert site.world.store.claims.list_claims() == []


def test_a_member_needs_its_group_and_a_change_its_uuid(gantt: Gantt, file: Any) -> None:
    refused = gantt('select', *NEEDS, '--member', 'web')
    assert refused.code == 64 and '--member needs --group' in refused.err
    refused = gantt('group', 'change', file(uuid=None))
    assert refused.code == 64 and 'which group is to be changed?' in refused.err
    refused = gantt('group', 'heal', GROUP)
    assert refused.code == 1 and 'gantt.not_found' in refused.err
