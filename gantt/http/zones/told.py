# SPDX-License-Identifier: Apache-2.0
"""What a zone tells of itself to one above, by whether that is of the same owner.

Who is of another owner learns what every tenant does: whether there is a place for its request, and
what became of that.  What exists here, how many hosts there are and why others do not fit is for
operators, and for the zones above that are registered as trusted.
"""

import msgspec

from gantt.core.zones.messages import (
    ParentRecord,
    ZoneEvaluated,
    ZoneExplanation,
    ZoneFacts,
    ZonesQueried,
    ZoneSummary,
)
from gantt.http.policy import Forbidden
from gantt.http.zones.callers import ASK

#: Nothing that a zone above may rule it out by.
UNTOLD = ZoneFacts()


def facts(parent: ParentRecord, known: ZoneFacts) -> ZoneFacts:
    """What exists here."""
    return known if parent.trusted else UNTOLD


def summary(parent: ParentRecord, known: ZoneSummary) -> ZoneSummary:
    """What there is room for."""
    return known if parent.trusted else ZoneSummary(revision='', facts='', fits={})


def evaluated(parent: ParentRecord, found: ZoneEvaluated) -> ZoneEvaluated:
    """What there is for a request."""
    if parent.trusted:
        return found
    return msgspec.structs.replace(found, hosts=0, survivors=0, removed={}, children=ZonesQueried())


def explanation(parent: ParentRecord, found: ZoneExplanation) -> ZoneExplanation:
    """How an allocation was decided."""
    if parent.trusted:
        return found
    return msgspec.structs.replace(found, attempts=0, hosts=0, survivors=0, removed={}, zones=[])


def check_trusted(parent: ParentRecord) -> None:
    """:raises Forbidden: what is asked for is for operators"""
    if not parent.trusted:
        raise Forbidden(
            rule=ASK,
            needs='a zone above that is registered here as trusted',
            have=f'the zone {parent.name}, which is not',
        )
