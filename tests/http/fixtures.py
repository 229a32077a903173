# SPDX-License-Identifier: Apache-2.0
"""gabbi's fixtures: each file of requests gets a site of its own."""

from typing import Any

from gabbi import fixture

from tests.http.site import Site


class _Current:
    site: Site | None = None


def app() -> Any:
    """The application of the site that the running file has."""

    def current(environ: Any, start_response: Any) -> Any:
        assert _Current.site is not None
        # gabbi asks for a host of its own making, and names of others are refused.
        environ['HTTP_HOST'] = 'localhost'
        return _Current.site.app(environ, start_response)

    return current


class SiteFixture(fixture.GabbiFixture):
    """Six hosts and a placed request."""

    def start_fixture(self) -> None:
        _Current.site = Site()
        _Current.site.place(1)

    def stop_fixture(self) -> None:
        _Current.site = None
