# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage host`` and ``adopt``: hosts renamed, removed, found by digest; guests adopted."""

import collections
import itertools
import re
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from gantt import exceptions, stores
from gantt.cmd import console, wiring
from gantt.conf.pipeline import pipeline_from_conf
from gantt.core.claims.adoption import (
    GUESTS_MAX,
    AdoptionStatus,
    GuestOutcome,
    GuestToAdopt,
    unknown_class,
)
from gantt.core.claims.claim import Claim
from gantt.core.messages import base, quoting
from gantt.core.resources import host_keys
from gantt.core.resources.host import INVENTORIES_BY_API, HostRow
from gantt.stores import AllStores
from gantt.zones.model import host_digests

DECOMMISSION_REASON = 'decommissioned'
POLL_SECONDS = 2.0
#: Of a file of guests.
LINES_MAX = 1_000_000
LINE_BYTES_MAX = 65_536
ADOPTION_BATCH = 200
#: Of one host, counted when it is taken away.
LIVE_CLAIMS_MAX = 1000
#: What the APIs of OpenStack take for the name of a service host.
HOST_NAME = re.compile(rf'[a-zA-Z0-9._-]{{1,{base.NAME_MAX}}}')

#: The sources of what a host has, and as it is kept.
INVENTORIES_BY = {'reports': None, 'api': INVENTORIES_BY_API}
_INVENTORIES_BY_TEXTS = {
    'reports': 'its reports say what it has',
    'api': 'requests to the Placement interface say what it has, and its reports do not',
}

#: The outcomes that are trouble: each of these guests is shown.
PROBLEM_STATUSES = (AdoptionStatus.OVER_FULL, AdoptionStatus.ELSEWHERE, AdoptionStatus.UNKNOWN_HOST)
STATUS_TEXTS = {
    AdoptionStatus.ADOPTED: 'adopted',
    AdoptionStatus.OVER_FULL: 'adopted beyond capacity',
    AdoptionStatus.KNOWN: 'known already',
    AdoptionStatus.ELSEWHERE: 'on another host',
    AdoptionStatus.UNKNOWN_HOST: 'on unknown hosts',
}


def rename(conf: Any) -> int:
    """Give a host another name; claims, history and aggregates follow."""
    old, new = conf.command.old, conf.command.new
    if not HOST_NAME.fullmatch(new):
        raise exceptions.invalid(
            'NEW',
            f'expected a name of 1 to {base.NAME_MAX} letters, digits and '
            f'"-", "." or "_", as hosts have, got {new!r}',
        )
    connected = stores.connect(conf)
    row = _load_host(connected, old)
    if not conf.command.now:
        _check_silent(conf, connected, row)
    after = connected.hosts.rename_host(old, new).row
    assert after is not None
    print(
        f'{old} is {after.name} now, with its claims, its history and its aggregates; set the '
        'name of its agent, let it keep its journal, and start it'
    )
    return 0


def decommission(conf: Any) -> int:
    """Take a host away: nothing new lands there; when nothing is left on it, it is forgotten."""
    name, until = conf.command.name_of_host, time.monotonic() + conf.command.wait
    connected = stores.connect(conf)
    row = _load_host(connected, name)
    if row.disabled is None:
        connected.hosts.disable_host(name, DECOMMISSION_REASON, 'gantt-manage')
    while problem := _forget_if_unused(conf, connected, name):
        if time.monotonic() >= until:
            print(f'gantt-manage: {problem}; {name} stays disabled', file=sys.stderr)
            return 1
        time.sleep(min(POLL_SECONDS, max(0.0, until - time.monotonic())))
    print(f'{name} is forgotten, and in no aggregate any more')
    return 0


def adopt(conf: Any) -> int:
    """Make claims for guests that run already: a line of JSON each, - for standard input.

    Nothing is done where a line is wrong. A guest with a claim is left as it is, so that the
    command may be repeated with the same file; 1 where a guest is not adopted, or does not fit.
    """
    connected = stores.connect(conf)
    guests = _read_guests(conf.command.file, connected.vocabulary.declared_classes())
    outcomes: list[GuestOutcome] = []
    for batch in batches(guests, conf.command.batch):
        outcomes += connected.claims.adopt_guests(batch, dry_run=conf.command.dry_run)
    counts = collections.Counter(outcome.outcome for outcome in outcomes)
    trouble = [outcome for outcome in outcomes if outcome.outcome in PROBLEM_STATUSES]
    numbers = {str(status): counts[status] for status in AdoptionStatus}
    lines = ['nothing is written:'] if conf.command.dry_run else []
    lines.append(', '.join(f'{counts[status]} {STATUS_TEXTS[status]}' for status in AdoptionStatus))
    lines += [
        f'{STATUS_TEXTS[adoption.outcome]}: {adoption.consumer} on {adoption.host}: {adoption.note}'
        for adoption in trouble
    ]
    body = {'dry_run': conf.command.dry_run, 'counts': numbers, 'trouble': trouble}
    console.show(conf, body, lines)
    return 1 if trouble else 0


def batches(guests: list[GuestToAdopt], least: int) -> Iterator[list[GuestToAdopt]]:
    """Yield whole hosts together, so that the last guest of one is judged after the first.

    :param least: least number of guests of a batch, but the last; a batch may be longer by one
        host's guests
    :raises InvalidMessage: a host has more guests than one transaction takes
    """
    ordered = sorted(guests, key=lambda guest: guest.host)
    batch: list[GuestToAdopt] = []
    for host, group in itertools.groupby(ordered, key=lambda guest: guest.host):
        guests_of_host = list(group)
        if len(guests_of_host) > GUESTS_MAX:
            raise exceptions.invalid(
                'host',
                f'{host!r} has {len(guests_of_host)} guests; expected {GUESTS_MAX} '
                'at most: list them in several files',
            )
        batch += guests_of_host
        if len(batch) >= least:
            yield batch
            batch = []
    if batch:
        yield batch


def _read_guests(path: str, declared: frozenset[str]) -> list[GuestToAdopt]:
    if path == '-':
        return _decode_guests(sys.stdin.buffer, declared)
    try:
        with open(path, 'rb') as file:
            return _decode_guests(file, declared)
    except OSError as e:
        raise exceptions.Misconfigured(
            option='FILE', problem=f'{path}: {e.strerror}', fix='Name a file of guests'
        ) from None


def _decode_guests(lines: Iterable[bytes], declared: frozenset[str]) -> list[GuestToAdopt]:
    """Return the guests.  :raises InvalidMessage: names the line, the field and the expectation"""
    guests = []
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        where = f'line {number}'
        if number > LINES_MAX or len(line) > LINE_BYTES_MAX:
            raise exceptions.invalid(
                where, f'expected {LINES_MAX} lines of {LINE_BYTES_MAX} bytes at most'
            )
        if not line.strip():
            continue
        guest = base.decode_json(line, GuestToAdopt, inside=where)
        strange = unknown_class(guest, declared)
        if strange is not None:
            raise exceptions.UnknownResourceClass(field=f'{where}.resources', name=strange)
        if guest.consumer in line_of:
            raise exceptions.invalid(
                f'{where}.consumer',
                f'expected each guest once, got that of line {line_of[guest.consumer]} again',
            )
        line_of[guest.consumer] = number
        guests.append(guest)
    return guests


# -- the source of what a host has -------------------------------------------------------
def inventories(conf: Any) -> int:
    """Show or set who declares what a host has: its inventories, traits and aggregates."""
    name, source = conf.command.name_of_host, conf.command.by
    connected = stores.connect(conf)
    if source is None:
        row = _load_host(connected, name)
    else:
        after = connected.hosts.set_inventories_by(name, INVENTORIES_BY[source], 'gantt-manage').row
        assert after is not None
        row = after
    now = 'reports' if row.reports_inventories else 'api'
    lines = [f'{name}: {_INVENTORIES_BY_TEXTS[now]}']
    if source == 'reports':
        lines.append('what it has stays as it is until its next full report')
    console.show(conf, {'host': name, 'inventories_by': now}, lines)
    return 0


# -- what is known of a host ------------------------------------------------------------
def key_show(conf: Any) -> int:
    """The key that the messages of a host are signed with."""
    name = conf.command.name_of_host
    key = _load_host(stores.connect(conf), name).key
    key_facts: dict[str, Any] = {
        'host': name,
        'fingerprint': host_keys.fingerprint(key.public) if key and key.public else None,
        'since': key.since if key and key.public else None,
        'fingerprint_agent': host_keys.fingerprint(key.agent) if key and key.agent else None,
        'is_revoked': bool(key and key.is_revoked),
        'revoked': [host_keys.fingerprint(revoked) for revoked in key.revoked] if key else [],
    }
    if key_facts['fingerprint'] is None:
        lines = [f'{name} has no key: the next one that it registers with is stored']
    else:
        when = time.strftime('%Y-%m-%d %H:%M:%SZ', time.gmtime(key_facts['since']))
        state = ', revoked: messages of the host are refused' if key_facts['is_revoked'] else ''
        lines = [f'{name} has the key {key_facts["fingerprint"]}, known since {when}{state}']
    if key_facts['fingerprint_agent'] is not None:
        lines.append(f'the agent next to nova-compute has the key {key_facts["fingerprint_agent"]}')
    lines += [f'never taken again: {revoked}' for revoked in key_facts['revoked']]
    console.show(conf, key_facts, lines)
    return 0


def key_forget(conf: Any) -> int:
    """Take the next key that the host registers with, as after it was installed anew."""
    name = conf.command.name_of_host
    stores.connect(conf).hosts.forget_host_key(name)
    print(
        f'the key of {name} is forgotten; the next one that it registers with is stored. Compare '
        'its fingerprint with what the agent logs at its start: gantt-manage host key show '
        f'{name}'
    )
    return 0


def key_revoke(conf: Any) -> int:
    """Take nothing more that is signed with the key of the host, as after a theft."""
    name = conf.command.name_of_host
    after = stores.connect(conf).hosts.revoke_host_key(name).row
    assert after is not None and after.key is not None
    keys = [
        host_keys.fingerprint(public) for public in (after.key.public, after.key.agent) if public
    ]
    print(
        f'the key {" and ".join(keys)} is revoked for good, and nobody '
        f'reports for {name} now. Once it has another key: gantt-manage host key forget {name}'
    )
    return 0


def _load_host(connected: AllStores, name: str) -> HostRow:
    """Return the host.  :raises NotFound:"""
    for change in connected.feed.load_everything().hosts:
        if change.row is not None and change.row.name == name:
            return change.row
    raise exceptions.NotFound(kind='host', name=name)


def _check_silent(conf: Any, connected: AllStores, row: HostRow) -> None:
    """Check that the host is silent.  :raises Refused: the host has reported lately"""
    silent = connected.database.ping() - row.reported_at
    down_after = wiring.down_time(pipeline_from_conf(conf))
    if silent < down_after:
        raise exceptions.Refused(
            f'{row.name} reported {max(0, silent):.0f} s ago; stop its agent, and run this again '
            f'after {down_after:g} s of silence, or at once with --now',
            name=row.name,
        )


def _forget_if_unused(conf: Any, connected: AllStores, name: str) -> str | None:
    """Forget the host; why it cannot be yet, None where it is done."""
    live = _live_claims(connected, name)
    if live:
        count = (
            f'{LIVE_CLAIMS_MAX} live claims or more'
            if len(live) >= LIVE_CLAIMS_MAX
            else ('1 live claim' if len(live) == 1 else f'{len(live)} live claims')
        )
        return f'{name} has {count}; "gantt claim list --host {name}" lists them'
    try:
        if not conf.command.now:
            _check_silent(conf, connected, _load_host(connected, name))
        connected.hosts.decommission_host(name)
    except exceptions.NotFound:
        return None  # somebody else did it meanwhile
    except exceptions.Refused as e:
        return e.message
    return None


def _live_claims(connected: AllStores, name: str) -> list[Claim]:
    live_claims: list[Claim] = []
    for state in ('reserved', 'confirmed'):
        live_claims += connected.claims.list_claims(
            host=name, state=state, limit=LIVE_CLAIMS_MAX - len(live_claims)
        )
    return live_claims


def name_digests(conf: Any) -> int:
    """Name hosts of this zone by the digests that an audit above has shown; 1: none is."""
    salt, digests = _bytes_of_hex(conf.command.salt, 'SALT', host_digests.SALT_BYTES), set()
    for text in conf.command.digests:
        digests.add(_bytes_of_hex(text, 'DIGEST', host_digests.DIGEST_BYTES))
    connected = stores.connect(conf)
    zone_uuid = connected.zones.zone_identity().uuid
    name_of = {
        mark.hex(): host.name
        for host in connected.zone_figures.registered_hosts()
        if (mark := host_digests.digests_of(host, zone_uuid, salt).registration) in digests
    }
    lines = [f'{digest} is {name}' for digest, name in sorted(name_of.items())]
    nothing = 'none of them is a host of this zone: look in the zones below it'
    console.show(conf, {'hosts': name_of}, lines or [nothing])
    return 0 if name_of else 1


def _bytes_of_hex(text: str, name: str, count: int) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b''
    if len(value) != count:
        quoted = quoting.quoted(text)
        raise exceptions.invalid(name, f'expected {count * 2} hexadecimal digits, got {quoted}')
    return value
