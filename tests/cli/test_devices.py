# SPDX-License-Identifier: Apache-2.0
"""``--devices`` of the command line, as a field of the request."""

import argparse

import pytest

from gantt.cli import base


@pytest.mark.parametrize(
    ('text', 'found'),
    [
        ('VGPU=500', {'amount': 500}),
        ('VGPU=500x2', {'amount': 500, 'count': 2}),
        ('VGPU=whole', {'whole': True}),
        ('VGPU=wholex4', {'whole': True, 'count': 4}),
    ],
)
def test_devices_are_a_class_an_amount_and_a_count(text: str, found: dict) -> None:
    assert base.devices(text) == {'resource_class': 'VGPU', **found}


@pytest.mark.parametrize(
    'text',
    [
        *('VGPU', 'VGPU=', '=5', 'VGPU=0', 'VGPU=5x0', 'VGPU=-1', 'VGPU=5y2'),
        *('VGPU=5x', 'VGPU=wholex', 'VGPU=x2', 'VGPU=5xwhole', 'VGPU=wholexwhole'),
    ],
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match='VGPU=500x2'):
        base.devices(text)
