# SPDX-License-Identifier: Apache-2.0
"""Plans of groups as text for people: placements, conflicts, and the state of each member."""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from gantt.cli import text
from gantt.cli.text import TextColumn
from gantt.core.messages.policy_set import (
    POLICIES_POLICY,
    Policies,
    full_policies,
    strength,
    unknown_level_line,
)

STATES = ('planned', 'created', 'running', 'expired', 'lost')
#: The largest gap that is shown.
GAP_MAX = 1.0
NOT_CHECKED_TEXT = 'nothing was checked: the group has no plan, which says who its members are'
_NO_VIOLATION = 'no policy is violated by those who stand'
#: Names in one line.
_NAMES_MAX = 8


# -- answers ---------------------------------------------------------------------------
def answer_lines(answer: dict[str, Any], width: int) -> list[str]:
    """Return lines for the planner's answer."""
    plan, is_dry = answer['plan'], answer.get('dry_run', False)
    stayed, released = answer.get('stayed', []), answer.get('released', [])
    lines = []
    if plan is None:
        lines.append('nobody has to be placed')
    else:
        lines += _plan_summary_lines(answer, plan, is_dry, width)
    if answer.get('zones_not_queried'):
        zones = ', '.join(answer['zones_not_queried'])
        hint = f'child zones are not queried for a plan: request it at {zones}'
        lines += ['', *text.wrap(hint, width)]
    if stayed or released:
        lines.append('')
    if stayed:
        lines += text.wrap(f'staying where they are ({len(stayed)}): {joined_names(stayed)}', width)
    if released:
        verb = 'that would be given back' if is_dry else 'given back'
        lines += text.wrap(f'places {verb} ({len(released)}): {joined_names(released)}', width)
    lines += violation_lines(answer.get('violated', []), width)
    if answer.get('what_if') is not None:
        lines += ['', *what_if_lines(answer['what_if'], width)]
    lines.append('')
    if is_dry:
        return [*lines, 'dry run: nothing is claimed']
    lines.append(f'group {answer["group"]}, revision {answer["revision"]} of its plan')
    return [*lines, f'its members: gantt group show {answer["group"]}']


def _plan_summary_lines(
    answer: dict[str, Any], plan: dict[str, Any], is_dry: bool, width: int
) -> list[str]:
    members = plan['members']
    hosts = len({member['host'] for member in members})
    verb = 'would place' if is_dry else 'placed'
    held = '' if is_dry else f', held for {text.age_text(answer["lease_seconds"])}'
    lines = [
        f'{verb} {text.counted_noun(len(members), "member")} on '
        f'{text.counted_noun(hosts, "host")}{held}'
    ]
    lines += text.wrap(quality_text(plan), width)
    if plan['missing']:
        lines += text.wrap(
            f'without a place ({len(plan["missing"])}): {joined_names(plan["missing"])}', width
        )
    if plan['optional']:
        lines += text.wrap(f'left out, as they may be: {joined_names(plan["optional"])}', width)
    lines += [f'given up: {cost_text(given_up_policy)}' for given_up_policy in plan['given_up']]
    lines += conflict_lines(plan['conflict'], width)
    lines += relaxation_lines(plan['relaxations'])
    if answer.get('conflicts'):
        lines.append(f'planned {answer["attempts"]} times, as others were faster')
    if members:
        columns = [
            TextColumn('MEMBER', text.value_of_key('name')),
            TextColumn('HOST', text.value_of_key('host')),
        ]
        if any(member['alternative'] for member in members):
            columns.append(TextColumn('AS', lambda r: alternative_text(r['alternative'])))
        lines += ['', *text.table(columns, members, width)]
    return lines


def what_if_lines(found: Sequence[dict[str, Any]], width: int) -> list[str]:
    """Return the cost of each policy: a line for each that the group was planned without."""
    if not found:
        return ['what if: there is no policy to leave out']
    rows = [variant for variant in found if variant['outcome'] == 'planned']
    lines = ['what if a policy were left out:']
    if rows:
        lines += ['', *text.table(_WHAT_IF_COLUMNS, rows, width)]
    lines += [
        f'leave out {variant["line"]}: all that have to be placed could be'
        for variant in rows
        if variant['makes_feasible']
    ]
    for outcome, why in _NOT_PLANNED_TEXTS.items():
        lines_left = [variant['line'] for variant in found if variant['outcome'] == outcome]
        if lines_left:
            lines += text.wrap(f'{why} ({len(lines_left)}): {joined_names(lines_left)}', width)
    return lines


def quality_text(plan: dict[str, Any]) -> str:
    """Return the known quality of a plan, next to the result of sequential placement."""
    total = len(plan['members']) + len(plan['missing'])
    summary = f'{plan["status"]}, by {plan["method"]} in {plan["seconds"]:.1f} s'
    if plan['gap'] is not None and plan['status'] == 'feasible' and plan['gap'] <= GAP_MAX:
        summary += f', score within {100 * plan["gap"]:.2g} % of what may be possible'
    if plan['proofs']:
        summary += f' ({plan["proofs"]})'
    one_by_one = total - plan['sequential']['missing']
    return f'{summary}; one after the other {one_by_one} of {total} would be placed'


def cost_text(one: dict[str, Any]) -> str:
    """Return a policy that a plan gives up, with its cost."""
    price = f', cost {one["cost"]:g}' if one['cost'] else ''
    return f'{one["line"]} ({one["amount"]:g}{price})'


def alternative_text(number: int) -> str:
    """Return the alternative that a member was planned as."""
    return f'alternative {number}' if number else 'wanted'


def conflict_lines(found: dict[str, Any] | None, width: int) -> list[str]:
    """Return lines for the members that conflict, and the policies that they conflict under."""
    if not found:
        return []
    members_text = ', '.join(
        f'{count} {name}' if count > 1 else name for name, count in found['members'].items()
    )
    minimal = '' if found['is_minimal'] else ' (there may be fewer of them)'
    lines = text.wrap(f'in conflict{minimal}: {members_text}', width)
    lines += [f'  under {line}' for _, line in found['policies']]
    for level in found.get('unknown_levels', ()):
        lines += text.wrap(f'  {unknown_level_line(level)}', width, '    ')
    return lines


def relaxation_lines(relaxations: Iterable[dict[str, Any]]) -> list[str]:
    """Return lines for relaxations, each of which lets all remaining members be placed."""
    return [f'would do: {relaxation["line"]}' for relaxation in relaxations]


def violation_lines(found: Iterable[dict[str, Any]], width: int) -> list[str]:
    """Return lines for policies that members violate where they are."""
    lines = []
    for violation in found:
        weight = '' if violation['is_hard'] else ', soft'
        remedy = f': only a move of {joined_names(violation["members"], "or")} could mend it'
        lines += text.wrap(f'violated{weight}: {violation["line"]}{remedy}', width)
    return lines


def joined_names(found: Sequence[str], last: str = 'and') -> str:
    """Join names in one line, as many as have room."""
    if len(found) > _NAMES_MAX:
        return f'{", ".join(found[:_NAMES_MAX])} and {len(found) - _NAMES_MAX} more'
    if len(found) < 2:
        return ''.join(found)
    return f'{", ".join(found[:-1])} {last} {found[-1]}'


def explanation_lines(plan: dict[str, Any], width: int) -> list[str]:
    """Return lines for the last decision on a group: each goal's cost and proof."""
    decided = plan['decided'] and plan['decided']['plan']
    lines = [f'group {plan["group"]}, revision {plan["revision"]} of its plan']
    if plan.get('problem'):
        return [*lines, *text.wrap(plan['problem'], width)]
    lines += [f'  policy {line}' for line in policies_in_words(plan['description'])]
    if not decided:
        return [*lines, 'nobody had to be placed by it']
    lines += ['', *text.wrap(quality_text(decided), width)]
    rows = _goal_rows(decided)
    lines += ['', *text.table(_GOAL_COLUMNS, rows, width), '']
    if decided['given_up']:
        lines += [f'given up: {cost_text(policy)}' for policy in decided['given_up']]
    else:
        lines.append('no policy and no rule was given up')
    if decided['size']:
        size = decided['size']
        lines += text.wrap(
            f'{size["units"]} members of {text.counted_noun(size["kinds"], "kind")}, '
            f'{size["eligible"]} of {text.counted_noun(size["hosts"], "host")} were eligible',
            width,
        )
    decision = plan['decided']
    if decision.get('conflicts'):
        lines.append(f'planned {decision["attempts"]} times:')
        lines += [f'  {line}' for line in decision['conflicts']]
    lines += [
        f'request  {plan["request_id"]}',
        f'decided  {text.age_text(plan["age_seconds"])} ago',
    ]
    return [*lines, f'its members: gantt group show {plan["group"]}']


def check_lines(plan: dict[str, Any], width: int) -> list[str]:
    """Return lines for a check of a plan with its members where they are."""
    if plan.get('problem'):
        return text.wrap(plan['problem'], width)
    stands = sum(member['state'] not in ('expired', 'lost') for member in plan['members'])
    lines = [
        f'group {plan["group"]}, revision {plan["revision"]} of its plan: {stands} of '
        f'{text.counted_noun(len(plan["members"]), "member")} have a place'
    ]
    return [*lines, *(violation_lines(plan['violated'], width) or [_NO_VIOLATION])]


def policies_in_words(description: dict[str, Any]) -> list[str]:
    """Return a line for each policy and subject."""
    policies = msgspec.convert(description.get('policies', []), Policies)
    return [
        f'{policy.line(subject)}{strength(policy)}'
        for policy in full_policies(policies)
        for subject in policy.subjects
    ]


#: Outcome of a policy without a plan -> text.
_NOT_PLANNED_TEXTS = {'no_time': 'no time was left for', 'not_looked_at': 'not looked at'}
_WHAT_IF_COLUMNS = (
    TextColumn('WITHOUT', text.value_of_key('line'), min_width=20),
    TextColumn('PLACED', lambda r: _placed_of_all(r['placed'], r['missing']), align_right=True),
    TextColumn('SCORE', lambda r: _change_text(r['score_change']), align_right=True),
    TextColumn('WEIGHT', lambda r: _change_text(r['weight_change']), align_right=True),
    TextColumn('ELSEWHERE', lambda r: str(sum(r['moved'].values())), align_right=True),
    TextColumn('KEPT', lambda r: 'yes' if r['keeps_it'] else 'no'),
    TextColumn('STATUS', text.value_of_key('status')),
)
_GOAL_COLUMNS = (
    TextColumn('GOAL', text.value_of_key('goal')),
    TextColumn('REACHED', text.value_of_key('reached'), align_right=True),
    TextColumn('ONE BY ONE', text.value_of_key('sequential'), align_right=True),
    TextColumn('PROVEN', lambda r: 'yes' if r['proven'] else 'no'),
)


def _goal_rows(decided: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each goal in order of priority, then one for the score."""
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
                    'reached': _goal_value(reached[key], at, key),
                    'sequential': _goal_value(sequential[key], at, key),
                    'proven': len(rows) < decided['proven'],
                }
            )
    is_optimal = decided['status'] == 'optimal'
    scores = {'reached': -reached['lack'], 'sequential': -sequential['lack']}
    texts = {name: f'{value:.4g}' for name, value in scores.items()}
    rows.append({'goal': 'score', **texts, 'proven': is_optimal})
    return rows


def _placed_of_all(placed: int, missing: int) -> str:
    return f'{placed} of {placed + missing}' if missing else str(placed)


def _change_text(value: float | None) -> str:
    """Format a change; a change within rounding noise is 0."""
    if value is None:
        return '-'
    return '0' if abs(value) < 1e-9 else f'{value:+.4g}'


def _goal_value(value: Any, at: int | None, key: str) -> str:
    number = value if at is None else value[at]
    return f'{number / 1000:g}' if key == 'weight' else str(number)


# -- stored plans ------------------------------------------------------------------------
def group_lines(found: dict[str, Any]) -> list[str]:
    """Return lines for a server group with its rule, one for each policy."""
    named = f' ({found["name"]})' if found['name'] else ''
    lines = [f'server group {found["uuid"]}{named}']
    if found['project_id']:
        lines.append(f'project {found["project_id"]}')
    if found['policy'] == POLICIES_POLICY and not found['policies']:
        lines.append('no policy')
    elif not found.get('policies'):
        max_per_host = found['max_per_host']
        counted = (
            f', at most {max_per_host} on a host' if found['policy'] == 'anti-affinity' else ''
        )
        lines.append(f'policy {found["policy"]}{counted}')
    else:
        lines += [f'policy {line}' for line in policies_in_words(found)]
    subgroups = found.get('subgroups', {})
    return [
        *lines,
        *(f'subgroup {name}: {", ".join(members)}' for name, members in subgroups.items()),
    ]


def consumer_lines(found: Sequence[str]) -> list[str]:
    """Return lines for the consumers of a group without a plan."""
    if not found:
        return ['nobody is in it']
    return [
        f'{text.counted_noun(len(found), "member")} with a live claim',
        *(f'  {consumer}' for consumer in found),
    ]


def plan_lines(plan: dict[str, Any], width: int) -> list[str]:
    """Return lines for a plan with the states of its members."""
    lease_seconds = plan['lease_seconds']
    held = f'held for {text.age_text(lease_seconds)}' if lease_seconds > 0 else 'not held any more'
    lines = text.wrap(
        f'plan, revision {plan["revision"]}, made {text.age_text(plan["age_seconds"])} ago '
        f'by request {plan["request_id"]}; places that no create has are {held}',
        width,
    )
    if plan.get('problem'):
        lines += text.wrap(plan['problem'], width)
    decided = plan['decided'] and plan['decided']['plan']
    if decided:
        lines += text.wrap(quality_text(decided), width)
        lines += [f'given up: {cost_text(policy)}' for policy in decided['given_up']]
    counts = states_text(collections.Counter(member['state'] for member in plan['members']))
    lines.append(f'{text.counted_noun(len(plan["members"]), "member")}: {counts}')
    if plan['members']:
        lines += ['', *text.table(_member_columns(plan['members']), plan['members'], width)]
    others = plan['others']
    if others:
        lines += text.wrap(f'{len(others)} more of the group: {joined_names(others)}', width)
    if plan['violated'] is not None:
        violated = violation_lines(plan['violated'], width)
        lines += ['', *(violated or [_NO_VIOLATION])]
    return lines


def states_text(counts: Mapping[str, int]) -> str:
    """Return the counts of members by state, in the order of a member's life."""
    return ', '.join(f'{counts[state]} {state}' for state in STATES if counts.get(state)) or 'none'


def _member_columns(members: Sequence[dict[str, Any]]) -> list[TextColumn]:
    return [
        TextColumn('MEMBER', text.value_of_key('name')),
        TextColumn('STATE', text.value_of_key('state')),
        TextColumn('HOST', text.value_of_key('host'), min_width=10),
        *(
            TextColumn(level.upper(), _domain_column(level), min_width=8)
            for level in narrowest_levels(members)
        ),
        TextColumn(
            'LEASE',
            lambda r: '-' if r['lease_seconds'] is None else text.age_text(r['lease_seconds']),
            align_right=True,
            sort_key='lease_seconds',
        ),
    ]


def _domain_column(level: str) -> Any:
    return lambda row: row['levels'].get(level) or '-'


def narrowest_levels(members: Iterable[dict[str, Any]]) -> list[str]:
    """Return the levels whose domains are not in the names of narrower domains."""
    levels_of_members = [member['levels'] for member in members if member['levels']]
    levels = list(dict.fromkeys(level for domains in levels_of_members for level in domains))

    def is_within(inner: str, outer: str) -> bool:
        both = [domains for domains in levels_of_members if inner in domains and outer in domains]
        return bool(both) and all(
            domains[inner].startswith(f'{domains[outer]}.') for domains in both
        )

    return [level for level in levels if not any(is_within(other, level) for other in levels)]
