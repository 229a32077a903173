# SPDX-License-Identifier: Apache-2.0
"""No filter raises for any request and any report of hosts."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gantt.core.messages.report import Hypervisor
from gantt.core.messages.request import Flavor, Image
from tests.core.filters.reference import REFERENCE
from tests.core.filters.small import (
    a_filter,
    a_spec,
    in_aggregates,
)
from tests.thorough import examples

# -- any request, nothing raises ----------------------------------------------------------
KEYS = st.one_of(
    st.sampled_from(
        [
            'capabilities:cpu_info:a:b',
            'capabilities:',
            'capabilities:stats:',
            'hw:maxphysaddr_bits',
            'host',
            'hw_architecture',
            'img_hv_requested_version',
            'hw_maxphysaddr_bits',
            ':',
            '',
        ]
    ),
    st.text(max_size=20),
)
TEXTS = st.one_of(
    st.text(max_size=30), st.sampled_from(['>= 9', '<or>', '1' * 500, '>=1.2', '1e999'])
)
JSONISH = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
TEXT_MAPS = st.dictionaries(KEYS, TEXTS, max_size=4)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    TEXT_MAPS,
    TEXT_MAPS,
    TEXT_MAPS,
    TEXTS | st.dictionaries(st.sampled_from(['a', 'maxphysaddr', 'bits']), JSONISH),
    st.lists(st.lists(TEXTS, max_size=4), max_size=3),
    st.lists(TEXTS, max_size=2),
    TEXTS,
    TEXTS,
)
def test_malformed_requests_and_hosts_never_raise(
    extra_specs, properties, metadata, cpu_info, supported, near, cidr, address
):
    hypervisor = Hypervisor(
        cpu_info=cpu_info, supported=supported, host_ip=address, stats=metadata, type=address
    )
    table = in_aggregates(
        {**metadata, 'max_io_ops_per_host': cidr, 'ram_allocation_ratio': cidr},
        hypervisor=hypervisor,
    )
    spec = a_spec(
        flavor=Flavor(extra_specs=extra_specs),
        image=Image(uuid=cidr, properties=properties),
        hints={'build_near_host_ip': near, 'cidr': [cidr], 'query': near},
    )
    for name in REFERENCE:
        rule = a_filter(name)
        mask = rule.mask(table, spec)
        assert mask is None or (mask.dtype, mask.shape) == (np.bool_, (2,))
        rows = np.arange(2)[~mask] if mask is not None else np.arange(0)
        if len(rows):
            assert sum(rule.detail(table, spec, rows)['parts'].values()) == len(rows)
            assert rule.remedy(table, spec, rows)
