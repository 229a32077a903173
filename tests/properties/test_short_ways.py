# SPDX-License-Identifier: Apache-2.0
"""What a look leaves out, and what is compared once for all hosts, against the plain way."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt.core.filters.base import Filter
from gantt.core.messages.report import ReportedMetric
from gantt.core.messages.request import RequestSpec
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import PASSED_VERDICT
from gantt.core.resources.host import Placed
from gantt.core.rules import nova_facts as facts
from tests.core.builders import a_host, a_table, an_id
from tests.core.filters.reference import by_ratio, exact
from tests.core.filters.small import a_filter
from tests.thorough import examples

HOSTS = 6
MASKS = st.lists(
    st.none() | st.lists(st.booleans(), min_size=HOSTS, max_size=HOSTS), min_size=1, max_size=7
)


def the_filters(masks, columns):
    """A filter that says what it is given, for each of the masks."""

    def a_kind(number, passing):
        def mask(self, hosts, spec):
            return None if passing is None else np.array(passing)

        return type(f'Given{number}', (Filter,), {'mask': mask, 'columns': columns})

    return [a_kind(number, passing)({}) for number, passing in enumerate(masks)]


@given(MASKS, st.sampled_from([('traits',), ('free',)]), st.integers(1, 3))
def test_the_verdict_of_a_host_is_the_first_filter_that_removes_it(masks, columns, looks):
    table = a_table(*(a_host(n + 1) for n in range(HOSTS)))
    filter_run = FilterRun(
        table, RequestSpec(resources={'VCPU': 1}), Pipeline(the_filters(masks, columns), [])
    )
    removing = [
        next((k for k, passing in enumerate(masks) if passing and not passing[row]), PASSED_VERDICT)
        for row in range(HOSTS)
    ]
    for number in range(looks):
        counts = filter_run.evaluate('', last=number == looks - 1)
        assert filter_run.verdict.tolist() == removing
        assert [filter_count.removed for filter_count in counts] == [
            removing.count(k) for k in range(len(masks))
        ]
        assert filter_run.alive.tolist() == [k == PASSED_VERDICT for k in removing]
        assert filter_run.left == removing.count(PASSED_VERDICT)


SIZES = st.tuples(st.sampled_from([8, 16]), st.integers(0, 3), st.sampled_from([1.0, 1.5, 4.0]))


@st.composite
def amounts(draw):
    """Hosts that are all of one size, or of several; and what is used of each."""
    sizes = draw(st.lists(SIZES, min_size=1, max_size=2))
    return [
        (*draw(st.sampled_from(sizes)), draw(st.integers(0, 20)))
        for _ in range(draw(st.integers(1, 5)))
    ]


@given(amounts(), st.integers(1, 20))
@settings(max_examples=examples(200), deadline=None)
def test_amounts_are_what_one_host_after_the_other_says(sizes, asked):
    table = a_table(
        *(
            a_host(
                n,
                inventories={
                    'VCPU': Inventory(total=total, reserved=reserved, allocation_ratio=ratio)
                },
                used={'VCPU': used},
            )
            for n, (total, reserved, ratio, used) in enumerate(sizes, 1)
        )
    )
    spec = RequestSpec(resources={'VCPU': asked})
    for name, plain in (('CoreFilter', by_ratio('VCPU')), ('ExactCoreFilter', exact('VCPU'))):
        rule = a_filter(name)
        rows = range(len(table))
        expected = [plain(rule, table.host_state(row), spec) for row in rows]
        assert rule.mask(table, spec).tolist() == expected, name
        assert [rule.passes(table, spec, row) for row in rows] == expected, name
    assert not a_filter('RamFilter').mask(a_table(), RequestSpec(resources={'MEMORY_MB': 1})).any()


@given(
    st.lists(st.none() | st.integers(-3, 5), min_size=3, max_size=3),
    st.lists(st.integers(0, 2), max_size=6),
)
def test_guests_are_counted_as_of_one_host_after_the_other(reported, picks):
    counted = [
        {} if n is None else {'stats.num_instances': ReportedMetric(value=float(n))}
        for n in reported
    ]
    table = a_table(*(a_host(n, metrics=metrics) for n, metrics in enumerate(counted, 1)))
    for number, row in enumerate(picks):
        table.add_pick(row + 1, {'VCPU': 1}, Placed(an_id(number, 2), an_id(number, 3), row + 1))
    plain = [facts.instance_count(table, row) for row in range(3)]
    assert facts.instance_counts(table).tolist() == plain
    assert plain == [
        max(picks.count(row), (reported[row] or 0) + picks.count(row))
        if any(n is not None for n in reported)
        else picks.count(row)
        for row in range(3)
    ]
