# SPDX-License-Identifier: Apache-2.0
"""Platforms and addresses of hosts as columns: shared, followed, bounded."""

import msgspec
import numpy as np
import pytest

from gantt.core.messages.report import Hypervisor, ReportedMetric
from gantt.core.table.columns import SPARE_ROWS, InternedFacts
from gantt.core.table.facts import LOW_64_BITS, MAPPED_IPV4_PREFIX, address_of
from tests.core.builders import a_change, a_host, a_table


def a_hypervisor(**fields):
    return Hypervisor(
        **({'type': 'QEMU', 'version': 1, 'cpu_info': {'features': ['aes']}} | fields)
    )


def test_hosts_of_one_kind_share_a_platform_and_what_it_says():
    table = a_table(
        a_host(1, hypervisor=a_hypervisor(hostname='one', host_ip='10.0.0.1')),
        a_host(2, hypervisor=a_hypervisor(hostname='two', host_ip='10.0.0.2')),
        a_host(3, hypervisor=a_hypervisor(type='ironic')),
    )
    first, second, third = table.platform.tolist()
    assert first == second != third
    assert table.hosts[0].facts.hypervisor.cpu_info is table.hosts[1].facts.hypervisor.cpu_info
    assert table.hosts[1].facts.hypervisor.hostname == 'two'
    assert [int(low) for low in table.address[1]] == [
        MAPPED_IPV4_PREFIX + 0x0A000001,
        MAPPED_IPV4_PREFIX + 0x0A000002,
        0,
    ]


def test_a_platform_follows_the_news_and_snapshots_keep_theirs():
    row = a_host(1, hypervisor=a_hypervisor(host_ip='10.0.0.1'))
    table = a_table(row)
    before = table.snapshot()

    def tell(version, **facts):
        new = msgspec.structs.replace(
            row, version=version, facts=msgspec.structs.replace(row.facts, **facts)
        )
        table.apply(a_change(new))

    tell(2, metrics={'m': ReportedMetric(value=1.0)})
    assert table.platform[0] == before.platform[0]
    assert table.hosts[0].facts.hypervisor is before.hosts[0].facts.hypervisor
    tell(3, hypervisor=a_hypervisor(version=2, host_ip='fd00::1'))
    assert table.platforms.values[table.platform[0]].version == 2
    assert before.platforms.values[before.platform[0]].version == 1
    assert table.address[0, 0] == 0xFD00 << 48
    assert len(before.platforms) == 1


def test_platforms_that_no_host_has_any_more_are_forgotten():
    row = a_host(1)
    table = a_table(row)
    for version in range(2, 2 * SPARE_ROWS):
        hypervisor = a_hypervisor(stats={'boot': str(version)})
        facts = msgspec.structs.replace(row.facts, hypervisor=hypervisor)
        table.apply(a_change(msgspec.structs.replace(row, version=version, facts=facts)))
        assert table.platforms.values[table.platform[0]].stats == {'boot': str(version)}
        assert len(table.platforms) <= SPARE_ROWS + 4


def test_codes_change_with_their_column():
    interned, column = InternedFacts(), np.zeros(3, np.int32)
    for number in range(SPARE_ROWS + 20):
        column[number % 3] = interned.add(number, f'value {number}')
    values = [interned.values[code] for code in column]
    interned.compact(column)
    assert [interned.values[code] for code in column] == values
    assert len(interned) == 3
    assert interned.add('new', 'new') == 3


@pytest.mark.parametrize(
    ('text', 'address'),
    [
        ('10.0.0.1', MAPPED_IPV4_PREFIX | 0x0A000001),
        (' 10.0.0.1 ', MAPPED_IPV4_PREFIX | 0x0A000001),
        ('::ffff:10.0.0.1', MAPPED_IPV4_PREFIX | 0x0A000001),
        ('fd00::1', (0xFD00 << 112) + 1),
        ('10.0.0', None),
        ('', None),
    ],
)
def test_addresses(text, address):
    assert address_of(text) == address
    assert (address or 0) & LOW_64_BITS <= LOW_64_BITS
