# SPDX-License-Identifier: Apache-2.0
"""What a refusal says would fit does: each sentence is followed, and the request made again."""

import re

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gantt import plugin_loader
from gantt.core.messages.request import GroupRef, Policy, RequestSpec
from gantt.core.placement.evaluation import FilterRun
from gantt.core.records.decision import PASSED_VERDICT, Outcome
from tests.core.builders import NOW, a_change, a_guest, a_host, a_request, a_table, an_id, decide
from tests.thorough import examples

PIPELINE = plugin_loader.load_pipeline()
NAMES = [rule.name for rule in PIPELINE.filters]
TRAITS = ('CUSTOM_A', 'CUSTOM_B')
RULES = (
    'free.VCPU >= 3',
    'name in ["cmp-1", "cmp-2"]',
    'name == "cmp-1"',
    'name != "cmp-1"',
    '"CUSTOM_B" in traits',
    'zone == "az1"',
)
HOSTS = [f'cmp-{n}' for n in range(1, 6)]
WHERE = r'(?P<host>cmp-\d+)(?: and (?P<more>\d+) more)?|(?P<count>\d+) hosts?'


@st.composite
def clouds(draw):
    """Up to five hosts, some of them off, silent or with a guest of a group."""
    hosts = []
    for number in range(1, draw(st.integers(2, 6))):
        row = a_host(
            number,
            vcpu=draw(st.sampled_from((1, 2, 4, 8))),
            ram=draw(st.sampled_from((1024, 4096, 8192))),
            traits=draw(st.lists(st.sampled_from(TRAITS), unique=True)),
            zone=draw(st.sampled_from(('az1', 'az2'))),
            disabled=draw(st.sampled_from((None, None, None, 'off'))),
            reported_at=NOW - draw(st.sampled_from((10, 10, 10, 9000))),
        )
        guests = [a_guest(number, number, an_id(9))] if draw(st.booleans()) else []
        hosts.append(a_change(row, *guests))
    return hosts


specs = st.builds(
    lambda **fields: {name: value for name, value in fields.items() if value},
    resources=st.fixed_dictionaries(
        {
            'VCPU': st.sampled_from((1, 2, 4, 6)),
            'MEMORY_MB': st.sampled_from((512, 2048, 9000)),
        }
    ),
    required_traits=st.lists(st.sampled_from(TRAITS), unique=True),
    availability_zone=st.sampled_from((None, None, 'az1', 'az3')),
    ignore_hosts=st.sampled_from(([], [], ['cmp-1'], ['cmp-2'])),
    force_hosts=st.one_of(st.just([]), st.lists(st.sampled_from(HOSTS), max_size=2, unique=True)),
    group=st.sampled_from((None, None, 'affinity', 'anti-affinity')).map(
        lambda policy: policy and GroupRef(uuid=an_id(9), policy=Policy(policy))
    ),
    hints=st.lists(st.sampled_from(RULES), max_size=3, unique=True).map(
        lambda rules: {'rules': rules} if rules else {}
    ),
)


def fitting(hosts, spec: RequestSpec, without: str = '') -> set[str]:
    """Names of the hosts that let the request in."""
    pipeline = (
        plugin_loader.load_pipeline([n for n in NAMES if n != without]) if without else PIPELINE
    )
    filter_run = FilterRun(a_table(*hosts), spec, pipeline)
    filter_run.evaluate('')
    return {
        n
        for n, v in zip(filter_run.table.names, filter_run.verdict, strict=True)
        if v >= PASSED_VERDICT
    }


def enabled(hosts, name: str):
    return [
        msgspec.structs.replace(h, row=msgspec.structs.replace(h.row, disabled=None))
        if h.row.name == name
        else h
        for h in hosts
    ]


def but_for(spec: RequestSpec, given_up: list[str]) -> RequestSpec:
    """The request without what a sentence says is in the way."""
    rules = [r for r in spec.hints.get('rules', []) if f'{r} (user)' not in given_up]
    return msgspec.structs.replace(
        spec,
        hints={'rules': rules} if rules else {},
        required_traits=[t for t in spec.required_traits if f'no trait {t}' not in given_up],
    )


def followed(hosts, spec: RequestSpec, change: str) -> set[str] | None:
    """Who fits once a sentence, from behind the hosts on, is done; None: it is no advice."""
    replace = msgspec.structs.replace
    if match := re.fullmatch(r' without (\w+)', change):
        return fitting(hosts, spec, match[1])
    if match := re.fullmatch(r' but for: (.*)', change):
        parts = re.split(r', (?=no trait )|(?<=\(user\)), ', match[1])
        return fitting(hosts, but_for(spec, parts))
    if re.fullmatch(r' if it need not be .*', change):
        return fitting(hosts, replace(spec, force_hosts=[]))
    if match := re.fullmatch(r' in availability zone (az\d)', change):
        return fitting(hosts, replace(spec, availability_zone=match[1]))
    if match := re.fullmatch(r' if (cmp-\d) is enabled', change):
        return fitting(enabled(hosts, match[1]), spec)
    if 'soft-' in change:
        policy = Policy('soft-' + spec.group.policy.value.removeprefix('soft-'))
        return fitting(hosts, replace(spec, group=replace(spec.group, policy=policy)))
    return None


def advice(line: str):
    """(hosts named, how many, what to do) of each sentence of a line."""
    for sentence in line.split('; '):
        match = re.match(rf'fits on (?:{WHERE})(?P<what> .*)', sentence)
        if match:
            count = int(match['count'] or 1 + int(match['more'] or 0))
            yield match['host'], count, match['what']


@settings(
    deadline=None,
    max_examples=examples(400),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(clouds(), specs)
def test_who_follows_an_advice_finds_the_hosts_that_it_names(hosts, asked):
    request = a_request(**asked)
    decision = decide(a_table(*hosts), request, PIPELINE)
    if decision.outcome is not Outcome.NO_VALID_HOST:
        return
    for line in decision.nearest:
        for host, count, change in advice(line):
            fits = followed(hosts, request.spec, change)
            if fits is None:
                continue
            assert host is None or host in fits, (line, fits)
            assert len(fits) >= count, (line, fits)


def nearest(*hosts, **asked):
    return decide(a_table(*hosts), a_request(**asked), PIPELINE).nearest


def test_no_host_is_promised_that_filters_skipped_by_force_keep_out():
    small, large = a_host(1, vcpu=1), a_host(2)
    wish = {'force_hosts': ['cmp-1'], 'required_traits': ['CUSTOM_NEVER']}
    assert not any('need not be' in line for line in nearest(small, large, **wish))
    assert 'fits on cmp-2 if it need not be cmp-1' in nearest(small, large, force_hosts=['cmp-1'])


def test_what_one_host_lacks_is_not_said_of_another():
    first, second = a_host(1, traits=['CUSTOM_A']), a_host(2, traits=['CUSTOM_B'])
    assert nearest(first, second, required_traits=['CUSTOM_A', 'CUSTOM_B']) == [
        'fits on cmp-1 but for: no trait CUSTOM_B; fits on cmp-2 but for: no trait CUSTOM_A'
    ]
    rules = ['name == "cmp-1"', 'name == "cmp-2"']
    (advice_line,) = nearest(*(a_host(n) for n in range(1, 5)), hints={'rules': rules})
    assert advice_line == (
        'fits on cmp-1 but for: name == "cmp-2" (user); '
        'fits on cmp-2 but for: name == "cmp-1" (user); '
        'fits on cmp-3 and 1 more but for: name == "cmp-1" (user), name == "cmp-2" (user)'
    )
