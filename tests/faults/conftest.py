# SPDX-License-Identifier: Apache-2.0
"""Real processes and their nemesis."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator

import pytest

from tests.nemesis.load import Conductors
from tests.nemesis.site import Site


@pytest.fixture(scope='module')
def closing() -> Iterator[contextlib.ExitStack]:
    """Whatever is closed after the last test of a file, the youngest first."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture(scope='module')
def a_site(
    request: pytest.FixtureRequest, rabbit_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Site]]:
    """``a_site('postgresql')``: an empty database and no processes; until the end of the file."""
    with contextlib.ExitStack() as stack:

        def make(kind: str = 'postgresql') -> Site:
            folder: pathlib.Path = tmp_path_factory.mktemp('site')
            site = Site(folder, request.getfixturevalue(f'{kind}_url'), rabbit_url)
            stack.callback(site.close)
            return site

        yield make


@pytest.fixture(scope='module')
def conductors(closing: contextlib.ExitStack, rabbit_url: str) -> Conductors:
    """With a way of their own to the broker."""
    new_conductors = Conductors(rabbit_url)
    closing.callback(new_conductors.close)
    return new_conductors
