# SPDX-License-Identifier: Apache-2.0
"""The HTTP interface as its callers see it: the requests in ``gabbits/``."""

from pathlib import Path
from typing import Any

from gabbi import driver
from gabbi.driver import test_pytest

from tests.http import fixtures

__all__ = ['test_pytest']


def pytest_generate_tests(metafunc: Any) -> None:
    driver.py_test_generator(
        str(Path(__file__).parent / 'gabbits'),
        intercept=fixtures.app,
        fixture_module=fixtures,
        test_loader_name='gabbi',
        metafunc=metafunc,
    )
