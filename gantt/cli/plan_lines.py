# SPDX-License-Identifier: Apache-2.0
"""Plans of groups for people: what was planned, what stands in the way, what is of each member."""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gantt.cli import text
from gantt.cli.text import TextColumn
from gantt.core.messages.policy_set import Policies, strength, written_out

STATES = ('planned', 'created', 'running', 'expired', 'lost')
#: A gap beyond says nothing.
GAP_MAX = 1.0
NOT_CHECKED = 'nothing was checked: the group has no plan, which says who its members are'
_HOLDS = 'no policy is violated by those who stand'
#: Names in one line.
_NAMES_MAX = 8


# -- what was answered -----------------------------------------------------------------
def answered(answer: dict[str, Any], width: int) -> list[str]:
    """The answer of who plans."""
    plan, is_dry = answer['plan'], answer.get('dry_run', False)
    stayed, released = answer.get('stayed', []), answer.get('released', [])
    lines = []
    if plan is None:
        lines.append('nobody has to be placed')
    else:
        lines += _planned(answer, plan, is_dry, width)
    if answer.get('ask_zones'):
        found = f'zones below are not asked for a plan: ask {", ".join(answer["ask_zones"])}'
        lines += ['', *text.wrap(found, width)]
    if stayed or released:
        lines.append('')
    if stayed:
        lines += text.wrap(f'staying where they are ({len(stayed)}): {names(stayed)}', width)
    if released:
        verb = 'that would be given back' if is_dry else 'given back'
        lines += text.wrap(f'places {verb} ({len(released)}): {names(released)}', width)
    lines += violations(answer.get('violated', []), width)
    if answer.get('what_if') is not None:
        lines += ['', *what_if(answer['what_if'], width)]
    lines.append('')
    if is_dry:
        return [*lines, 'dry run: nothing is claimed']
    lines.append(f'group {answer["group"]}, revision {answer["revision"]} of its plan')
    return [*lines, f'its members: gantt group show {answer["group"]}']


def _planned(answer: dict[str, Any], plan: dict[str, Any], is_dry: bool, width: int) -> list[str]:
    members = plan['members']
    hosts = len({one['host'] for one in members})
    verb = 'would place' if is_dry else 'placed'
    held = '' if is_dry else f', held for {text.age(answer["lease_seconds"])}'
    lines = [f'{verb} {text.count(len(members), "member")} on {text.count(hosts, "host")}{held}']
    lines += text.wrap(how_good(plan), width)
    if plan['missing']:
        lines += text.wrap(
            f'without a place ({len(plan["missing"])}): {names(plan["missing"])}', width
        )
    if plan['optional']:
        lines += text.wrap(f'left out, as they may be: {names(plan["optional"])}', width)
    lines += [f'given up: {cost(one)}' for one in plan['given_up']]
    lines += conflict(plan['conflict'], width)
    lines += would_do(plan['relaxations'])
    if answer.get('conflicts'):
        lines.append(f'planned {answer["attempts"]} times, as others were faster')
    if members:
        columns = [TextColumn('MEMBER', text.key('name')), TextColumn('HOST', text.key('host'))]
        if any(one['alternative'] for one in members):
            columns.append(TextColumn('AS', lambda r: alternative(r['alternative'])))
        lines += ['', *text.table(columns, members, width)]
    return lines


def what_if(found: Sequence[dict[str, Any]], width: int) -> list[str]:
    """What each policy costs: a line for each that the group was planned without."""
    if not found:
        return ['what if: there is no policy to leave out']
    rows = [one for one in found if one['outcome'] == 'planned']
    lines = ['what if a policy were left out:']
    if rows:
        lines += ['', *text.table(_WHAT_IF, rows, width)]
    lines += [
        f'leave out {one["line"]}: all that have to be placed could be'
        for one in rows
        if one['makes_feasible']
    ]
    for outcome, why in _NOT_PLANNED.items():
        left = [one['line'] for one in found if one['outcome'] == outcome]
        if left:
            lines += text.wrap(f'{why} ({len(left)}): {names(left)}', width)
    return lines


def how_good(plan: dict[str, Any]) -> str:
    """How good a plan is, as far as it is known; beside it, what sequential placing came to."""
    whole = len(plan['members']) + len(plan['missing'])
    found = f'{plan["status"]}, by {plan["by"]} in {plan["seconds"]:.1f} s'
    if plan['gap'] is not None and plan['status'] == 'feasible' and plan['gap'] <= GAP_MAX:
        found += f', score within {100 * plan["gap"]:.2g} % of what may be possible'
    if plan['proofs']:
        found += f' ({plan["proofs"]})'
    one_by_one = whole - plan['sequential']['missing']
    return f'{found}; one after the other {one_by_one} of {whole} would be placed'


def cost(one: dict[str, Any]) -> str:
    """What a plan does not keep."""
    price = f', cost {one["cost"]:g}' if one['cost'] else ''
    return f'{one["line"]} ({one["amount"]:g}{price})'


def alternative(number: int) -> str:
    """What a member was planned as."""
    return f'alternative {number}' if number else 'wanted'


def conflict(found: dict[str, Any] | None, width: int) -> list[str]:
    """Who cannot be placed together, and under what."""
    if not found:
        return []
    who = ', '.join(f'{n} {name}' if n > 1 else name for name, n in found['members'].items())
    minimal = '' if found['is_minimal'] else ' (there may be fewer of them)'
    lines = text.wrap(f'in conflict{minimal}: {who}', width)
    lines += [f'  under {line}' for _, line in found['policies']]
    for level in found.get('unknown_levels', ()):
        where = f'no host says its {level}: it is part of its location ([compute] location)'
        lines += text.wrap(f'  {where}', width, '    ')
    return lines


def would_do(relaxations: Iterable[dict[str, Any]]) -> list[str]:
    """What would let all of the rest be placed, each by itself."""
    return [f'would do: {one["line"]}' for one in relaxations]


def violations(found: Iterable[dict[str, Any]], width: int) -> list[str]:
    """Policies that members violate where they are, a line each."""
    lines = []
    for one in found:
        weight = '' if one['is_hard'] else ', soft'
        who = f': only a move of {names(one["members"], "or")} could mend it'
        lines += text.wrap(f'violated{weight}: {one["line"]}{who}', width)
    return lines


def names(found: Sequence[str], last: str = 'and') -> str:
    """Names in one line, as many as have room."""
    if len(found) > _NAMES_MAX:
        return f'{", ".join(found[:_NAMES_MAX])} and {len(found) - _NAMES_MAX} more'
    if len(found) < 2:
        return ''.join(found)
    return f'{", ".join(found[:-1])} {last} {found[-1]}'


def explained(plan: dict[str, Any], width: int) -> list[str]:
    """What was decided when a group was planned last: each goal, what it cost, what was proven."""
    decided = plan['decided'] and plan['decided']['plan']
    lines = [f'group {plan["group"]}, revision {plan["revision"]} of its plan']
    if plan.get('problem'):
        return [*lines, *text.wrap(plan['problem'], width)]
    lines += [f'  policy {line}' for line in policies_in_words(plan['description'])]
    if not decided:
        return [*lines, 'nobody had to be placed by it']
    lines += ['', *text.wrap(how_good(decided), width)]
    rows = _goals(decided)
    lines += ['', *text.table(_GOALS, rows, width), '']
    if decided['given_up']:
        lines += [f'given up: {cost(one)}' for one in decided['given_up']]
    else:
        lines.append('no policy and no rule was given up')
    if decided['size']:
        size = decided['size']
        lines += text.wrap(
            f'{size["units"]} members of {text.count(size["kinds"], "kind")}, '
            f'{size["eligible"]} of {text.count(size["hosts"], "host")} were eligible',
            width,
        )
    made = plan['decided']
    if made.get('conflicts'):
        lines.append(f'planned {made["attempts"]} times:')
        lines += [f'  {line}' for line in made['conflicts']]
    lines += [f'request  {plan["request_id"]}', f'decided  {text.age(plan["age_seconds"])} ago']
    return [*lines, f'its members: gantt group show {plan["group"]}']


def checked(plan: dict[str, Any], width: int) -> list[str]:
    """Whether a plan holds, with its members where they are."""
    if plan.get('problem'):
        return text.wrap(plan['problem'], width)
    stands = sum(one['state'] not in ('expired', 'lost') for one in plan['members'])
    lines = [
        f'group {plan["group"]}, revision {plan["revision"]} of its plan: {stands} of '
        f'{text.count(len(plan["members"]), "member")} have a place'
    ]
    return [*lines, *(violations(plan['violated'], width) or [_HOLDS])]


def policies_in_words(description: dict[str, Any]) -> list[str]:
    """A line for each policy and whom it is about."""
    policies = msgspec.convert(description.get('policies', []), Policies)
    return [
        f'{one.line(subject)}{strength(one)}'
        for one in written_out(policies)
        for subject in one.subjects
    ]


#: Why there is no plan without a policy.
_NOT_PLANNED = {'no_time': 'no time was left for', 'not_looked_at': 'not looked at'}
_WHAT_IF = (
    TextColumn('WITHOUT', text.key('line'), least=20),
    TextColumn('PLACED', lambda r: _of_all(r['placed'], r['missing']), right=True),
    TextColumn('SCORE', lambda r: _change(r['score_change']), right=True),
    TextColumn('WEIGHT', lambda r: _change(r['weight_change']), right=True),
    TextColumn('ELSEWHERE', lambda r: str(sum(r['moved'].values())), right=True),
    TextColumn('KEPT', lambda r: 'yes' if r['keeps_it'] else 'no'),
    TextColumn('STATUS', text.key('status')),
)
_GOALS = (
    TextColumn('GOAL', text.key('goal')),
    TextColumn('REACHED', text.key('reached'), right=True),
    TextColumn('ONE BY ONE', text.key('sequential'), right=True),
    TextColumn('PROVEN', lambda r: 'yes' if r['proven'] else 'no'),
)


def _goals(decided: dict[str, Any]) -> list[dict[str, Any]]:
    """What counts before the score, the first first, then the score."""
    rows: list[dict[str, Any]] = []
    reached, sequential = decided['goals'], decided['sequential']
    steps = len(reached['steps'])
    names_of = {
        'missing': 'members without a place',
        'optional': 'left out, as they may be',
        'steps': 'kept no step',
        'alternatives': 'alternatives taken',
        'weight': 'weight of soft policies',
    }
    for key, name in names_of.items():
        for at in range(steps) if key == 'steps' else (None,):
            rows.append(
                {
                    'goal': name if at is None else f'{name} {steps - at}',
                    'reached': _of(reached[key], at, key),
                    'sequential': _of(sequential[key], at, key),
                    'proven': len(rows) < decided['proven'],
                }
            )
    is_optimal = decided['status'] == 'optimal'
    scores = {'reached': -reached['lack'], 'sequential': -sequential['lack']}
    texts = {name: f'{value:.4g}' for name, value in scores.items()}
    rows.append({'goal': 'score', **texts, 'proven': is_optimal})
    return rows


def _of_all(placed: int, missing: int) -> str:
    return f'{placed} of {placed + missing}' if missing else str(placed)


def _change(value: float | None) -> str:
    """By how much something changes; what is no more than noise of the sum is none."""
    if value is None:
        return '-'
    return '0' if abs(value) < 1e-9 else f'{value:+.4g}'


def _of(value: Any, at: int | None, key: str) -> str:
    found = value if at is None else value[at]
    return f'{found / 1000:g}' if key == 'weight' else str(found)


# -- what there is -----------------------------------------------------------------------
def of_group(found: dict[str, Any]) -> list[str]:
    """A server group with its rule, a line for each policy."""
    named = f' ({found["name"]})' if found['name'] else ''
    lines = [f'server group {found["uuid"]}{named}']
    if found['project_id']:
        lines.append(f'project {found["project_id"]}')
    if not found.get('policies'):
        most = found['max_per_host']
        counted = f', at most {most} on a host' if found['policy'] == 'anti-affinity' else ''
        lines.append(f'policy {found["policy"]}{counted}')
    else:
        lines += [f'policy {line}' for line in policies_in_words(found)]
    subgroups = found.get('subgroups', {})
    return [*lines, *(f'subgroup {name}: {", ".join(of)}' for name, of in subgroups.items())]


def consumers(found: Sequence[str]) -> list[str]:
    """Those of a group that has no plan."""
    if not found:
        return ['nobody is in it']
    return [f'{text.count(len(found), "member")} with a live claim', *(f'  {one}' for one in found)]


def of_plan(plan: dict[str, Any], width: int) -> list[str]:
    """A plan with what has become of its members."""
    left = plan['lease_seconds']
    held = f'held for {text.age(left)}' if left > 0 else 'not held any more'
    lines = text.wrap(
        f'plan, revision {plan["revision"]}, made {text.age(plan["age_seconds"])} ago by request '
        f'{plan["request_id"]}; places that no create has are {held}',
        width,
    )
    if plan.get('problem'):
        lines += text.wrap(plan['problem'], width)
    decided = plan['decided'] and plan['decided']['plan']
    if decided:
        lines += text.wrap(how_good(decided), width)
        lines += [f'given up: {cost(one)}' for one in decided['given_up']]
    counts = states(collections.Counter(one['state'] for one in plan['members']))
    lines.append(f'{text.count(len(plan["members"]), "member")}: {counts}')
    if plan['members']:
        lines += ['', *text.table(_columns(plan['members']), plan['members'], width)]
    others = plan['others']
    if others:
        lines += text.wrap(f'{len(others)} more of the group: {names(others)}', width)
    if plan['violated'] is not None:
        found = violations(plan['violated'], width)
        lines += ['', *(found or [_HOLDS])]
    return lines


def states(counts: Mapping[str, int]) -> str:
    """How many members are so, in the order of a member's life."""
    return ', '.join(f'{counts[one]} {one}' for one in STATES if counts.get(one)) or 'none'


def _columns(members: Sequence[dict[str, Any]]) -> list[TextColumn]:
    return [
        TextColumn('MEMBER', text.key('name')),
        TextColumn('STATE', text.key('state')),
        TextColumn('HOST', text.key('host'), least=10),
        *(TextColumn(level.upper(), _domain(level), least=8) for level in narrowest(members)),
        TextColumn(
            'LEASE',
            lambda r: '-' if r['lease_seconds'] is None else text.age(r['lease_seconds']),
            right=True,
            by='lease_seconds',
        ),
    ]


def _domain(level: str) -> Any:
    return lambda row: row['levels'].get(level) or '-'


def narrowest(members: Iterable[dict[str, Any]]) -> list[str]:
    """Levels that say something new: a domain within another one has that in its name."""
    found = [one['levels'] for one in members if one['levels']]
    levels = list(dict.fromkeys(level for of in found for level in of))

    def is_within(inner: str, outer: str) -> bool:
        both = [of for of in found if inner in of and outer in of]
        return bool(both) and all(of[inner].startswith(f'{of[outer]}.') for of in both)

    return [one for one in levels if not any(is_within(other, one) for other in levels)]
