# SPDX-License-Identifier: Apache-2.0
"""Hints of Nova's that are fields of a request here.

``same_host``, ``different_host`` and ``group`` as hints are supported in every interface.  Where
the field is given as well both have to be the same.  So are two that Nova passes on as they are:
``gantt_plan``, the planned group that a server is to have a place of, and ``gantt_member``, the
member of it.  All other hints stay free text for the filters that read them.
"""

import re
from collections.abc import Mapping, Sequence

from gantt.core.messages import base

CONSUMER_HINTS = ('same_host', 'different_host')
GROUP_HINT = 'group'
PLAN_HINT = 'gantt_plan'
MEMBER_HINT = 'gantt_member'
#: Names of all these hints.
HINT_NAMES = frozenset({*CONSUMER_HINTS, GROUP_HINT, PLAN_HINT, MEMBER_HINT})
_UUID = re.compile(base.UUID_PATTERN)
_NAME = re.compile(base.NAME_PATTERN)


def consumers(name: str, hints: Mapping[str, Sequence[str]], given: list[str]) -> list[str]:
    """Return the consumers, or the groups, that a hint or the field of that name lists.

    :raises FieldError: the hint is no list of uuids, or is another list than the field
    """
    hinted = [text.lower() for text in hints.get(name, ())]  # a uuid in capitals is the same
    if len(hinted) > base.LIST_MAX:
        raise base.FieldError(f'hints.{name}', f'expected at most {base.LIST_MAX} uuids')
    for number, text in enumerate(hinted):
        if not _UUID.search(text):
            raise base.FieldError(f'hints.{name}[{number}]', base.UUID_EXPECTED)
    if name in (GROUP_HINT, PLAN_HINT) and len(set(hinted)) > 1:
        raise base.FieldError(f'hints.{name}', f'expected one uuid, got {len(hinted)}')
    if hinted and given and set(hinted) != set(given):
        raise base.FieldError(
            f'hints.{name}', f'expected it or the field {name}; both are given, and differ'
        )
    return given or hinted


def group(hints: Mapping[str, Sequence[str]], given: str | None) -> str | None:
    """Return the uuid of the group that the hint or the field names.

    :raises FieldError: the hint is no uuid, or another than the field's
    """
    uuids = consumers(GROUP_HINT, hints, [] if given is None else [given])
    return uuids[0] if uuids else None


def plan(hints: Mapping[str, Sequence[str]]) -> str | None:
    """Return the uuid of the planned group that the hint names.

    :raises FieldError: the hint is no uuid
    """
    uuids = consumers(PLAN_HINT, hints, [])
    return uuids[0] if uuids else None


def member(hints: Mapping[str, Sequence[str]], given: str | None) -> str | None:
    """Return the name of the member that the hint or the field names.

    :raises FieldError: the hint is no name, or another than the field's
    """
    field = f'hints.{MEMBER_HINT}'
    named = set(hints.get(MEMBER_HINT, ()))
    if len(named) > 1:
        raise base.FieldError(field, f'expected one name, got {len(named)}')
    for name in named:
        if not 1 <= len(name) <= base.NAME_MAX or not _NAME.search(name):
            problem = f'expected the name of a member, of 1 to {base.NAME_MAX} characters'
            raise base.FieldError(field, problem)
        if given not in (None, name):
            problem = 'expected it or the field group.member; both are given, and differ'
            raise base.FieldError(field, problem)
    return given or next(iter(named), None)
