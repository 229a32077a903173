# SPDX-License-Identifier: Apache-2.0
"""A town with one host whose agent can be started again."""

import pytest

from tests.compute.town import House, Town


@pytest.fixture
def town():
    return Town()


@pytest.fixture
def house(town, tmp_path):
    made = House(town, tmp_path)
    made.member.turn()
    yield made
    made.close()
