# SPDX-License-Identifier: Apache-2.0
"""Rules through the whole scheduler: what callers are told, and what is explained later."""

import httpx2 as httpx
import pytest

from gantt import exceptions
from gantt.core.messages import base
from gantt.core.messages.request import Flavor, RequestSpec, SelectDestinations
from gantt.core.records.decision import Answer
from gantt.rpc import wire
from tests.http.site import Site, fixed


@pytest.fixture
def site() -> Site:
    return Site()


def ask(site: Site, *rules: str, number: int = 1, count: int = 1, **hints: list[str]) -> Answer:
    """Place by rules; decisions are kept in the order of asking."""
    return site.client.select_destinations(
        SelectDestinations(
            request_id=fixed(number),
            spec=RequestSpec(resources={'VCPU': 2}, hints={'rules': list(rules), **hints}),
            consumers=[fixed(number * 1000 + i) for i in range(count)],
        )
    )


def test_a_perfect_match_says_so_by_saying_nothing(site):
    answer = ask(site, 'location in "hall.r1"', 'drop 1: "CUSTOM_FAST" in traits')
    assert answer.selections[0][0].host == 'cmp-1'
    assert (answer.level, answer.given_up) == (0, [])


def test_the_answer_names_the_level_and_what_was_given_up(site):
    answer = ask(site, 'drop 1: "CUSTOM_SLOW" in traits', 'drop 2: location in "hall.r0"')
    assert answer.selections[0][0].host in ('cmp-2', 'cmp-4')
    assert answer.level == 1
    assert answer.given_up == ['drop 1: "CUSTOM_SLOW" in traits (user)']
    # A repeat gets the stored answer, with all of it.
    again = ask(site, 'drop 1: "CUSTOM_SLOW" in traits', 'drop 2: location in "hall.r0"')
    assert again == answer
    explanation = site.insights.explain(answer.decision_id)
    assert (explanation.members[0].level, explanation.members[0].given_up) == (1, answer.given_up)
    assert 'given up: up to step 1: drop 1: "CUSTOM_SLOW" in traits (user)' in explanation.lines


def test_members_share_what_is_there_and_the_answer_has_the_lowest_level(site):
    answer = ask(site, 'drop 1: name == "cmp-5"', count=4)
    assert [s[0].host for s in answer.selections].count('cmp-5') == 2
    assert answer.level == 1


def test_a_refusal_names_the_rules_that_contradict_each_other(site):
    with pytest.raises(exceptions.NoValidHost) as caught:
        ask(site, 'location in "hall.r1"', 'enabled', 'location in "hall.r0"', number=7)
    sentence = (
        'no host could ever meet all of these rules: '
        'location in "hall.r1" (user); location in "hall.r0" (user)'
    )
    assert sentence in caught.value.message
    decision_id = caught.value.kwargs['decision_id']
    explanation = site.insights.explain(decision_id)
    assert explanation.contradiction.rules == [
        'location in "hall.r1" (user)',
        'location in "hall.r0" (user)',
    ]
    assert site.insights.explain(decision_id, public=True).contradiction is None


def test_a_rule_that_is_not_understood_is_refused_with_its_place(site):
    with pytest.raises(
        exceptions.Refused, match='character 15: free is a number: expected'
    ) as caught:
        ask(site, 'enabled', 'free.VCPU >=  "2"')
    assert 'request.spec.hints.rules[1]' in caught.value.message


def test_a_location_is_a_hint_from_either_end(site):
    assert ask(site, location=['hall.r0.cmp-4']).selections[0][0].host == 'cmp-4'
    answer = ask(site, number=2, location=['r0.hall'])
    assert answer.selections[0][0].host in ('cmp-2', 'cmp-4')
    assert ask(site, number=3, location=['x', 'cmp-5.r1.hall']).selections[0][0].host == 'cmp-5'
    with pytest.raises(exceptions.NoValidHost, match=r"not in \['cellar'\]"):
        ask(site, number=4, location=['cellar'])
    with pytest.raises(exceptions.Refused, match=r'hints\.location\[0\]: expected a place'):
        ask(site, number=5, location=['hall..r1'])


def test_what_a_host_meets_is_told_rule_by_rule(site):
    answer = ask(site, 'drop 1: name == "cmp-9"', '"HW_CPU_X86_AVX2" in traits')
    steps = site.insights.explain(answer.decision_id, 'cmp-3').host_filters
    [step] = [step for step in steps if step.filter == 'RulesFilter']
    assert step.passes
    assert step.facts == [
        'meets "HW_CPU_X86_AVX2" in traits (user)',
        'does not meet drop 1: name == "cmp-9" (user)',
    ]


SECRET = 'secret-7'


def of_operator(site: Site, *rules: str, number: int, **flavor: str) -> Answer:
    """Place with rules of a flavor."""
    extra = {f'rule:{name}': text for name, text in flavor.items()}
    return site.client.select_destinations(
        SelectDestinations(
            request_id=fixed(number),
            spec=RequestSpec(
                resources={'VCPU': 2},
                flavor=Flavor(extra_specs=extra),
                hints={'rules': list(rules)} if rules else {},
            ),
            consumers=[fixed(number * 1000)],
        )
    )


def test_who_asks_is_told_which_rule_of_the_operator_was_given_up_not_what_it_says(site):
    kept = of_operator(site, number=1, tier=f'drop 1: name == "{SECRET}"')
    result, _ = wire.answer(kept)
    assert result.given_up == ["the operator's rule tier of the flavor"]
    assert SECRET not in str(base.to_builtins(result))
    with httpx.Client(
        transport=httpx.WSGITransport(site.app), base_url='http://localhost'
    ) as caller:
        shown = caller.get(f'/v1/requests/{kept.request_id}').json()
    assert shown['answer']['given_up'] == result.given_up
    explained = site.insights.explain(kept.decision_id)
    assert explained.members[0].given_up == [f'drop 1: name == "{SECRET}" (flavor rule:tier)']
    assert any(SECRET in line for line in explained.lines)
    public = site.insights.explain(kept.decision_id, public=True)
    assert public.members[0].given_up == result.given_up
    assert SECRET not in str(base.to_builtins(public))


def test_a_refusal_tells_no_text_of_the_operators_rules_and_keeps_it(site):
    with pytest.raises(exceptions.NoValidHost) as caught:
        of_operator(
            site,
            'name == "cmp-1"',
            number=2,
            tier=f'name in ["{SECRET}", "cmp-2"]',
            other=f'name != "{SECRET}"',
        )
    message = caught.value.message
    assert "against the operator's rule tier of the flavor" in message
    assert 'the operator\'s rule tier of the flavor; name == "cmp-1" (user)' in message
    assert SECRET not in message
    explanation = site.insights.explain(caught.value.kwargs['decision_id'])
    assert SECRET not in explanation.reason
    kept = f'name in ["{SECRET}", "cmp-2"] (flavor rule:tier)'
    assert kept in explanation.contradiction.rules
    assert kept in ' '.join(' '.join(explanation.lines).split())
    # The funnel has it with its count.
    assert any(f'against the rule {kept}' in step.reason for step in explanation.members[0].funnel)
