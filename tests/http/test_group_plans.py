# SPDX-License-Identifier: Apache-2.0
"""Plans of groups in lists: a page is bounded whatever is asked for."""

import pytest

from gantt.core.filters.rules import RulesFilter
from gantt.http import policy_access
from gantt.http.handlers import group_plans
from tests.http.callers import as_caller
from tests.http.site import Site, fixed
from tests.planner import a_description, a_member, a_plan_request


@pytest.mark.parametrize(
    ('query', 'bound'), [('limit=1000', 'PLANS_MAX'), ('limit=1000&states=true', 'STATES_MAX')]
)
def test_a_page_of_plans_is_bounded_and_leads_to_the_next(monkeypatch, query, bound):
    site = Site()
    made = sorted(
        site.plans.place_group(a_plan_request(a_description(a_member('web')))).group
        for _ in range(3)
    )
    monkeypatch.setattr(group_plans, bound, 2)
    caller = as_caller(site, 'admin')
    first = caller.get(f'/v1/group-plans?{query}').json()
    assert [one['group'] for one in first['group_plans']] == made[:2]
    assert first['next_marker'] == made[1]
    rest = caller.get(f'/v1/group-plans?{query}&marker={made[1]}').json()
    assert [one['group'] for one in rest['group_plans']] == made[2:]
    assert rest['next_marker'] is None


def plan_at(caller, level, **body):
    """Ask for a plan with a policy at a level, dry."""
    policy = {'policy': 'affinity', 'level': level}
    group = a_description(a_member('web'), policies=[policy])
    body = {'request_id': fixed(5), 'group': group, 'dry_run': True, **body}
    return caller.post('/v1/group-plans', json=body)


@pytest.mark.parametrize('level', ['cell', 'metadata.secret'])
def test_a_member_of_a_project_learns_nothing_of_hosts_by_levels_of_a_plan(level):
    site = Site()
    with as_caller(site, 'member', 'reader') as member:
        refused = plan_at(member, level)
        known = plan_at(member, 'zone')
    with as_caller(site, 'admin') as admin:
        allowed = plan_at(admin, level)
    assert refused.status_code == 403, refused.text
    assert 'body.group.policies[0].level: expected one of' in refused.text
    # They went on to whoever plans, and there is nobody.
    assert (known.status_code, allowed.status_code) == (503, 503), (known.text, allowed.text)


def test_who_may_use_rules_names_levels_of_facts_that_these_may_be_about(monkeypatch):
    site = Site()
    rules = next(one for one in site.insights.pipeline.filters if isinstance(one, RulesFilter))
    monkeypatch.setattr(rules, 'user_facts', ['metadata'])
    monkeypatch.setattr(policy_access, 'RULES', 'gantt:group_plans:create')  # as of a site's file
    with as_caller(site, 'member', 'reader') as member:
        hidden, shown = plan_at(member, 'cell'), plan_at(member, 'metadata.rack')
    with as_caller(site, 'admin') as admin:
        operator = plan_at(admin, 'cell')
    assert hidden.status_code == 403, hidden.text
    assert 'body.group.policies[0].level: policies of users may not be about cell' in hidden.text
    assert (shown.status_code, operator.status_code) == (503, 503), (shown.text, operator.text)
