# SPDX-License-Identifier: Apache-2.0
"""Versions and shapes of our own messages: dict <-> core types.

History of the interface (topics ``gantt-scheduler``, ``gantt-planner``, ``gantt-claims``,
``gantt-stats`` and ``gantt-compute.<host>``):

    1.0  all methods
    1.1  register_host: journal, journal_count
    1.2  select_destinations: spec.devices, spec.networks; cells of reports: networks, tunneled;
         guests of reports, and claims: flavor
    1.3  gantt-stats: what a report source tells of Nova's guests, aggregates, groups and moves
    1.4  gantt-stats: tell_facts, by an agent next to nova-compute
    1.5  select_destinations: repeat
    1.6  select_destinations: only_project; register_host: speaks_for
    1.7  open_moves: reserved
    1.8  list_guests: begun
    1.9  register_host: after; select_destinations: origin
    1.10 list_guests: signature; tell_facts: proof
    1.11 answers of select_destinations and get_request: hosts and members in place of selections
         (``gantt.core.records.members``), to callers of this minor version or a newer one;
         selections: allocations, where a host takes of pools
    1.12 select_destinations: spec.kind; confirm_request, release_request
    1.13 select_destinations: spec.tree
    1.14 select_destinations: parent, places, hops, via, spec.destination.hosts; an answer may
         name a place in a zone below (child, place): callers of older versions get none
    1.15 select_destinations: steps of places: how a place came to be offered
    1.16 select_destinations: spec.group.policies, spec.group.member, trace; gantt-planner:
         place_group, change_group, show_group_plan, extend_group_plan, release_group_plan

A server answers senders of its own major version.  From a sender whose minor
version is newer, keys that the server does not know are dropped; from all
others they are refused.
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import msgspec

from gantt import exceptions
from gantt.core.messages import base, quoting
from gantt.core.records import decision
from gantt.core.records.decision import Answer
from gantt.core.records.members import by_hosts, plain
from gantt.rpc import answers
from gantt.rpc.call import RpcCall

MAJOR, MINOR = 1, 16
#: The minor version of a caller that knows of places in other zones.
ZONES_MINOR = 14
#: The first one that knows of groups that are planned, and its name for messages about them.
PLANS_MINOR = 16
PLANS = f'{MAJOR}.{PLANS_MINOR}'
VERSION = f'{MAJOR}.{MINOR}'
#: What our own clients say, but for messages that need a newer one: schedulers of before take
#: what they know as it is.
SENT = '1.9'
#: What they say to get answers in which hosts stand once; schedulers of before answer as ever.
HOSTS_ONCE = f'{MAJOR}.{answers.HOSTS_ONCE}'
#: Versions of senders that say nothing unknown to us.
KNOWN = frozenset(f'{MAJOR}.{minor}' for minor in range(MINOR + 1))

SCHEDULER_TOPIC = 'gantt-scheduler'
PLANNER_TOPIC = 'gantt-planner'
CLAIMS_TOPIC = 'gantt-claims'
STATS_TOPIC = 'gantt-stats'

_HALF = re.compile('[\ud800-\udfff]')
_VERSION = re.compile(r'(\d{1,9})\.(\d{1,9})\Z')


def minor_of(
    method: str, version: Any, *, major: int = MAJOR, minor: int = MINOR, exact: bool = False
) -> int:
    """The sender's minor version.

    :param major: ours, as ``minor``
    :param exact: a newer minor version is refused as well
    :raises UnsupportedVersion: another major version; names both
    :raises InvalidMessage: not a version
    """
    found = _VERSION.match(version) if isinstance(version, str) else None
    if found is None:
        raise exceptions.invalid(
            'version', f'expected text like {VERSION!r}, got {quoting.short(version)}'
        )
    theirs = int(found[1]), int(found[2])
    if theirs[0] != major or (exact and theirs[1] > minor):
        raise exceptions.UnsupportedVersion(
            method=method, version=version, expected=f'{major}.0 to {major}.{minor}'
        )
    return theirs[1]


def argument(call: RpcCall) -> Any:
    """The only argument of a call, as the type that its method's interface has for it.

    :raises InvalidMessage: names the field and what was expected
    """
    ((name, tp),) = call.takes.items()
    if call.raw.raw_args is not None and not call.newer_minor:
        try:
            found = _decoder(name, tp)(call.raw.raw_args)
        except (msgspec.DecodeError, UnicodeError, RecursionError, exceptions.GanttError):
            pass  # what is wrong is found out below
        else:
            value = getattr(found, name)
            base.check_opaque(value, name)
            return value
    only(call.args, (name,), newer=call.newer_minor)
    return base.decode(call.args[name], tp, inside=name, newer_minor=call.newer_minor)


@functools.cache
def _decoder(name: str, tp: Any) -> Callable[[msgspec.Raw], Any]:
    """From the arguments of a method, as they were sent."""
    fields = [(name, tp)]
    return msgspec.json.Decoder(
        msgspec.defstruct('Arguments', fields, forbid_unknown_fields=True)
    ).decode


def only(args: dict[str, Any], names: tuple[str, ...], *, newer: bool = False) -> None:
    """Exactly the arguments ``names``; from a newer sender, at least they.

    :raises InvalidMessage: one is missing or not known
    """
    for name in names:
        if name not in args:
            raise exceptions.invalid(f'args.{name}', 'required argument is missing')
    for name in args:
        if name not in names and not newer:
            raise exceptions.invalid(
                f'args.{quoting.short(name)}', f'unknown argument; expected {", ".join(names)}'
            )


def finite(body: Any, path: str, depth: int = 0) -> None:
    """Refuse numbers that are none (JSON as Python writes it has NaN and Infinity).

    :raises InvalidMessage: names the field
    """
    if isinstance(body, float) and not math.isfinite(body):
        raise exceptions.invalid(_shown(path), f'expected a finite number, got {body}')
    if depth > 64:
        raise exceptions.invalid(_shown(path), 'nested too deeply')
    if isinstance(body, dict):
        for key, value in body.items():
            finite(value, f'{path}.{key}', depth + 1)
    elif isinstance(body, list):
        for value in body:
            finite(value, f'{path}[...]', depth + 1)


def _shown(path: str) -> str:
    """A path whose keys are foreign, as a refusal repeats it."""
    return quoting.plain(path, base.NAME_MAX)


def whole_text(body: Any, path: str) -> None:
    """Refuse text with half a character in it, which no database and no reply can carry.

    :raises InvalidMessage: names the field; of a key, the object that has it
    """
    if isinstance(body, str):
        if _HALF.search(body):
            raise exceptions.invalid(
                _shown(path), f'expected text, got a lone surrogate in {quoting.short(body)}'
            )
    elif isinstance(body, dict):
        for key, value in body.items():
            whole_text(key, path)
            whole_text(value, f'{path}.{key}' if path else str(key))
    elif isinstance(body, list):
        for index, value in enumerate(body):
            whole_text(value, f'{path}[{index}]')


def answer(found: Answer, minor: int = MINOR) -> tuple[Any, Exception | None]:
    """An answer as (result, error) of a call; the envelope encodes it as it is.

    :param minor: version of the caller
    """
    error = decision.error_of(found)
    if error is not None:
        return None, error
    shown = decision.for_caller(found)
    return by_hosts(shown) if minor >= answers.HOSTS_ONCE else plain(shown), None
