# SPDX-License-Identifier: Apache-2.0
"""Benches that tests run are looked at for what they say, not for figures: none waits."""

import pytest

from bench import conditions


@pytest.fixture(autouse=True, scope='session')
def no_wait():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(conditions.WAIT, '0')
        yield
