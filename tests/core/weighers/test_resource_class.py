# SPDX-License-Identifier: Apache-2.0
"""A class of one's own is weighed by configuration, and members that are alike go on by steps."""

import msgspec
import numpy as np
import pytest

from gantt import exceptions, plugin_loader
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.place import place
from gantt.core.placement.run import CHECK_EVERY
from gantt.testing import conformance
from tests.core.builders import a_host, a_request, a_table

BIG = {'VCPU': Inventory(total=99), 'MEMORY_MB': Inventory(total=10**6)}


def a_pipeline(setting, **options):
    options = {'class_weight_setting': setting, **options}
    return Pipeline(
        plugin_loader.load(['ResourcesFilter']),
        plugin_loader.load(['ResourceClassWeigher'], options, plugin_loader.WEIGHERS),
    )


def a_cloud():
    licences = {1: 3, 2: 7, 3: None, 4: 5}
    return a_table(
        *(
            a_host(n, inventories=BIG | ({'CUSTOM_LICENCE': Inventory(total=has)} if has else {}))
            for n, has in licences.items()
        )
    )


def decided(setting, count=1, table=None, **amounts):
    request = a_request(count, alternates=4, resources={'VCPU': 1, **amounts})
    table, pipeline = table or a_cloud(), a_pipeline(setting)
    return place(table, request, pipeline, seed=CHECK_EVERY, decision_id='x'), pipeline


def hosts_of(decision):
    first = decision.members[0]
    return [first.selection.host, *(alternate.host for alternate in first.alternates)]


def test_more_of_a_class_comes_first_and_less_with_the_other_sign():
    assert hosts_of(decided('CUSTOM_LICENCE=1')[0]) == ['cmp-2', 'cmp-4', 'cmp-1', 'cmp-3']
    assert hosts_of(decided('CUSTOM_LICENCE=-1')[0]) == ['cmp-3', 'cmp-1', 'cmp-4', 'cmp-2']


def test_who_has_no_setting_has_no_preference():
    weigher = a_pipeline('').weighers[0]
    assert weigher.raw(a_cloud(), a_request().spec, np.arange(4)) is None


@pytest.mark.parametrize('setting', ['CUSTOM_LICENCE=0.1', 'CUSTOM_LICENCE=-2.7,VCPU=0.003'])
@pytest.mark.parametrize('normalization', ['nova', 'absolute', 'fraction', 'rank'])
def test_alike_members_go_by_steps_that_are_never_wrong(setting, normalization):
    request = a_request(12, resources={'VCPU': 1, 'CUSTOM_LICENCE': 1})
    pipeline = a_pipeline(setting, class_weight_normalization=normalization)
    decision = place(a_cloud(), request, pipeline, seed=CHECK_EVERY, decision_id='x')
    whole = a_pipeline(setting, class_weight_normalization=normalization)
    whole.weighers[0].step = lambda hosts, spec: None
    plain = place(a_cloud(), request, whole, seed=CHECK_EVERY, decision_id='x')
    assert not pipeline.distrusted
    assert len(decision.members.evaluations) < len(plain.members.evaluations) == 12
    assert [m.selection.host for m in decision.members] == [m.selection.host for m in plain.members]
    assert [m.scores for m in decision.members] == [m.scores for m in plain.members]


def test_the_absolute_scale_has_the_ends_that_a_host_could_have():
    request = a_request(alternates=4, resources={'VCPU': 1})
    pipeline = a_pipeline('CUSTOM_LICENCE=2', class_weight_normalization='absolute')
    decision = place(a_cloud(), request, pipeline, seed=1, decision_id='x')
    totals = {score.host: score.total for score in decision.members[0].scores}
    assert totals == {'cmp-1': 3 / 7, 'cmp-2': 1.0, 'cmp-3': 0.0, 'cmp-4': 5 / 7}
    pipeline = a_pipeline('CUSTOM_LICENCE=-2', class_weight_normalization='absolute')
    decision = place(a_cloud(), request, pipeline, seed=1, decision_id='x')
    totals = {score.host: score.total for score in decision.members[0].scores}
    assert totals == {'cmp-1': 4 / 7, 'cmp-2': 0.0, 'cmp-3': 1.0, 'cmp-4': 2 / 7}


def test_the_kit_for_plug_ins_finds_nothing():
    conformance.check(a_pipeline('CUSTOM_X=-1.5, VCPU=0.1').weighers[0], cases=60)


@pytest.mark.parametrize(
    'setting',
    ['LICENCE=1', 'CUSTOM_LICENCE', 'VCPU=1,VCPU=2', 'VCPU=1e7', 'VCPU=0.0001', 'VCPU=nan'],
)
def test_what_is_no_setting_is_refused_by_name(setting):
    with pytest.raises(exceptions.PluginError, match='class_weight_setting'):
        a_pipeline(setting)


@pytest.mark.parametrize(
    ('setting', 'expected'),
    [
        (
            'VCPU=1_0',
            "expected a decimal number such as 2, -0.5 or 1e3 as the ratio of VCPU, got '1_0'",
        ),
        ('VCPU=inf', "expected a decimal number .* of VCPU, got 'inf'"),
        ('VCPU=1e999', "expected a decimal number .* of VCPU, got '1e999'"),
        ('VCPU=\u0661', 'expected a decimal number .* of VCPU'),
        ('VCPU=', "expected a decimal number .* of VCPU, got ''"),
        (',', "expected entries name=ratio, got nothing at a comma of ','"),
        ('VCPU=1,,PCPU=1', 'got nothing at a comma of'),
        (',VCPU=1', 'got nothing at a comma of'),
        ('VCPU', "expected entries name=ratio, got 'VCPU'"),
        ('=1', "expected entries name=ratio, got '=1'"),
        ('VCPU=1, VCPU=2', 'expected each name once, got VCPU twice'),
    ],
)
def test_a_wrong_setting_is_refused_with_what_was_expected(setting, expected):
    with pytest.raises(exceptions.PluginError, match=expected):
        a_pipeline(setting)


@pytest.mark.parametrize('setting', ['', '  ', 'VCPU=+2', 'VCPU=.5', 'VCPU=2.', 'VCPU = 1e-1, '])
def test_a_decimal_number_is_a_ratio(setting):
    a_pipeline(setting)


def test_requests_that_differ_in_nothing_else_spread_over_what_is_weighed():
    table, pipeline = a_cloud(), a_pipeline('CUSTOM_LICENCE=1')
    taken = []
    for number in range(6):
        request = a_request(resources={'VCPU': 1, 'CUSTOM_LICENCE': 1})
        request = msgspec.structs.replace(
            request, request_id=f'00000000-0000-4000-8000-00000000000{number}'
        )
        decision = place(table, request, pipeline, seed=1, decision_id='x')
        taken.append(decision.members[0].selection.host)
    assert taken == ['cmp-2', 'cmp-2', 'cmp-2', 'cmp-4', 'cmp-2', 'cmp-4']
