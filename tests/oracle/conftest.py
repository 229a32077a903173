# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from typing import Any

import pytest

from tests.oracle import nova


@pytest.fixture(scope='session')
def oracle_and_names() -> Iterator[tuple[nova.Oracle, dict[str, Any]]]:
    oracle, about = nova.start_or_skip()
    with oracle:
        yield oracle, about


@pytest.fixture(scope='session')
def oracle(oracle_and_names) -> nova.Oracle:
    """Nova's filters and weighers, in a process of their own."""
    return oracle_and_names[0]


@pytest.fixture(scope='session')
def about(oracle_and_names) -> dict[str, Any]:
    """Which Nova it is, and the names of its filters and weighers."""
    return oracle_and_names[1]
