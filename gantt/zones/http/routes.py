# SPDX-License-Identifier: Apache-2.0
"""The part of the HTTP interface about zones: its routes, its header, its health check."""

import contextlib
import functools
from typing import Any

import falcon
import msgspec

from gantt import exceptions
from gantt.http.context import HandlerContext, HttpExtension
from gantt.http.routes import route
from gantt.zones.http import records, requests, tree
from gantt.zones.http.context import ZoneHandlerContext
from gantt.zones.ports import ZoneStores
from gantt.zones.service.conditions import problem_summary
from gantt.zones.service.context import ZoneContext
from gantt.zones.service.directory import ZoneDirectory

#: Unaudited; statuses of a refused token, and of a request that has come through this zone before.
_query = functools.partial(route, is_audited=False, refusals=(410, 508))

ROUTES = (
    route('GET /v1/zones', records.list_zones, 'zones:list'),
    route('GET /v1/zones/{name}', records.show_zone, 'zones:list'),
    route('PUT /v1/zones/{name}', records.set_zone, 'zones:set'),
    route('DELETE /v1/zones/{name}', records.remove_zone, 'zones:remove'),
    route('GET /v1/zone-tree', tree.show_zone_tree, 'zones:list'),
    route('GET /v1/parents', records.list_parents, 'parents:list'),
    route('PUT /v1/parents/{name}', records.set_parent, 'parents:set'),
    route('DELETE /v1/parents/{name}', records.remove_parent, 'parents:remove'),
    _query('POST /v1/sealed-hosts', requests.unseal_host, 'sealed_hosts:unseal'),
    route('GET /zone/v1', requests.discover_zone, 'zone:query'),
    route('GET /zone/v1/summary', requests.summarize_zone, 'zone:query', is_conditional=True),
    route('GET /zone/v1/changes', requests.show_zone_changes, 'zone:query', is_conditional=True),
    _query('POST /zone/v1/host-digests', requests.show_host_digests, 'zone:compare'),
    _query('POST /zone/v1/evaluations', requests.evaluate_zone, 'zone:query'),
    _query(
        'PUT /zone/v1/allocations/{key}',
        requests.allocate_in_zone,
        'zone:query',
        bytes_max=None,
    ),
    _query('POST /zone/v1/capacity', requests.count_capacity_of_zone, 'zone:query'),
    route('GET /zone/v1/allocations/{key}', requests.show_zone_allocation, 'zone:query'),
    _query('PUT /zone/v1/allocations/{key}/lease', requests.extend_zone_lease, 'zone:query'),
    route('GET /zone/v1/explanations/{key}', requests.explain_zone_allocation, 'zone:query'),
    route('DELETE /zone/v1/allocations/{key}', requests.release_zone_allocation, 'zone:query'),
    route(
        'DELETE /zone/v1/allocations/{key}/claims/{claim_id}',
        requests.end_claim_of_zone,
        'zone:query',
    ),
)


class ZoneName:
    """A falcon middleware that puts this zone's uuid in the header of answers to parent zones."""

    def __init__(self, directory: ZoneDirectory) -> None:
        self._directory = directory

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, resource: Any, succeeded: bool
    ) -> None:
        """Set the header ``Gantt-Zone`` on answers below ``/zone/``."""
        if req.path.startswith('/zone/'):
            with contextlib.suppress(exceptions.DatabaseUnavailable):
                resp.set_header('Gantt-Zone', self._directory.own_uuid())


def extension(stores: ZoneStores, zones: ZoneContext) -> HttpExtension:
    """Return the part of the interface about zones."""

    def with_zones(context: HandlerContext) -> HandlerContext:
        fields = msgspec.structs.asdict(context) | {'stores': stores, 'zones': zones}
        return ZoneHandlerContext(**fields)

    return HttpExtension(
        ROUTES,
        with_zones,
        {'zones': lambda: condition_of_children(zones)},
        (ZoneName(zones.directory),),
    )


def condition_of_children(context: ZoneContext) -> str:
    """Return the conditions of child zones some seconds ago, without waiting for another zone.

    :raises Unavailable: one of them has a problem
    """
    context.directory.freshen()
    children = context.directory.children()
    if not children:
        return 'there are no child zones'
    conditions = context.conditions.cached()
    if conditions is None:
        return 'the child zones are being called'
    problem = problem_summary(conditions)
    if problem:
        raise exceptions.Unavailable(problem)
    return f'{len(conditions)} child zones answer'
