# SPDX-License-Identifier: Apache-2.0
"""Handlers of child and parent zones: registered, shown, changed, removed."""

import concurrent.futures
import functools
import re
import urllib.parse
from typing import Annotated

import msgspec

from gantt import exceptions
from gantt.core.messages.base import END_PATTERN, NAME_MAX, UUID_PATTERN, Message, Name, Text
from gantt.http.context import Caller
from gantt.http.links import Paged
from gantt.http.queries import DryRun, Page, page_by_name
from gantt.insights.views import Change, View
from gantt.zones.http.context import ZoneHandlerContext
from gantt.zones.model.addresses import is_in_clear
from gantt.zones.model.messages import ParentRecord, ZoneInfo, ZoneRecord

#: Seconds to wait for the identity of a zone: while it is registered, and while it is shown.
PIN_SECONDS, DISCOVER_SECONDS = 15.0, 3.0
#: Zones of a list that are queried at once.
CONCURRENT_QUERIES_MAX = 16
SCALE_MAX = 1e6
#: SHA-256, as hexadecimal digits.
Digest = Annotated[str, msgspec.Meta(pattern=rf'^([0-9a-f]{{64}})?{END_PATTERN}', max_length=64)]


class ZoneSettings(Message, frozen=True, kw_only=True):
    """Settings of an operator for a child zone.

    :ivar url: URL of its API; required for a new zone
    :ivar credential: the section of ``[zones] credentials_file`` with the secret of calls to it;
        '': none, for a zone on this machine
    :ivar last_resort: it is queried only where nothing else has room
    :ivar trusted: it has the same owner, and receives all fields of a request
    :ivar scale: factor of its scores, above 0, as any other would make its offers equal or reverse
        their order; ``offset`` is added to the product
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
    """A child zone as it is registered, and as it answers.

    :ivar problem: why it does not answer, or cannot be called; '': no problem
    :ivar claims: number of live claims there of this zone's requests
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
    """A page of child zones, by name.

    :ivar uuid: of this zone
    """

    uuid: str
    zones: list[ZoneView]


class ParentSettings(Message, frozen=True, kw_only=True):
    """Settings of an operator for a parent zone.

    :ivar trusted: it has the same owner, and may set and read fields limited to operators
    :ivar certificate_sha256: digest of the client certificate that it must present; '': none
    """

    identity: Name | None = None
    project_id: Name | None = None
    enabled: bool | None = None
    lease_seconds_max: Annotated[int, msgspec.Meta(ge=5, le=86_400)] | None = None
    trusted: bool | None = None
    certificate_sha256: Digest | None = None


class ParentView(View, frozen=True, kw_only=True):
    """A parent zone as it is registered."""

    name: str
    identity: str
    project_id: str
    enabled: bool
    lease_seconds_max: int
    trusted: bool = False
    certificate_sha256: str = ''


class ParentsResponse(Paged, frozen=True, kw_only=True):
    """A page of parent zones, by name."""

    parents: list[ParentView]


# -- below ---------------------------------------------------------------------------
def list_zones(context: ZoneHandlerContext, caller: Caller, query: Page) -> ZonesResponse:
    """List the child zones, and whether they answer."""
    context.zones.directory.refresh()
    page, marker = page_by_name(context.zones.directory.children(), query, 'zone')
    with concurrent.futures.ThreadPoolExecutor(CONCURRENT_QUERIES_MAX) as threads:
        views = list(threads.map(functools.partial(_view, context), page))
    own_uuid = context.zones.directory.own_uuid()
    return ZonesResponse(uuid=own_uuid, zones=views, next_marker=marker)


def show_zone(context: ZoneHandlerContext, caller: Caller, name: str) -> ZoneView:
    """Show a child zone, and whether it answers."""
    return _view(context, _zone(context, name))


def set_zone(
    context: ZoneHandlerContext, caller: Caller, name: str, query: DryRun, body: ZoneSettings
) -> Change[ZoneView]:
    """Register a child zone, or change its settings.

    A new zone is queried for its uuid: every later answer has to be of this zone, whatever answers
    at its address.
    """
    context.zones.directory.refresh()
    registered = context.zones.directory.child(name)
    if registered is None:
        _check_name(name)
        if body.url is None:
            problem = f'expected a URL: zone {name!r} is new'
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
        zone = _with_reported_identity(context, zone, body.accept_scores)
    verb = 'changed' if registered else 'added'
    if query.dry_run:
        now = _view(context, zone)
        return Change(dry_run=True, message=f'zone {zone.name} would be {verb}', now=now)
    context.stores.zones.save_child_zone(zone)
    context.zones.directory.refresh()
    return Change(
        dry_run=False,
        message=f'zone {zone.name} is {verb}',
        now=_view(context, _zone(context, zone.uuid)),
    )


def remove_zone(
    context: ZoneHandlerContext, caller: Caller, name: str, query: DryRun
) -> Change[ZoneView]:
    """Remove a child zone; with live claims of this zone's requests it is in use."""
    now = show_zone(context, caller, name)
    if query.dry_run:
        return Change(dry_run=True, message=f'zone {now.name} would be removed', now=now)
    context.stores.zones.remove_child_zone(now.uuid)
    context.zones.directory.refresh()
    return Change(dry_run=False, message=f'zone {now.name} is removed', now=now)


def _zone(context: ZoneHandlerContext, name: str) -> ZoneRecord:
    context.zones.directory.refresh()
    record = context.zones.directory.child(name)
    if record is None:
        raise exceptions.NotFound(kind='zone', name=name)
    return record


def _check_name(name: str) -> None:
    """Check that a name of a zone is usable in a path and is no uuid.

    :raises InvalidMessage: it is not
    """
    if not name.strip() or len(name) > NAME_MAX or re.search(UUID_PATTERN, name):
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


def _with_reported_identity(
    context: ZoneHandlerContext, zone: ZoneRecord, accept_scores: bool
) -> ZoneRecord:
    """Return a zone record with the uuid and the score set that the zone reports.

    :raises Refused: the zone is this zone, is not the registered one, or has another score set
    """
    unpinned = msgspec.structs.replace(zone, uuid='')
    own_uuid = context.zones.directory.own_uuid()
    itself = exceptions.Refused(f'{zone.url} is this zone itself; expected the URL of another zone')
    try:
        info: ZoneInfo = context.zones.calls.discover(unpinned, PIN_SECONDS)
    except exceptions.Misconfigured as e:
        raise exceptions.invalid(
            'body.credential',
            f'expected one by which this zone can call the other zone: {e.message}',
        ) from None
    except exceptions.Unavailable as e:
        raise exceptions.Refused(f'zone {zone.name!r} does not answer: {e.message}') from None
    except exceptions.GanttError as e:
        if e.kwargs.get('zone') == own_uuid:
            raise itself from None
        raise exceptions.Refused(
            f'zone {zone.name!r} refuses calls of this zone: {e.message}; expected it to be '
            f'registered there, as by "gantt parent add NAME --identity {own_uuid} '
            '--project PROJECT", or its credential'
        ) from None
    if info.uuid == own_uuid:
        raise itself
    if zone.uuid and info.uuid != zone.uuid:
        raise exceptions.Refused(
            f'{zone.url} is the zone {info.uuid}; expected {zone.uuid}, which {zone.name!r} is'
        )
    other = context.zones.directory.child(info.uuid)
    if other is not None and other.name != zone.name:
        raise exceptions.Refused(
            f'{zone.url} is registered as {other.name!r}; expected the URL of a zone that is not'
        )
    own_score_set = context.zones.score_set()
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


def _view(context: ZoneHandlerContext, zone: ZoneRecord) -> ZoneView:
    problem = ''
    try:
        context.zones.calls.discover(zone, DISCOVER_SECONDS)
    except exceptions.GanttError as e:
        problem = e.message
    live = [
        claim
        for claim in context.stores.child_claims.find(child=zone.uuid)
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
def list_parents(context: ZoneHandlerContext, caller: Caller, query: Page) -> ParentsResponse:
    """List the parent zones that may query this zone."""
    page, marker = page_by_name(context.stores.zones.parent_zones(), query, 'parent zone')
    return ParentsResponse(parents=list(map(_parent_view, page)), next_marker=marker)


def set_parent(
    context: ZoneHandlerContext, caller: Caller, name: str, query: DryRun, body: ParentSettings
) -> Change[ParentView]:
    """Register a parent zone that may query this zone, or change its settings."""
    registered = {
        parent_record.name: parent_record for parent_record in context.stores.zones.parent_zones()
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
            raise exceptions.invalid(f'body.{field}', f'expected a value: zone {name!r} is new')
    parent = (
        msgspec.structs.replace(registered, **changes)
        if registered
        else ParentRecord(name=name, **changes)
    )
    verb = 'changed' if registered else 'added'
    if query.dry_run:
        return Change(
            dry_run=True, message=f'parent {name} would be {verb}', now=_parent_view(parent)
        )
    context.stores.zones.save_parent_zone(parent)
    context.zones.directory.refresh()
    return Change(dry_run=False, message=f'parent {name} is {verb}', now=_parent_view(parent))


def remove_parent(
    context: ZoneHandlerContext, caller: Caller, name: str, query: DryRun
) -> Change[ParentView]:
    """Remove a parent zone; with live claims here it is in use."""
    registered = {
        parent_record.name: parent_record for parent_record in context.stores.zones.parent_zones()
    }.get(name)
    if registered is None:
        raise exceptions.NotFound(kind='parent zone', name=name)
    if query.dry_run:
        return Change(
            dry_run=True, message=f'parent {name} would be removed', now=_parent_view(registered)
        )
    context.stores.zones.remove_parent_zone(name)
    context.zones.directory.refresh()
    return Change(dry_run=False, message=f'parent {name} is removed', now=_parent_view(registered))


def _parent_view(parent: ParentRecord) -> ParentView:
    return ParentView(
        name=parent.name,
        identity=parent.identity,
        project_id=parent.project_id,
        enabled=parent.enabled,
        lease_seconds_max=parent.lease_seconds_max,
        trusted=parent.trusted,
        certificate_sha256=parent.certificate_sha256,
    )
