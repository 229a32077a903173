# SPDX-License-Identifier: Apache-2.0
"""Members that are alike go by what a pick changes; a plugin that states it wrongly is run."""

import msgspec
import pytest

from gantt import plugin_loader
from gantt.core.filters.base import Filter
from gantt.core.placement.evaluation import CHECK_MASKS_EVERY
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.place import LastRequest, place, undo_decision
from gantt.core.placement.run import CHECK_EVERY
from gantt.core.records.decision import Outcome
from gantt.core.weighers.base import ColumnWeigher
from tests.core.builders import a_host, a_request, a_table, an_id


class Honest(ColumnWeigher):
    """Few guests first."""

    columns = ('instances',)
    multiplier_option = 'few_guests_multiplier'
    multiplier_default = -1.0
    multiplier_help = 'of this test'

    def step(self, hosts, spec):
        return 1


class Liar(Honest):
    def step(self, hosts, spec):
        return 2


class Silent(Honest):
    def step(self, hosts, spec):
        return None


def pipeline_of(weigher):
    return Pipeline(plugin_loader.load(['ResourcesFilter']), [weigher()])


def three_hosts():
    return a_table(*(a_host(n, vcpu=99, ram=10**6, disk=10**5) for n in range(1, 4)))


def decided(pipeline, members=9, seed=CHECK_EVERY, table=None, seen=None):
    table = table or three_hosts()
    request = msgspec.structs.replace(a_request(members), request_id=an_id(table.seq, 4))
    return place(table, request, pipeline, seed=seed, decision_id='x', seen=seen), request


def evaluation_sizes(decision):
    return [len(evaluation.members) for evaluation in decision.members.evaluations]


def hosts_of(decision):
    return [member.selection.host for member in decision.members]


@pytest.mark.parametrize('weigher', [Honest, Silent, Liar])
def test_what_is_known_of_a_pick_needs_no_look(weigher):
    pipeline = pipeline_of(weigher)
    decision, _ = decided(pipeline)
    assert evaluation_sizes(decision) == ([9] if weigher is not Silent else [1] * 9)
    assert pipeline.distrusted == ({'Liar'} if weigher is Liar else set())


def test_who_lies_is_asked_from_then_on():
    truth, _ = decided(pipeline_of(Honest))
    pipeline = pipeline_of(Liar)
    unchecked, _ = decided(pipeline, seed=CHECK_EVERY + 1)
    assert pipeline.distrusted == set()
    decided(pipeline)
    again, _ = decided(pipeline)
    assert evaluation_sizes(unchecked) == [9]
    assert evaluation_sizes(again) == [1] * 9
    assert hosts_of(again) == hosts_of(truth)


def test_a_claim_that_is_found_again_makes_no_plugin_wrong():
    pipeline, table, request = pipeline_of(Honest), three_hosts(), a_request(9)
    for members in ([8], None):
        place(table, request, pipeline, seed=CHECK_EVERY, decision_id='x', members=members)
    assert table.instances.tolist() == [3, 3, 3]
    assert pipeline.distrusted == set()


def test_another_table_state_is_looked_at_anew():
    pipeline, seen = pipeline_of(Honest), LastRequest()
    table = three_hosts()
    first, request = decided(pipeline, 2, table=table, seen=seen)
    assert not first.members.goes_on
    second, _ = decided(pipeline, 2, table=table, seen=seen)
    assert second.members.goes_on
    undo_decision(table, first, request)
    third, _ = decided(pipeline, 2, table=table, seen=seen)
    assert not third.members.goes_on
    table.now += 1
    assert not decided(pipeline, 2, table=table, seen=seen)[0].members.goes_on
    assert not decided(pipeline_of(Honest), 2, table=table, seen=seen)[0].members.goes_on


class Hidden(Filter):
    """Declares nothing that a pick changes, and reads the free processors all the same."""

    columns = ('traits',)
    fields = ('resources',)

    def mask(self, hosts, spec):
        return hosts.free[hosts.class_code('VCPU')] >= 50


class HiddenWeigher(Honest):
    """Declares nothing that a pick changes, and reads the free processors all the same."""

    columns = ('traits',)

    def raw(self, hosts, spec, rows):
        return hosts.instances.take(rows)


def test_a_filter_that_reads_what_it_does_not_declare_is_found_and_evaluated_whole():
    rules = plugin_loader.load(['ResourcesFilter'])
    unchecked = Pipeline([*rules, Hidden({})], [Honest()])
    decision, _ = decided(unchecked, 120, seed=CHECK_EVERY + 1)
    assert unchecked.distrusted == set()
    assert decision.outcome is Outcome.PLACED
    pipeline = Pipeline([*rules, Hidden({})], [Honest()])
    decided(pipeline, 120)
    assert pipeline.distrusted == {'Hidden'}
    again, _ = decided(pipeline, 120)
    assert again.outcome is Outcome.NO_VALID_HOST
    assert decided(pipeline.comparable(), 120)[0].outcome is Outcome.NO_VALID_HOST


def test_a_cached_mask_of_hidden_reads_is_found():
    pipeline = Pipeline([*plugin_loader.load(['ResourcesFilter']), Hidden({})], [Honest()])
    table = a_table(a_host(1, vcpu=160, ram=10**6, disk=10**5))
    for _ in range(3 * CHECK_MASKS_EVERY):
        decided(pipeline, 1, seed=CHECK_EVERY + 1, table=table)
        if pipeline.distrusted:
            break
    assert pipeline.distrusted == {'Hidden'}
    free = table.free[table.class_code('VCPU')]
    assert decided(pipeline, 1, table=table)[0].outcome is Outcome.NO_VALID_HOST
    assert free.max() < 50


def test_a_filter_that_is_distrusted_is_no_longer_reused_by_the_next_request():
    pipeline = Pipeline([*plugin_loader.load(['ResourcesFilter']), Hidden({})], [Honest()])
    table, seen = a_table(a_host(1, vcpu=160, ram=10**6, disk=10**5)), LastRequest()
    outcomes = []
    for _ in range(2 * CHECK_MASKS_EVERY):
        decision, _ = decided(pipeline, 1, seed=CHECK_EVERY + 1, table=table, seen=seen)
        outcomes.append((bool(pipeline.distrusted), decision.outcome, decision.members.goes_on))
        pipeline.distrusted.add('Hidden')
    assert (True, Outcome.PLACED, False) in outcomes
    assert not [1 for distrusted, _, goes_on in outcomes if distrusted and goes_on]
    assert table.free[table.class_code('VCPU')].max() in (48, 49)


def test_a_weigher_that_reads_what_it_does_not_declare_is_found():
    truth, _ = decided(pipeline_of(Honest))
    pipeline = pipeline_of(HiddenWeigher)
    decided(pipeline)
    assert pipeline.distrusted == {'HiddenWeigher'}
    assert hosts_of(decided(pipeline)[0]) == hosts_of(truth)
