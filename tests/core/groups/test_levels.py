# SPDX-License-Identifier: Apache-2.0
"""Domains of hosts by level: parts of location, zones, metadata of aggregates, text facts."""

import pytest

from gantt import exceptions
from gantt.core.group_policies.levels import Levels
from gantt.core.resources.host import Aggregate
from tests.core.builders import a_host, a_table, an_id


def domains(table, level, **settings):
    domains_ = Levels(table, **settings).codes_of(level)
    return [None if code < 0 else domains_.names[code] for code in domains_.codes.tolist()]


@pytest.fixture
def table():
    places = ['s1.r1.k1', 's1.r2.k1', 's1.r1.k1', 's2', None]
    hosts = [
        a_host(i, location=place, zone='east' if i < 3 else None)
        for i, place in enumerate(places, 1)
    ]
    aggregates = [
        Aggregate(
            id=1, uuid=an_id(1, 9), name='a', hosts=['cmp-1', 'cmp-2'], metadata={'row': 'x'}
        ),
        Aggregate(
            id=2, uuid=an_id(2, 9), name='b', hosts=['cmp-2', 'cmp-3'], metadata={'row': 'y'}
        ),
    ]
    return a_table(*hosts, aggregates=aggregates)


def test_each_host_is_a_domain_of_its_own(table):
    assert domains(table, 'host') == [f'cmp-{i}' for i in range(1, 6)]


def test_a_rack_is_in_its_room_and_a_host_without_one_is_nowhere(table):
    assert domains(table, 'rack') == ['s1.r1.k1', 's1.r2.k1', 's1.r1.k1', None, None]
    assert domains(table, 'room') == ['s1.r1', 's1.r2', 's1.r1', None, None]
    assert domains(table, 'site') == ['s1', 's1', 's1', 's2', None]


def test_parts_of_location_are_called_as_configured(table):
    assert domains(table, 'hall', parts=['campus', 'hall']) == domains(table, 'room')
    with pytest.raises(exceptions.InvalidMessage, match='expected a level; got'):
        Levels(table, ['campus', 'hall']).codes_of('rack')


def test_a_host_of_two_values_of_a_key_is_in_neither(table):
    assert domains(table, 'metadata.row') == ['x', None, 'y', None, None]


def test_zones_and_other_texts_are_levels(table):
    assert domains(table, 'zone') == ['east', 'east', 'nova', 'nova', 'nova']
    assert domains(table, 'name') == domains(table, 'host')


def test_an_empty_cloud_has_no_domains():
    assert domains(a_table(), 'rack') == []
    assert domains(a_table(), 'metadata.row') == []
