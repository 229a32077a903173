# SPDX-License-Identifier: Apache-2.0
"""Handler of dry runs: requests are carried out in their order, and undone in the end.

Placement has no such path, so that a client which takes a Placement for Gantt is refused, and does
not write there as it would where a parameter or a header of an ordinary request is ignored.
"""

from typing import Any

import falcon
import msgspec

from gantt import exceptions
from gantt.http.policy import PolicyEnforcer
from gantt.placement_api.http import errors, schemas
from gantt.placement_api.http.call import Call, PlacementAnswer
from gantt.placement_api.http.dispatch import RouteTable, handle_request
from gantt.placement_api.http.errors import PlacementError
from gantt.placement_api.ports import DryRuns, PlacementStores

REQUESTS_MAX = 50
_BODY_SCHEMA = schemas.object_schema(
    ['requests'],
    requests={
        'type': 'array',
        'minItems': 1,
        'maxItems': REQUESTS_MAX,
        'items': schemas.object_schema(
            ['method', 'path'],
            method={'enum': ['DELETE', 'GET', 'POST', 'PUT']},
            path={'type': 'string', 'pattern': '^/'},
            body={},
        ),
    },
)


class DryRunHandler:
    """A handler of dry runs.

    :param table: table of the routes that requests may be tried on
    """

    def __init__(self, table: RouteTable, dry_runs: DryRuns, policy: PolicyEnforcer) -> None:
        self._table = table
        self._dry_runs = dry_runs
        self._policy = policy

    def run(self, call: Call) -> PlacementAnswer:
        """Answer each of the requests as if those before it had been carried out."""
        requests = call.json(_BODY_SCHEMA)['requests']

        def work(stores: PlacementStores) -> list[dict[str, Any]]:
            return [self._answer(call, request, stores) for request in requests]

        return PlacementAnswer(body={'answers': self._dry_runs.dry_run(work)}, cached=False)

    def _answer(
        self, call: Call, request: dict[str, Any], stores: PlacementStores
    ) -> dict[str, Any]:
        req = call.subrequest(request['method'], request['path'], request.get('body'))
        req.context.version = call.version
        resp = falcon.Response()
        try:
            handle_request(self._table, req, resp, call.version, call.caller, stores, self._policy)
        except PlacementError as e:
            errors.respond_with(req, resp, e)
        except exceptions.GanttError as e:
            errors.respond_with(req, resp, errors.refusal_of_error(e))
        return {
            'status': resp.status_code,
            'body': msgspec.Raw(resp.data) if resp.data else None,
        }
