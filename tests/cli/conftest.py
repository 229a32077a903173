# SPDX-License-Identifier: Apache-2.0
"""The command line against a live server in a thread."""

import io
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from gantt.cli.main import main
from gantt.cmd import policies
from gantt.http.server import HttpServer
from gantt.http.settings import HttpSettings
from gantt.placement_api.http.app import make_placement_app
from gantt.placement_api.http.dispatch import mounted_app
from tests.http.site import Site


class Run(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


Gantt = Callable[..., Run]


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.fixture
def endpoint(site: Site) -> Iterator[str]:
    placement = make_placement_app(
        site.world.store, site.metrics, HttpSettings(), policies.defaults()
    )
    both = mounted_app(site.app, placement, at_root=False)
    server = HttpServer(both, '127.0.0.1', 0, threads=4)
    server.start()
    yield f'http://127.0.0.1:{server.port}'
    assert server.stop(5)


@pytest.fixture
def gantt(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Gantt:
    """``gantt('host', 'list')``: run a command against the server."""
    monkeypatch.setenv('GANTT_ENDPOINT', endpoint)
    monkeypatch.setenv('COLUMNS', '80')
    return run


def run(*argv: str) -> Run:
    out, err = io.StringIO(), io.StringIO()
    code = main(argv, out, err)
    return Run(code, out.getvalue(), err.getvalue())
