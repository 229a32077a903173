# SPDX-License-Identifier: Apache-2.0
"""Servers that speak Placement, empty for each test: the real one where it is, and Gantt."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gantt.cmd import policies
from gantt.http.server import HttpServer
from gantt.http.settings import HttpSettings
from gantt.placement_api.http.app import make_placement_app
from gantt.placement_api.transfer.server import PlacementServer
from gantt.stores import stores_for_url
from gantt.telemetry.metrics import MetricRegistry
from tests.placement import real
from tests.placement.server import Server
from tests.transfer import cloud

PYTHON = Path(__file__).parents[2] / '.venv-placement/bin/python'
SERVERS = ['gantt', 'placement']


@pytest.fixture
def at() -> Iterator[Callable[[str], PlacementServer]]:
    """``at(url)``: a server as a side."""
    with contextlib.ExitStack() as stack:
        yield lambda url: stack.enter_context(
            contextlib.closing(PlacementServer(url, lambda: 'admin'))
        )


@pytest.fixture
def writing_to() -> Iterator[Callable[[str], Server]]:
    """``writing_to(url)``: a server as one that builds a cloud there."""
    with contextlib.ExitStack() as stack:
        yield lambda url: stack.enter_context(contextlib.closing(Server(url)))


@pytest.fixture(scope='session')
def real_placement() -> Iterator[str]:
    """URL of the real one."""
    if not PYTHON.exists():
        pytest.skip('NO PLACEMENT: "make venv-placement" installs it')
    with real.servers(PYTHON, ['legacy']) as urls:
        yield urls['legacy']


@contextlib.contextmanager
def serving(store: Any) -> Iterator[str]:
    """URL of Placement's interface over a store, meanwhile."""
    app = make_placement_app(store, MetricRegistry(), HttpSettings(), policies.defaults())
    server = HttpServer(app, '127.0.0.1', 0, threads=4)
    server.start()
    try:
        yield f'http://127.0.0.1:{server.port}'
    finally:
        server.stop(5)


@pytest.fixture
def serve(make_store: Callable[..., Any]) -> Iterator[Callable[[Any], str]]:
    """``serve(store)``: URL of Placement's interface over a store."""
    with contextlib.ExitStack() as stack:
        yield lambda store: stack.enter_context(serving(store))


@pytest.fixture(scope='session')
def cloud_file(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Path:
    """A SQLite file with the cloud, built over Gantt's interface; copy it."""
    path = tmp_path_factory.mktemp('cloud') / 'cloud.db'
    shutil.copy(sqlite_template, path)
    store = stores_for_url(f'sqlite:///{path}')
    with contextlib.closing(store.database):
        with serving(store) as url, contextlib.closing(Server(url)) as server:
            cloud.build(server)
    return path


@pytest.fixture
def built_server(
    serve: Callable[[Any], str],
    tmp_path: Path,
    cloud_file: Path,
    writing_to: Callable[[str], Server],
) -> Iterator[Server]:
    """One of Gantt with the cloud in it, its URL in ``url``."""
    path = shutil.copy(cloud_file, tmp_path / 'cloud.db')
    store = stores_for_url(f'sqlite:///{path}')
    with contextlib.closing(store.database):
        yield writing_to(serve(store))


@pytest.fixture
def empty_server(
    request: pytest.FixtureRequest,
    serve: Callable[[Any], str],
    make_store: Callable[..., Any],
    writing_to: Callable[[str], Server],
) -> Callable[[str], str]:
    """``empty_server(kind)``: URL of one with nothing in it."""

    def start(kind: str) -> str:
        if kind == 'gantt':
            return serve(make_store('sqlite'))
        url: str = request.getfixturevalue('real_placement')
        writing_to(url).clean()
        return url

    return start
