# SPDX-License-Identifier: Apache-2.0
"""Random conditions, hosts and requests."""

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from gantt.core.messages.report import Hypervisor, ReportedMetric
from gantt.core.messages.request import RequestSpec
from gantt.core.resources.host import Aggregate
from gantt.core.rules import rule, tree
from gantt.core.rules.expression import Expression
from gantt.core.table.metrics import DeclaredMetric
from tests.core.builders import NOW, a_host, an_id

#: Other work on the machine is no fault of what is tested.
unhurried = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

TEXTS = ('a', 'b', 'ab', '4.2', 'v5', '4.2.0', 'x y', 'é', '"', '\\', '1.x')
PLACES = ('s1', 's1.r1', 's1.r1.k1', 's1.r2', 's2', 's2.r1.k1.h9', 's1.r1.k1.h1.u1')
NUMBERS = st.one_of(st.integers(-3, 20), st.sampled_from([0.5, 1e3, 2**53, -(2**53), 16.0]))
VERSIONS = st.builds(tree.VersionNumber, st.sampled_from(['4', '4.2', '4.2.0', '5', '0', '4.10']))
texts = st.sampled_from(TEXTS)
places = st.one_of(
    st.sampled_from(PLACES), st.sampled_from(['*', '*.r1', 's1.*.k1', 'r1', '*.*.*.*.*.*'])
)
ORDERED = [tree.Less, tree.LessEqual, tree.Greater, tree.GreaterEqual, tree.Equal, tree.NotEqual]
ordered = st.sampled_from(ORDERED)

NUMBER_FACTS = st.sampled_from(
    [
        'free.VCPU',
        'used.MEMORY_MB',
        'cap.CUSTOM_NONE',
        'total.VCPU',
        'instances',
        'age',
        'metrics.temperature',
        'metrics.never',
        'request.resources.VCPU',
    ]
)
TEXT_FACTS = st.sampled_from(
    ['name', 'zone', 'cell', 'hypervisor.type', 'cpu.model', 'request.project', 'request.zone']
)
SET_FACTS = st.sampled_from(
    ['traits', 'aggregates', 'metadata.tier', 'metadata.never', 'cpu.features', 'request.hints.h']
)
ASKED = st.sampled_from(['request.project', 'request.zone', 'request.hints.h']).map(tree.Ref)


def lists(items):
    return st.lists(items, max_size=4).map(tuple)


def ranges(ends):
    return st.builds(tree.Range, st.one_of(st.none(), ends), st.one_of(st.none(), ends)).filter(
        lambda r: r.low is not None or r.high is not None
    )


def compared(kinds, facts, values):
    return st.builds(lambda kind, fact, value: kind(fact=fact, value=value), kinds, facts, values)


def only(kind):
    return st.just(kind)


def of_texts(facts):
    return st.one_of(
        compared(ordered, facts, st.one_of(texts, VERSIONS, ASKED)),
        compared(only(tree.In), facts, st.one_of(lists(texts), lists(VERSIONS), ranges(VERSIONS))),
        compared(only(tree.Contains), facts, st.one_of(texts, ASKED)),
    )


equals = st.sampled_from([tree.Equal, tree.NotEqual])
version = st.just('hypervisor.version')
leaves = st.one_of(
    compared(ordered, NUMBER_FACTS, st.one_of(NUMBERS, NUMBER_FACTS.map(tree.Ref))),
    compared(only(tree.In), NUMBER_FACTS, st.one_of(lists(NUMBERS), ranges(NUMBERS))),
    of_texts(TEXT_FACTS),
    of_texts(SET_FACTS),
    compared(equals, st.just('enabled'), st.booleans()),
    compared(equals, st.just('location'), places),
    compared(only(tree.In), st.just('location'), st.one_of(places, lists(places))),
    compared(ordered, version, st.one_of(VERSIONS, st.just(4002000))),
    compared(only(tree.In), version, st.one_of(lists(VERSIONS), ranges(VERSIONS))),
    st.builds(
        tree.Known, st.one_of(NUMBER_FACTS, TEXT_FACTS, SET_FACTS, st.just('location'), version)
    ),
    st.builds(tree.Always, st.booleans()),
)


def joined(kind, parts):
    return st.lists(parts, min_size=2, max_size=3).map(lambda of: kind(of=tuple(of)))


conditions = st.recursive(
    leaves,
    lambda parts: st.one_of(
        joined(tree.And, parts), joined(tree.Or, parts), st.builds(tree.Not, parts)
    ),
    max_leaves=8,
)

cpu_infos = st.one_of(
    st.just(''),
    st.just('{"model": "b", "features": ["a"]}'),
    st.fixed_dictionaries({'model': texts, 'features': st.lists(texts, max_size=2)}),
)
hypervisors = st.builds(
    Hypervisor,
    type=st.sampled_from(['', 'a', 'QEMU']),
    cpu_info=cpu_infos,
    version=st.sampled_from([0, 4002000, 4010000, 5000000]),
)


@st.composite
def clouds(draw):
    """Draw hosts, and the aggregates that some are in."""
    count = draw(st.integers(1, 6))
    hosts = [
        a_host(
            number,
            name=draw(st.sampled_from(['a', 'ab'])) + str(number),
            vcpu=draw(st.integers(1, 8)),
            used={'VCPU': draw(st.integers(0, 9)), 'MEMORY_MB': draw(st.integers(0, 20))},
            zone=draw(st.sampled_from([None, 'a', 'b'])),
            cell=draw(st.sampled_from([None, an_id(1)])),
            location=draw(st.sampled_from(['', *PLACES])),
            traits=draw(st.lists(texts, max_size=2, unique=True)),
            metrics=draw(
                st.dictionaries(
                    st.just('temperature'),
                    st.builds(
                        ReportedMetric,
                        value=st.sampled_from([0.5, 16.0, -2.0]),
                        age_seconds=st.sampled_from([0.0, 2.5]),
                    ),
                )
            ),
            hypervisor=draw(hypervisors),
            disabled=draw(st.sampled_from([None, None, 'off'])),
            reported_at=draw(st.sampled_from([NOW - 5, NOW, NOW + 3, 0.0])),
        )
        for number in range(1, count + 1)
    ]
    aggregates = [
        Aggregate(
            id=n,
            uuid=an_id(n, 9),
            name=draw(texts),
            metadata=draw(
                st.dictionaries(st.sampled_from(['tier', 'availability_zone']), texts, max_size=2)
            ),
            hosts=draw(st.lists(st.sampled_from([h.name for h in hosts]), unique=True)),
        )
        for n in range(1, draw(st.integers(1, 4)))
    ]
    return hosts, aggregates


#: Declarations of the metric that hosts of these clouds report.
declared = st.lists(
    st.builds(
        DeclaredMetric,
        name=st.just('temperature'),
        lower=st.sampled_from([None, 0.0]),
        upper=st.sampled_from([None, 10.0]),
        stale_seconds=st.sampled_from([None, 1.0, 6.0]),
    ),
    max_size=1,
)
specs = st.builds(
    RequestSpec,
    resources=st.fixed_dictionaries({'VCPU': st.integers(1, 9)}),
    project_id=st.sampled_from([None, 'a', 'ab']),
    availability_zone=st.sampled_from([None, 'a', 'nova']),
    hints=st.dictionaries(st.just('h'), st.lists(texts, max_size=2)),
)


def to_json(expr: tree.Expr) -> str:
    """Return a condition as JSON."""
    return msgspec.json.encode(expr).decode()


def from_json(text: str) -> Expression:
    """Return the condition that a tree in JSON stands for, as a rule has it."""
    return rule.parse_rule(f'{{"rule": {text}}}').condition
