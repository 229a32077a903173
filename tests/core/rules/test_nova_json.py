# SPDX-License-Identifier: Apache-2.0
"""Queries of Nova's JsonFilter said as rules hold for the hosts that the filter lets pass."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantt import exceptions
from gantt.core import nova_query
from gantt.core.report import Hypervisor, Metric
from gantt.core.request import RequestSpec
from gantt.core.rules import nova_json
from gantt.core.rules.parser import parse
from tests.core.builders import a_host, a_table
from tests.core.rules import trees

SPEC = RequestSpec(resources={'VCPU': 1})


def the_hosts():
    return a_table(
        a_host(1, vcpu=4, used={'VCPU': 2}, hypervisor=Hypervisor(type='QEMU', stats={'x': 'a'})),
        a_host(2, vcpu=8, node='n2', metrics={'stats.x': Metric(value=5.0)}),
        a_host(3, ram=1024, hypervisor=Hypervisor(host_ip='10.0.0.3'),
               metrics={'stats.failed_builds': Metric(value=2.0)}),
    )  # fmt: skip


looks = st.sampled_from(
    ['$host', '$hypervisor_type', '$host_ip', '$vcpus_total', '$free_ram_mb', '$stats.x',
     '$cpu_allocation_ratio', '$num_instances', '$failed_builds', '$num_io_ops']
)  # fmt: skip
values = st.sampled_from(['cmp-1', 'QEMU', 'a', '', None, 5, 4, 8, 1.0, 0, 1024, True, '10.0.0.3'])
comparisons = st.builds(
    lambda op, of: [op, *of], st.sampled_from(['=', '<', '>', '<=', '>=', 'in']),
    st.lists(st.one_of(looks, values, values), max_size=4),
)  # fmt: skip
queries = st.recursive(
    st.one_of(comparisons, comparisons, values),
    lambda parts: st.builds(
        lambda op, of: [op, *of], st.sampled_from(['and', 'or', 'not']),
        st.lists(parts, max_size=3),
    ),
    max_leaves=6,
)  # fmt: skip


@trees.unhurried
@given(queries)
def test_a_query_and_its_rule_are_about_the_same_hosts(query):
    table, text = the_hosts(), json.dumps(query)
    try:
        expression = nova_json.expression(text)
    except exceptions.InvalidMessage:
        return
    condition = nova_query.parse(text)
    fits = [True] * 3
    if condition is not None:
        fits = nova_query.Asking(table, False).mask(condition).tolist()
    assert expression.mask(table, SPEC).tolist() == fits
    assert parse(expression.text).mask(table, SPEC).tolist() == fits


def test_a_query_as_text():
    query = '["and", [">=", "$free_ram_mb", 1024], ["not", ["=", "$host", "cmp-2"]]]'
    assert nova_json.expression(query).text == (
        '(known physical.MEMORY_MB and physical.MEMORY_MB >= 1024) and '
        'not (known name and name == "cmp-2")'
    )
    assert nova_json.expression('[]').text == 'true'


WRONG = [
    ('nonsense', 'expected JSON'),
    ('["=", "$host", "$hypervisor_type"]', 'more than one fact'),
    ('["=", "$cpu_info.arch", "x86_64"]', 'cannot be said as a rule'),
    ('["and", "$host"]', '$host on its own'),
    ('["=", "$vcpus_total", 1e300]', 'a number of at most'),
]


@pytest.mark.parametrize(('text', 'said'), WRONG, ids=range(len(WRONG)))
def test_what_is_no_query_or_no_rule_is_refused(text, said):
    with pytest.raises(exceptions.InvalidMessage) as caught:
        nova_json.expression(text)
    assert said in caught.value.message
