# SPDX-License-Identifier: Apache-2.0
"""A town with one host whose agent can be started again."""

import pytest

from tests.compute.hosts_in_memory import HostsInMemory, House


@pytest.fixture
def memory_hosts():
    return HostsInMemory()


@pytest.fixture
def house(memory_hosts, tmp_path):
    new_house = House(memory_hosts, tmp_path)
    new_house.member.turn()
    yield new_house
    new_house.close()
