# SPDX-License-Identifier: Apache-2.0
"""Each extra spec and image property that Nova knows stands in our table of keys."""

import re

import pytest

from gantt.core.messages.keys.known_keys import KeyKind, known_key
from tests import nova_process

_LOOKALIKES = {'num': '0', 'group': '', 'key': 'x', 'resource': 'X', 'trait': 'X'}


@pytest.fixture(scope='module')
def nova():
    """Nova's own modules, which are read and not imported."""
    folders = sorted(nova_process.HOME.glob('lib/*/site-packages/nova'))
    if not folders:
        pytest.skip(f'NO NOVA: {nova_process.HELP}')
    return folders[0]


def test_every_extra_spec_that_novas_api_checks_is_known(nova):
    folder = nova / 'api' / 'validation' / 'extra_specs'
    text = ''.join(file.read_text() for file in folder.glob('*.py'))
    names = {name.format(**_LOOKALIKES) for name in re.findall(r"name='([^']+)'", text)}
    assert len(names) > 50
    assert [name for name in sorted(names) if known_key(KeyKind.FLAVOR, name) is None] == []


def test_every_property_of_novas_images_is_known(nova):
    text = (nova / 'objects' / 'image_meta.py').read_text().partition('class ImageMetaProps')[2]
    names = set(re.findall(r"^        '((?:hw|img|os|traits)_\w+)': fields", text, re.MULTILINE))
    assert len(names) > 80
    # Those with a value for each cell are said one by one.
    by_cell = {'hw_numa_cpus': 'hw_numa_cpus.0', 'hw_numa_mem': 'hw_numa_mem.0'}
    names = {by_cell.get(name, name) for name in names}
    assert [name for name in sorted(names) if known_key(KeyKind.IMAGE, name) is None] == []
