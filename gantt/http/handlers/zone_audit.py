# SPDX-License-Identifier: Apache-2.0
"""A handler for the audit of a parent zone: digests of the keys of hosts here and below."""

import concurrent.futures
import logging

import msgspec

from gantt import exceptions
from gantt.core.zones import host_digests
from gantt.core.zones.host_digests import HostDigests
from gantt.core.zones.messages import HostDigestsPage, HostDigestsQuery, ZoneRecord
from gantt.http.context import Caller, HandlerContext
from gantt.http.zones import told
from gantt.http.zones.callers import parent_of
from gantt.scheduler.zones.audit import MARKS_SECONDS, page_of, via_of
from gantt.scheduler.zones.conditions import AT_ONCE

LOG = logging.getLogger(__name__)
#: Hosts of one page: 2 MiB of an answer.
HOSTS_MAX = 50_000
#: Share of its parent's time that a zone may take: less with each hop.
HOP_SHARE = 0.7


def show_host_digests(
    world: HandlerContext, caller: Caller, body: HostDigestsQuery
) -> HostDigestsPage:
    """Show by what hosts here and below are known, as digests under a salt.

    It is for the audit of the zone above: the same host has the same digests in each zone, and
    nothing else can be read from them.
    """
    parent, caller = parent_of(world, caller)
    told.check_trusted(parent)
    own_uuid = world.zones.directory.own_uuid()
    if via_of(body.salt, own_uuid) in body.via:
        raise exceptions.ZoneLoop()
    with world.gates.trials.passing(caller, parent.project_id):
        salt = bytes.fromhex(body.salt)
        hosts = world.stores.zone_figures.registered_hosts()
        own_marks = [host_digests.digests_of(host, own_uuid, salt) for host in hosts]
        below, complete = _below(world, body, own_uuid)
        shown, more = host_digests.page(own_marks, below, bytes.fromhex(body.after), HOSTS_MAX)
    return HostDigestsPage(digests=host_digests.written(shown), more=more, complete=complete)


def _below(
    world: HandlerContext, body: HostDigestsQuery, own_uuid: str
) -> tuple[list[tuple[list[HostDigests], bool]], bool]:
    """Return a page of each child zone, and whether all of them have answered."""
    children = [zone for zone in world.zones.directory.children() if zone.enabled]
    if not children or not body.hops:
        return [], not children
    query = msgspec.structs.replace(
        body, hops=body.hops - 1, via=[*body.via, via_of(body.salt, own_uuid)]
    )
    seconds = MARKS_SECONDS * HOP_SHARE ** len(query.via)

    def page(zone: ZoneRecord) -> tuple[list[HostDigests], bool, bool]:
        try:
            return page_of(world.zones.calls, zone, query, seconds)
        except exceptions.GanttError as e:
            LOG.warning('Hosts of a zone cannot be read: zone=%s error=%s', zone.name, e.message)
            return [], False, False

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
        pages = list(threads.map(page, children))
    return [(zone_marks, more) for zone_marks, more, _ in pages], all(whole for *_, whole in pages)
