# SPDX-License-Identifier: Apache-2.0
"""Who calls the interface of a site, and the request that is made most."""

from typing import Any

import httpx2 as httpx

from gantt.cmd.http_app import make_app
from gantt.http.context import Caller
from tests.http.site import Site, fixed

LATEST = {'OpenStack-API-Version': 'scheduler latest'}


def as_caller(site: Site, *roles: str, project: str | None = 'red') -> httpx.Client:
    """A client of somebody with these roles in a project; None: in none."""
    caller = Caller(user='eve', project=project, roles=roles)
    app = make_app(
        site.insights,
        site.world.store,
        site.client,
        site.metrics,
        strategy=lambda req: caller,
        plans=site.plans,
    )
    transport = httpx.WSGITransport(app)
    return httpx.Client(transport=transport, base_url='http://localhost', headers=LATEST)


def ask(
    caller: httpx.Client,
    number: int,
    spec: dict[str, Any],
    count: int = 1,
    headers: dict[str, str] | None = None,
    **body: Any,
) -> httpx.Response:
    """A request of this number, for so many consumers, whose uuids follow from it."""
    consumers = [fixed(number * 1000 + i) for i in range(count)]
    body = {'request_id': fixed(number), 'consumers': consumers, 'spec': spec, **body}
    return caller.post('/v1/requests', json=body, headers=headers)
