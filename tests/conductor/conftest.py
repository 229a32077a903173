# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator

import pytest

from tests.conductor import nova
from tests.conductor.site import Cloud


@pytest.fixture(scope='module')
def cloud(tmp_path_factory, rabbit_url: str, postgresql_url: str) -> Iterator[Cloud]:
    """One scheduler process with its hosts for all tests of a module."""
    new_cloud = Cloud(tmp_path_factory.mktemp('cloud'), postgresql_url, rabbit_url)
    yield new_cloud
    new_cloud.close()


@pytest.fixture(scope='module')
def conductor(rabbit_url: str) -> Iterator[nova.Client]:
    """Nova's own client of its scheduler."""
    with nova.start_or_skip(rabbit_url) as client:
        yield client


@pytest.fixture(autouse=True)
def nothing_wrong_is_left(request) -> Iterator[None]:
    yield
    if 'cloud' in request.fixturenames:
        assert not any(request.getfixturevalue('cloud').site.store.claims.audit().values())
