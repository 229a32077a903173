# SPDX-License-Identifier: Apache-2.0
"""What ``stats`` of a compute say is compared as it was written."""

import functools

from hypothesis import given, settings
from hypothesis import strategies as st

from gantt import plugin_loader
from gantt.core.claims import reconcile, registration
from gantt.core.messages.report import RegisterHost
from gantt.core.messages.request import Flavor, RequestSpec
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.pipeline import Pipeline
from gantt.core.resources.host import HostChange
from gantt.core.table.host_table import HostTable
from gantt.rpc.api import stats, stats_foreign
from tests.world import new_uuid

NUMBERS = st.one_of(
    st.from_regex(r'[-+]?[0-9]{1,17}(\.[0-9]{0,7})?', fullmatch=True),
    st.sampled_from(['1.50', '10.0', '5.0', '0.10', '-0', '007', '0.00001', '1e3', '1_0', 'gold']),
)


def a_table(text):
    """A host whose compute reports a text, through the door by which Nova's computes do."""
    dictionary = {
        'host': 'h',
        'hypervisor_hostname': 'h',
        'vcpus': 8,
        'memory_mb': 1024,
        'local_gb': 10,
        'vcpus_used': 0,
        'memory_mb_used': 0,
        'local_gb_used': 0,
        'stats': {'tier': text},
    }
    facts = stats_foreign.reported_facts('h', dictionary, stats.Ratios())
    words = RegisterHost(
        name='h', node='h', uuid=new_uuid(), boot_nonce=stats.DICTIONARY_REPORT_NONCE
    )
    row = registration.register(None, words, provider_id=1)
    row = reconcile.apply_report(row, [], {}, facts.report(row.epoch, 1), 1e6).row
    return HostTable.build([HostChange(provider_id=1, row=row, placed=[])], [], {}, (), 1e6)


@functools.cache
def capabilities(as_nova):
    options = {'extra_specs_as_nova': as_nova}
    rule = plugin_loader.load(['ComputeCapabilitiesFilter'], options, plugin_loader.FILTERS)
    return Pipeline(rule, [])


def passes(table, tier, as_nova):
    flavor = Flavor(extra_specs={'capabilities:tier': tier})
    spec = RequestSpec(resources={'VCPU': 1}, flavor=flavor)
    run = FilterRun(table, spec, capabilities(as_nova))
    run.evaluate('x')
    return bool(run.alive[0])


@settings(deadline=None)
@given(NUMBERS, st.booleans())
def test_a_text_equals_itself_and_no_other_way_to_write_it(text, as_nova):
    table = a_table(text)
    for tier in (text, f's== {text}', f'<or> {text} <or> silver'):
        assert passes(table, tier, as_nova), tier
    for other in (f'{text}0', f'0{text}', f'{text}.0'):
        assert not passes(table, other, as_nova), other
