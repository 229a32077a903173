# SPDX-License-Identifier: Apache-2.0
"""All weighers, normalizations and multipliers against the plain reference."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantt import plugin_loader
from gantt.core.placement.pipeline import Pipeline
from tests.core.builders import NOW, a_change, a_request, a_table, decide
from tests.core.weighers import sites
from tests.core.weighers.reference import Site

FEW = settings(max_examples=100, deadline=None)


def a_pipeline(options, filters=()):
    return Pipeline(
        filters, plugin_loader.load(list(sites.WEIGHERS), options, plugin_loader.WEIGHERS)
    )


@FEW
@given(st.data())
def test_totals_are_those_of_the_reference(data):
    rows = data.draw(sites.hosts())
    guests = data.draw(sites.guests(rows))
    aggregates, options = data.draw(sites.aggregates()), data.draw(sites.options())
    request = a_request(alternates=10, **data.draw(sites.specs()))
    table = a_table(*(a_change(row, *guests[row.id]) for row in rows), aggregates=aggregates)
    member = decide(table, request, a_pipeline(options)).members[0]
    kinds = {
        name: (option, options[option.removesuffix('_multiplier') + '_normalization'])
        for name, option in sites.WEIGHERS.items()
    }
    expected = Site(rows, guests, aggregates, options, NOW).totals(request.spec, kinds)
    totals = {score.host: score.total for score in member.scores}
    assert totals == pytest.approx({name: expected[name] for name in totals}, rel=1e-9, abs=1e-9)


@FEW
@given(st.data())
def test_a_score_made_anew_after_a_pick_is_that_of_a_new_ranking(data):
    """Compare scores bit for bit, and the picks that follow from them."""
    rows = data.draw(sites.hosts())
    guests = data.draw(sites.guests(rows))
    aggregates, options = data.draw(sites.aggregates()), data.draw(sites.options())
    request = a_request(
        count=data.draw(st.integers(2, 8)),
        alternates=10,
        resources={'VCPU': 1, 'MEMORY_MB': 500, 'DISK_GB': 1},
        **data.draw(sites.specs()),
    )
    filters = plugin_loader.load(['ResourcesFilter'])

    def placed(locally):
        pipeline = a_pipeline(options, filters)
        table = a_table(*(a_change(row, *guests[row.id]) for row in rows), aggregates=aggregates)
        if not locally:
            pipeline.weighing(table).has_local_multipliers = False
        return decide(table, request, pipeline)

    short, whole = placed(True), placed(False)
    assert [m.scores for m in short.members] == [m.scores for m in whole.members]
    assert short == whole


def test_after_a_pick_the_others_are_not_weighed_again():
    """Else the test above compares a thing with itself."""
    options = {'ram_weight_normalization': 'fraction'}
    pipeline = Pipeline(
        plugin_loader.load(['ResourcesFilter']),
        plugin_loader.load(['RAMWeigher'], options, plugin_loader.WEIGHERS),
    )
    row_counts = []
    weigher = pipeline.weighers[0]
    raw = weigher.raw
    weigher.raw = lambda hosts, spec, rows: row_counts.append(len(rows)) or raw(hosts, spec, rows)
    table = a_table(*(sites.a_host(n) for n in range(1, 5)))
    decide(table, a_request(count=4), pipeline)
    assert row_counts == [4]
