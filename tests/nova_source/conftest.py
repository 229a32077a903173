# SPDX-License-Identifier: Apache-2.0
"""Nova and Placement played over HTTP, a scheduler on a store in memory, a source between."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.nova_source.openstack import OpenStack
from tests.nova_source.region import Region


@pytest.fixture
def openstack() -> Iterator[OpenStack]:
    cloud = OpenStack()
    yield cloud
    cloud.close()


@pytest.fixture
def region(openstack: OpenStack) -> Region:
    return Region(openstack)


@pytest.fixture
def make_region(openstack: OpenStack) -> Callable[..., Region]:
    return lambda **options: Region(openstack, **options)


@pytest.fixture
def cells_file(tmp_path: Path) -> Callable[..., str]:
    """``cells_file(host=cell)``: the table that nova-manage prints."""

    def write(**hosts: str) -> str:
        line = '+' + '-' * 11 + '+' + '-' * 38 + '+' + '-' * 14 + '+'
        rows = [
            f'|  {"a cell"}   | {cell} | {host.replace("_", "-"):12} |'
            for host, cell in hosts.items()
        ]
        path = tmp_path / 'cells.txt'
        title = '| Cell Name |              Cell UUID               |   Hostname   |'
        path.write_text('\n'.join([line, title, line, *rows, line]) + '\n')
        return str(path)

    return write
