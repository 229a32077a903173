# SPDX-License-Identifier: Apache-2.0
"""What would help: a host that is disabled, down or over-full, and that would fit otherwise."""

import pytest

from gantt.core.messages.request import GroupRef, Policy
from gantt.core.placement.place import place
from gantt.core.records.decision import Outcome
from gantt.core.records.decision_codec import StoredDecision
from gantt.insights.explain import explaining
from gantt.plugin_loader import load_pipeline
from tests.core.builders import NOW, a_host, a_request, a_table, an_id

LONG_AGO = NOW - 900
BAD = {
    'disabled': {'disabled': 'repair'},
    'down': {'reported_at': LONG_AGO},
    'over': {'over_committed': True},
    'both': {'disabled': 'repair', 'reported_at': LONG_AGO},
}
CASES = [
    (['disabled'], 'fits on 1 host if cmp-9 is enabled'),
    (['down'], 'fits on 1 host once cmp-9 reports again'),
    (['over'], 'fits on 1 host once cmp-9 is no longer over-committed'),
    (['both'], 'fits on 1 host once cmp-9 is enabled and reports again'),
    (['disabled'] * 2, 'fits on 1 host if cmp-9 is enabled, on 2 with cmp-10 as well'),
    (['disabled'] * 3, 'fits on 1 host if cmp-9 is enabled, on 3 with cmp-10 and cmp-11 as well'),
    (
        ['disabled'] * 7,
        'fits on 1 host if cmp-9 is enabled, on 7 with cmp-10, cmp-11, cmp-12, '
        'cmp-13 and 2 more as well',
    ),
    (
        ['both', 'down', 'disabled'],
        'fits on 1 host if cmp-11 is enabled; fits on 1 host once '
        'cmp-10 reports again; fits on 1 host once cmp-9 is enabled and reports again',
    ),
]


def decided(hosts, request):
    table = a_table(*hosts)
    return place(table, request, load_pipeline(), seed=1, decision_id=an_id(1, 8))


def lines_of(decision, request):
    explanation = explaining.explain(StoredDecision(decision, request), NOW, NOW)
    return explanation, [line for line in explanation.lines if line.startswith('nearest')]


def full(number):
    """A host without room."""
    return a_host(number, used={'VCPU': 16})


@pytest.mark.parametrize(('bad', 'said'), CASES, ids=range(len(CASES)))
def test_hosts_that_would_do_are_named_with_what_has_to_become_of_them(bad, said):
    hosts = [full(1), *(a_host(9 + i, **BAD[kind]) for i, kind in enumerate(bad))]
    request = a_request(resources={'VCPU': 2})
    decision = decided(hosts, request)
    assert decision.outcome is Outcome.NO_VALID_HOST
    assert said in decision.nearest
    explanation, lines = lines_of(decision, request)
    assert said in explanation.nearest
    assert said.split(' if ')[0].split(' once ')[0] in ' '.join(lines)


@pytest.mark.parametrize('kind', sorted(BAD))
def test_what_is_said_to_help_helps(kind):
    """Each host that is named does alone, once it is as it was said."""
    request = a_request(resources={'VCPU': 2})
    hosts = [full(1), a_host(9, **BAD[kind]), a_host(10, **BAD[kind])]
    assert 'on 2 with cmp-10 as well' in decided(hosts, request).nearest[0]
    for well in (9, 10):
        mended = [a_host(well) if host.name == f'cmp-{well}' else host for host in hosts]
        assert decided(mended, request).members[0].selection.host == f'cmp-{well}'


def test_a_host_that_would_not_fit_either_way_is_not_named():
    hosts = [full(1), a_host(9, disabled='repair', used={'VCPU': 16})]
    decision = decided(hosts, a_request(resources={'VCPU': 2}))
    assert not any('cmp-9 is enabled' in line for line in decision.nearest)


def test_a_forced_host_need_not_report():
    host = a_host(9, disabled='repair', reported_at=LONG_AGO)
    decision = decided([host], a_request(resources={'VCPU': 2}, force_hosts=['cmp-9']))
    assert decision.nearest == ['fits on 1 host if cmp-9 is enabled']


def test_of_several_members_it_is_said_whom_it_helps():
    group = GroupRef(uuid=an_id(1, 6), policy=Policy.ANTI_AFFINITY)
    hosts = [a_host(1), a_host(9, disabled='repair'), full(2)]
    request = a_request(2, resources={'VCPU': 2}, group=group)
    explanation, lines = lines_of(decided(hosts, request), request)
    assert explanation.nearest[0] == 'fits with one member fewer'
    # Both are placed once the second is: nothing more to say.
    assert 'nearest: fits on 1 host if cmp-9 is enabled' in lines
    request = a_request(3, resources={'VCPU': 2}, group=group)
    explanation, lines = lines_of(decided(hosts, request), request)
    assert 'fits with 2 members fewer' in explanation.nearest[0]
    assert 'nearest: fits with 2 members fewer' in lines
    assert 'nearest: member 2 of 3 fits on 1 host if cmp-9 is enabled' in lines
