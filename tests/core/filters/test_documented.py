# SPDX-License-Identifier: Apache-2.0
"""The page on Nova's filters: its tests and options exist, and every filter has its own."""

import pathlib
import re

import pytest

from gantt import plugin_loader
from tests.core.filters.reference import REFERENCE

ROOT = pathlib.Path(__file__).parents[3]
PAGE = (ROOT / 'doc/source/reference/nova-filters.rst').read_text()
TESTS = '\n'.join(
    path.read_text() for place in ('core', 'rpc') for path in (ROOT / 'tests' / place).rglob('*.py')
)


@pytest.mark.parametrize('name', sorted(set(re.findall(r'``(test_\w+)``', PAGE))))
def test_a_test_that_the_page_names_exists(name):
    assert f'def {name}(' in TESTS


def test_an_option_that_brings_novas_way_back_exists():
    documented = set(re.findall(r'``(\w+_as_nova)``', PAGE))
    options = {
        option.name
        for name in plugin_loader.installed(plugin_loader.FILTERS)
        for option in plugin_loader.find(plugin_loader.FILTERS, name).options
    }
    assert documented
    assert documented == {name for name in options if name.endswith('_as_nova')}


def test_every_filter_of_nova_is_there():
    """Compare with filters of Nova 34 and those it removed, but for one that the page names."""
    removed = ('Ram', 'Core', 'Disk', 'AggregateRam', 'AggregateCore', 'AggregateDisk', 'Retry')
    exact = ('ExactRam', 'ExactCore', 'ExactDisk', 'AvailabilityZone')
    now = (
        'AllHosts',
        'Compute',
        'ComputeCapabilities',
        'ImageProperties',
        'ServerGroupAntiAffinity',
        'ServerGroupAffinity',
        'DifferentHost',
        'SameHost',
        'SimpleCIDRAffinity',
        'Json',
        'Metrics',
        'AggregateInstanceExtraSpecs',
        'AggregateTypeAffinity',
        'AggregateNumInstances',
        'TypeAffinity',
        'NumInstances',
        'AggregateIoOps',
        'IoOps',
        'IsolatedHosts',
        'NUMATopology',
        'PciPassthrough',
    )
    expected = {f'{name}Filter' for name in (*removed, *exact, *now)}
    expected |= {'AggregateImagePropertiesIsolation', 'AggregateMultiTenancyIsolation'}
    assert expected <= set(plugin_loader.installed(plugin_loader.FILTERS))
    assert expected >= set(REFERENCE)
