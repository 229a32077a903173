# SPDX-License-Identifier: Apache-2.0
"""Every implementation of the ports of stores."""

from collections.abc import Callable

import pytest

from gantt.stores import AllStores
from tests.builders import Host, a_host
from tests.conftest import STORES
from tests.contract.damage import MemoryDamage, SqlDamage, damage_for


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every kind of store, or the ``KINDS`` of a module."""
    if 'store' in metafunc.fixturenames:
        metafunc.parametrize('store', getattr(metafunc.module, 'KINDS', STORES), indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest, make_store: Callable[[str], AllStores]) -> AllStores:
    """An empty store of each kind."""
    return make_store(request.param)


@pytest.fixture
def host(store: AllStores) -> Host:
    """A host of 8 cores, 16 GiB and 100 GiB that has reported."""
    return a_host().on(store)


@pytest.fixture
def damage(store: AllStores) -> MemoryDamage | SqlDamage:
    """Plants violations that no method of the store makes."""
    return damage_for(store)
