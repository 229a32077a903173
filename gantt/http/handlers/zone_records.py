# SPDX-License-Identifier: Apache-2.0
"""Handlers of child and parent zones: registered, shown, changed, removed."""

import concurrent.futures
import functools
import re
import urllib.parse
from typing import Annotated

import msgspec

from gantt import exceptions
from gantt.core.messages.base import END, NAME_MAX, UUID, Message, Name, Text
from gantt.core.zones.addresses import is_in_clear
from gantt.core.zones.messages import ParentRecord, ZoneInfo, ZoneRecord
from gantt.http.context import Caller, HandlerContext
from gantt.http.links import Paged
from gantt.http.queries import DryRun, Page, page_by_name
from gantt.insights.views import Change, View

#: Seconds to wait for the identity of a zone: while it is registered, and while it is shown.
PIN_SECONDS, DISCOVER_SECONDS = 15.0, 3.0
#: Zones of a list that are queried at once.
QUERIED_AT_ONCE = 16
SCALE_MAX = 1e6
#: SHA-256, as hexadecimal digits.
Digest = Annotated[str, msgspec.Meta(pattern=rf'^([0-9a-f]{{64}})?{END}', max_length=64)]


class ZoneSettings(Message, frozen=True, kw_only=True):
    """Settings of an operator for a zone below.

    :ivar url: of its API; needed where it is new
    :ivar credential: the section of ``[zones] credentials_file`` by which it is spoken to; '':
        none, for a zone on this machine
    :ivar last_resort: it is asked where nothing else has room
    :ivar trusted: it is of the same owner, and is told all that a request says
    :ivar scale: what its scores are multiplied with; with none, or less, all of its places would be
        alike, or the worst the best; ``offset``: what is added then
    :ivar accept_scores: its scores are of another set, and are comparable by the scale and offset
    """

    url: Text | None = None
    credential: Text | None = None
    enabled: bool | None = None
    last_resort: bool | None = None
    scale: Annotated[float, msgspec.Meta(gt=0, le=SCALE_MAX)] | None = None
    offset: Annotated[float, msgspec.Meta(ge=-SCALE_MAX, le=SCALE_MAX)] | None = None
    accept_scores: bool = False
    trusted: bool | None = None


class ZoneView(View, frozen=True, kw_only=True):
    """A zone below as it is registered, and as it answers.

    :ivar problem: why it does not answer, or cannot be asked; '' where it can
    :ivar claims: that requests of here have there, live ones
    """

    name: str
    uuid: str
    url: str
    credential: str
    enabled: bool
    last_resort: bool
    scale: float
    offset: float
    claims: int
    problem: str
    trusted: bool = False


class ZonesResponse(Paged, frozen=True, kw_only=True):
    """A page of zones below, by name.

    :ivar uuid: of this zone
    """

    uuid: str
    zones: list[ZoneView]


class ParentSettings(Message, frozen=True, kw_only=True):
    """Settings of an operator for a zone above.

    :ivar trusted: it is of the same owner: it says and reads what only operators may here
    :ivar certificate_sha256: of what it has to show to this server when a connection is made; '':
        nothing
    """

    identity: Name | None = None
    project_id: Name | None = None
    enabled: bool | None = None
    lease_seconds_max: Annotated[int, msgspec.Meta(ge=5, le=86_400)] | None = None
    trusted: bool | None = None
    certificate_sha256: Digest | None = None


class ParentView(View, frozen=True, kw_only=True):
    """A zone above as it is registered."""

    name: str
    identity: str
    project_id: str
    enabled: bool
    lease_seconds_max: int
    trusted: bool = False
    certificate_sha256: str = ''


class ParentsResponse(Paged, frozen=True, kw_only=True):
    """A page of zones above, by name."""

    parents: list[ParentView]


# -- below ---------------------------------------------------------------------------
def list_zones(world: HandlerContext, caller: Caller, query: Page) -> ZonesResponse:
    """List the zones directly below, and whether they answer."""
    world.zones.directory.refresh()
    page, marker = page_by_name(world.zones.directory.children(), query, 'zone')
    with concurrent.futures.ThreadPoolExecutor(QUERIED_AT_ONCE) as threads:
        views = list(threads.map(functools.partial(_view, world), page))
    own_uuid = world.zones.directory.own_uuid()
    return ZonesResponse(uuid=own_uuid, zones=views, next_marker=marker)


def show_zone(world: HandlerContext, caller: Caller, name: str) -> ZoneView:
    """Show a zone directly below, and whether it answers."""
    return _view(world, _zone(world, name))


def set_zone(
    world: HandlerContext, caller: Caller, name: str, query: DryRun, body: ZoneSettings
) -> Change[ZoneView]:
    """Register a zone directly below, or change what is set of it.

    A new one is asked who it is: from then on it is that one, whatever answers at its address.
    """
    world.zones.directory.refresh()
    registered = world.zones.directory.child(name)
    if registered is None:
        _check_name(name)
        if body.url is None:
            problem = f'expected the address of zone {name!r}, which is new'
            raise exceptions.invalid('body.url', problem)
    if body.url is not None:
        _check_url(body.url)
    if len(body.credential or '') > NAME_MAX:
        raise exceptions.invalid('body.credential', f'expected at most {NAME_MAX} characters')
    before = registered or ZoneRecord(uuid='', name=name, url=body.url or '')
    changes = {
        field: value
        for field in ('url', 'credential', 'enabled', 'last_resort', 'scale', 'offset', 'trusted')
        if (value := getattr(body, field)) is not None
    }
    zone = msgspec.structs.replace(before, **changes)
    if registered is None or {'url', 'credential'} & changes.keys() or body.accept_scores:
        zone = _pinned(world, zone, body.accept_scores)
    verb = 'changed' if registered else 'added'
    if query.dry_run:
        now = _view(world, zone)
        return Change(dry_run=True, message=f'zone {zone.name} would be {verb}', now=now)
    world.stores.zones.save_child_zone(zone)
    world.zones.directory.refresh()
    return Change(
        dry_run=False,
        message=f'zone {zone.name} is {verb}',
        now=_view(world, _zone(world, zone.uuid)),
    )


def remove_zone(
    world: HandlerContext, caller: Caller, name: str, query: DryRun
) -> Change[ZoneView]:
    """Forget a zone directly below; one that requests of here have claims in is in use."""
    now = show_zone(world, caller, name)
    if query.dry_run:
        return Change(dry_run=True, message=f'zone {now.name} would be removed', now=now)
    world.stores.zones.remove_child_zone(now.uuid)
    world.zones.directory.refresh()
    return Change(dry_run=False, message=f'zone {now.name} is removed', now=now)


def _zone(world: HandlerContext, name: str) -> ZoneRecord:
    world.zones.directory.refresh()
    record = world.zones.directory.child(name)
    if record is None:
        raise exceptions.NotFound(kind='zone', name=name)
    return record


def _check_name(name: str) -> None:
    """Check that a name of a zone is usable in a path and is no uuid.

    :raises InvalidMessage: it is not
    """
    if not name.strip() or len(name) > NAME_MAX or re.search(UUID, name):
        problem = f'expected a name of at most {NAME_MAX} characters, not blank, and no UUID'
        raise exceptions.invalid('name', problem)


def _check_url(url: str) -> None:
    """Check that a URL can be that of a zone's API.

    :raises InvalidMessage: it cannot
    """
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ('http', 'https') and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, brackets that do not match
        good = False
    # The stored URL is shown: a password in it would be as well.
    if not good or re.search(r'[^!-~]|[@?#]', url):
        raise exceptions.invalid(
            'body.url', 'expected http:// or https://, a host, and if need be :PORT and a path'
        )
    if is_in_clear(url):
        raise exceptions.invalid(
            'body.url',
            'expected https:// for a zone on another machine: whoever is on the way reads what is '
            'sent, the credential too',
        )


def _pinned(world: HandlerContext, zone: ZoneRecord, accept_scores: bool) -> ZoneRecord:
    """Return a zone record with the uuid and the score set that the zone reports.

    :raises Refused: it is this zone, another one than is registered, or has another score set
    """
    unpinned = msgspec.structs.replace(zone, uuid='')
    own_uuid = world.zones.directory.own_uuid()
    itself = exceptions.Refused(f'{zone.url} is this zone itself; expected another one')
    try:
        info: ZoneInfo = world.zones.calls.discover(unpinned, PIN_SECONDS)
    except exceptions.Misconfigured as e:
        raise exceptions.invalid(
            'body.credential', f'expected one by which this zone can ask there: {e.message}'
        ) from None
    except exceptions.Unavailable as e:
        raise exceptions.Refused(f'zone {zone.name!r} does not answer: {e.message}') from None
    except exceptions.GanttError as e:
        if e.kwargs.get('zone') == own_uuid:
            raise itself from None
        raise exceptions.Refused(
            f'zone {zone.name!r} does not let this one ask: {e.message}; expected it to be '
            f'registered there, as by "gantt parent add NAME --identity {own_uuid} '
            '--project PROJECT", or its credential'
        ) from None
    if info.uuid == own_uuid:
        raise itself
    if zone.uuid and info.uuid != zone.uuid:
        raise exceptions.Refused(
            f'{zone.url} is the zone {info.uuid}; expected {zone.uuid}, which {zone.name!r} is'
        )
    other = world.zones.directory.child(info.uuid)
    if other is not None and other.name != zone.name:
        raise exceptions.Refused(
            f'that zone is registered as {other.name!r}; expected one that is not'
        )
    own_score_set = world.zones.score_set()
    # A score set that was accepted once stays accepted as long as it is the same.
    accept_scores = accept_scores or info.score_set == zone.score_set
    accepted = info.score_set if accept_scores and info.score_set != own_score_set else ''
    if info.score_set != own_score_set and not accepted:
        raise exceptions.Refused(
            f'zone {zone.name!r} has other weighers, multipliers or settings: its scores cannot be '
            'compared with those of this zone. Expected the same, or a scale and an offset with '
            'accept_scores'
        )
    return msgspec.structs.replace(zone, uuid=info.uuid, score_set=accepted)


def _view(world: HandlerContext, zone: ZoneRecord) -> ZoneView:
    problem = ''
    try:
        world.zones.calls.discover(zone, DISCOVER_SECONDS)
    except exceptions.GanttError as e:
        problem = e.message
    live = [
        claim
        for claim in world.stores.zone_claims.child_claims(child=zone.uuid)
        if claim.state in ('reserved', 'confirmed')
    ]
    return ZoneView(
        name=zone.name,
        uuid=zone.uuid,
        url=zone.url,
        credential=zone.credential,
        enabled=zone.enabled,
        last_resort=zone.last_resort,
        scale=zone.scale,
        offset=zone.offset,
        claims=len(live),
        problem=problem,
        trusted=zone.trusted,
    )


# -- above ---------------------------------------------------------------------------
def list_parents(world: HandlerContext, caller: Caller, query: Page) -> ParentsResponse:
    """List the zones above that may ask here."""
    page, marker = page_by_name(world.stores.zones.parent_zones(), query, 'parent zone')
    return ParentsResponse(parents=list(map(_of, page)), next_marker=marker)


def set_parent(
    world: HandlerContext, caller: Caller, name: str, query: DryRun, body: ParentSettings
) -> Change[ParentView]:
    """Register a zone above that may ask here, or change what it may have."""
    registered = {
        parent_record.name: parent_record for parent_record in world.stores.zones.parent_zones()
    }.get(name)
    if registered is None:
        _check_name(name)
    changes = {
        field: value
        for field in ParentSettings.__struct_fields__
        if (value := getattr(body, field)) is not None
    }
    for field in ('identity', 'project_id'):
        if registered is None and field not in changes:
            raise exceptions.invalid(f'body.{field}', f'expected it of zone {name!r}, which is new')
    parent = (
        msgspec.structs.replace(registered, **changes)
        if registered
        else ParentRecord(name=name, **changes)
    )
    verb = 'changed' if registered else 'added'
    if query.dry_run:
        return Change(dry_run=True, message=f'parent {name} would be {verb}', now=_of(parent))
    world.stores.zones.save_parent_zone(parent)
    world.zones.directory.refresh()
    return Change(dry_run=False, message=f'parent {name} is {verb}', now=_of(parent))


def remove_parent(
    world: HandlerContext, caller: Caller, name: str, query: DryRun
) -> Change[ParentView]:
    """Forget a zone above; one with live claims here is in use."""
    registered = {
        parent_record.name: parent_record for parent_record in world.stores.zones.parent_zones()
    }.get(name)
    if registered is None:
        raise exceptions.NotFound(kind='parent zone', name=name)
    if query.dry_run:
        return Change(dry_run=True, message=f'parent {name} would be removed', now=_of(registered))
    world.stores.zones.remove_parent_zone(name)
    world.zones.directory.refresh()
    return Change(dry_run=False, message=f'parent {name} is removed', now=_of(registered))


def _of(parent: ParentRecord) -> ParentView:
    return ParentView(
        name=parent.name,
        identity=parent.identity,
        project_id=parent.project_id,
        enabled=parent.enabled,
        lease_seconds_max=parent.lease_seconds_max,
        trusted=parent.trusted,
        certificate_sha256=parent.certificate_sha256,
    )
