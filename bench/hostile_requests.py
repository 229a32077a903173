# SPDX-License-Identifier: Apache-2.0
"""Requests of any kind and size, as a strategy: most state little, some a great deal."""

from typing import Any

import hypothesis.strategies as st

from gantt.core.messages import base
from gantt.core.messages.request import Policy, Purpose
from gantt.testing import clouds

_HOST = st.integers(1, 1000).map(lambda n: f'cmp-{n}')
_TRAIT = st.sampled_from(clouds.TRAITS)
_AGGREGATE = st.integers(0, 39).map(lambda n: f'agg-{n}')
_SIZE = st.sampled_from([0, 1, 2, 8, 32, 64, 250, 1000])


def _names(known: st.SearchStrategy[str], prefix: str) -> st.SearchStrategy[list[str]]:
    """Return a strategy of a few known names and up to a thousand that do not exist."""
    return st.builds(
        lambda some, count: [*some, *(f'{prefix}{n}' for n in range(count - len(some)))],
        st.lists(known, max_size=6),
        _SIZE,
    )


def _lists(known: st.SearchStrategy[str], prefix: str) -> st.SearchStrategy[list[list[str]]]:
    return st.builds(
        lambda some, count, inner: [
            [*some, *(f'{prefix}{n}-{i}' for i in range(inner))] for n in range(count)
        ],
        st.lists(known, max_size=3),
        st.sampled_from([1, 8, 64]),
        st.sampled_from([0, 1, 4, 15]),
    )


def _uuids(most: int = 1000) -> st.SearchStrategy[list[str]]:
    return st.integers(0, most).map(
        lambda count: [base.derived_id('hostile guest', n) for n in range(count)]
    )


_TESTS = st.one_of(
    st.builds('free.VCPU >= {}'.format, st.integers(0, 500)),
    st.builds('free.MEMORY_MB >= {}'.format, st.integers(0, 10**6)),
    st.builds('name != "cmp-{}"'.format, st.integers(1, 1000)),
    st.builds('name == "cmp-{}"'.format, st.integers(1, 1000)),
    st.builds('"{}" in traits'.format, _TRAIT),
    st.builds('metrics.load < 0.{}'.format, st.integers(0, 9)),
    st.builds('hypervisor.version >= {}'.format, st.integers(0, 9_000_000)),
    st.builds('"{}" in aggregates'.format, _AGGREGATE),
    st.just('location in "site.room-1"'),
)
_STRENGTH = st.one_of(
    st.just(''),
    st.builds('soft {}: '.format, st.integers(1, 9)),
    st.builds('drop {}: '.format, st.integers(1, 40)),
)


def _rules() -> st.SearchStrategy[list[str]]:
    rule_text = st.builds(
        lambda strength, tests, count, word: (
            strength + f' {word} '.join(tests[n % len(tests)] for n in range(count))
        ),
        _STRENGTH,
        st.lists(_TESTS, min_size=1, max_size=4),
        st.sampled_from([1, 3, 4, 16, 31]),
        st.sampled_from(['and', 'or']),
    )
    return st.one_of(
        st.lists(rule_text, max_size=32),
        st.builds(lambda rule, count: [rule] * count, rule_text, st.sampled_from([1, 4, 8, 32])),
        # No two alike, so that nothing of one is known of the next.
        st.builds(
            lambda strength, count: [f'{strength}free.VCPU >= {n}' for n in range(count)],
            _STRENGTH,
            st.sampled_from([4, 16, 32]),
        ),
    )


def _extra_specs() -> st.SearchStrategy[dict[str, str]]:
    plain = st.fixed_dictionaries(
        {}, optional={key: st.sampled_from(values) for key, values in clouds.EXTRA_SPECS.items()}
    )
    cells = st.fixed_dictionaries(
        {
            'hw:numa_nodes': st.sampled_from(['1', '2', '4', '8']),
            'hw:cpu_policy': st.sampled_from(['shared', 'dedicated', 'mixed']),
            'hw:mem_page_size': st.sampled_from(['small', 'large', '2048', 'any']),
            'hw:cpu_thread_policy': st.sampled_from(['prefer', 'isolate', 'require']),
        }
    )
    many = st.builds(
        lambda key, value, count: {f'{key}{n}': value for n in range(count)},
        st.sampled_from(
            [
                'capabilities:cpu_info:x',
                'capabilities:x',
                'x',
                'aggregate_instance_extra_specs:x',
                'trait:CUSTOM_',
                'resources:CUSTOM_',
            ]
        ),
        st.sampled_from(['a', 'required', '<or> a <or> b', '<all-in> a b', '>= 1', 's== ' * 60]),
        st.sampled_from([1, 16, 64, 250]),
    )
    rules = _rules().map(lambda rules: {f'rule:{n}': rule for n, rule in enumerate(rules)})
    return st.one_of(
        plain, cells, many, rules, st.builds(lambda one, other: one | other, cells, rules)
    )


def _devices() -> st.SearchStrategy[list[dict[str, Any]]]:
    kind = st.fixed_dictionaries(
        {},
        optional={
            'vendor_id': st.just('8086'),
            'product_id': st.sampled_from(['1572', 'ffff']),
            'tags': st.builds(lambda n: {'a': str(n)}, st.integers(0, 64)),
        },
    )
    device = st.fixed_dictionaries(
        {
            'count': st.sampled_from([1, 1, 2, 8]),
            'any_of': st.lists(kind, min_size=1, max_size=16),
        }
    )
    return st.builds(
        lambda one, count: [one] * count, device, st.sampled_from([1, 2, 4, 8, 16, 32])
    )


#: Groups and devices of one request, at most.
GROUPS = 64


def devices_of_trees(most: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Return a strategy of devices of a few sizes, or many, that just fit the hosts or do not."""
    sizes = st.lists(st.integers(1, 70), min_size=1, max_size=5)
    few = st.builds(
        lambda sizes, count: [sizes[n % len(sizes)] for n in range(count)],
        sizes,
        st.sampled_from([1, 2, 8, 31, 56, most]),
    )
    packed = st.builds(
        lambda small, count, large: [small] * count + [66 - small + 1] * large,
        st.sampled_from([22, 33, 34]),
        st.sampled_from([16, 48]),
        st.sampled_from([0, 1, 8, 16]),
    )
    return st.one_of(few, packed, st.lists(st.integers(10, 60), max_size=most)).map(
        lambda amounts: [{'resource_class': 'VGPU', 'amount': n} for n in amounts or [1]]
    )


def trees() -> st.SearchStrategy[dict[str, Any]]:
    """Draw a request for resources of the tree of a host."""
    groups = st.builds(
        lambda devices, policy, traits, below: (
            {
                'groups': {
                    f'g{n}': {'resources': {device['resource_class']: device['amount']}}
                    | ({'required_traits': [traits]} if traits and not n % 3 else {})
                    for n, device in enumerate(devices)
                },
                'group_policy': policy,
            }
            | ({'same_subtree': [['g0', f'g{len(devices) - 1}']]} if below else {})
        ),
        devices_of_trees(GROUPS),
        st.sampled_from(['none', 'none', 'isolate']),
        st.sampled_from(['', 'CUSTOM_EVEN']),
        st.booleans(),
    )
    many = st.builds(
        lambda count, amount, whole: {
            'devices': [
                {'resource_class': 'VGPU', 'amount': amount, 'count': count, 'whole': whole}
            ]
        },
        st.sampled_from([1, 4, 31, GROUPS]),
        st.sampled_from([1, 33, 66]),
        st.booleans(),
    )
    return st.one_of(groups, many, devices_of_trees(GROUPS).map(lambda some: {'devices': some}))


def _group() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            'uuid': st.integers(0, 10**9).map(lambda n: base.derived_id('hostile group', n)),
            'policy': st.sampled_from([policy.value for policy in Policy]),
            'members': _uuids(),
            'hosts': _names(_HOST, 'nobody-'),
        }
    )


def _spec() -> st.SearchStrategy[dict[str, Any]]:
    resources = st.one_of(
        st.just({'VCPU': 1}),
        st.fixed_dictionaries(
            {
                'VCPU': st.sampled_from([1, 2, 8, 10_000]),
                'MEMORY_MB': st.sampled_from([64, 512, 4096, 2**30]),
            },
            optional={'DISK_GB': st.sampled_from([1, 5000])},
        ),
    )
    texts = st.sampled_from(['a', 'x' * 1000])
    return st.fixed_dictionaries(
        {'resources': resources},
        optional={
            'required_traits': _names(_TRAIT, 'R'),
            'forbidden_traits': _names(_TRAIT, 'F'),
            'any_traits': _lists(_TRAIT, 'A'),
            'member_of': _lists(_AGGREGATE, 'M'),
            'forbidden_aggregates': _names(_AGGREGATE, 'G'),
            'availability_zone': st.sampled_from(clouds.ZONES),
            'force_hosts': _names(_HOST, 'nobody-'),
            'ignore_hosts': _names(_HOST, 'nobody-'),
            'force_nodes': _names(_HOST, 'nobody-'),
            'same_host': _uuids(),
            'different_host': _uuids(),
            'destination': st.fixed_dictionaries(
                {}, optional={'host': _HOST, 'aggregates': _lists(_AGGREGATE, 'D')}
            ),
            'group': _group(),
            'devices': _devices(),
            'tree': trees(),
            'networks': st.builds(lambda names: {'physical': names}, _names(_HOST, 'net-')),
            'flavor': st.builds(lambda specs: {'name': 'f', 'extra_specs': specs}, _extra_specs()),
            'image': st.builds(
                lambda properties, count: {
                    'properties': properties | {f'x{n}': 'a' for n in range(count)}
                },
                st.fixed_dictionaries(
                    {},
                    optional={
                        key: st.sampled_from(values) for key, values in clouds.PROPERTIES.items()
                    },
                ),
                st.sampled_from([0, 200]),
            ),
            'hints': st.fixed_dictionaries(
                {},
                optional={
                    'rules': _rules(),
                    'query': st.sampled_from(
                        [
                            [
                                '["and",'
                                + ','.join(f'["=","$host","cmp-{n}"]' for n in range(25))
                                + ']'
                            ],
                            ['[">=", "$free_ram_mb", 1024]'],
                            [
                                '["or",'
                                + ','.join(f'["<","$free_ram_mb",{n}]' for n in range(25))
                                + ']'
                            ],
                        ]
                    ),
                    'build_near_host_ip': st.just(['10.0.0.1']),
                    'cidr': st.just(['/24']),
                    'free': st.builds(lambda text: [text] * 10, texts),
                },
            ),
            'purpose': st.sampled_from([purpose.value for purpose in Purpose]),
            'project_id': st.just('red'),
        },
    )


def requests() -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy of bodies of requests; ``consumers`` is how many."""
    of_trees = st.builds(
        lambda body, tree: body | {'spec': {'resources': {'VCPU': 1}, 'tree': tree}},
        _bodies(),
        trees(),
    )
    return st.one_of(_bodies(), _bodies(), of_trees)


def _bodies() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            'spec': _spec(),
            'consumers': st.sampled_from([1, 1, 1, 2, 10, 150, 400, 1000]),
            'alternates': st.sampled_from([0, 2, 20]),
            'dry_run': st.booleans(),
        }
    )
