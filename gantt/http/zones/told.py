# SPDX-License-Identifier: Apache-2.0
"""The part of a zone's data that a parent zone gets, by whether that has the same owner.

A zone of another owner learns what every tenant does: whether there is a place for its request, and
the outcome of it.  What exists here, how many hosts there are and why others do not fit is for
operators, and for parent zones that are registered as trusted.
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

#: Facts by which a parent zone cannot rule this one out.
UNTOLD = ZoneFacts()


def facts(parent: ParentRecord, known: ZoneFacts) -> ZoneFacts:
    """Return the facts of this zone."""
    return known if parent.trusted else UNTOLD


def summary(parent: ParentRecord, known: ZoneSummary) -> ZoneSummary:
    """Return the summary of what there is room for."""
    return known if parent.trusted else ZoneSummary(revision='', facts='', fits={})


def evaluated(parent: ParentRecord, found: ZoneEvaluated) -> ZoneEvaluated:
    """Return the evaluation of a request."""
    if parent.trusted:
        return found
    return msgspec.structs.replace(found, hosts=0, survivors=0, removed={}, children=ZonesQueried())


def explanation(parent: ParentRecord, found: ZoneExplanation) -> ZoneExplanation:
    """Return the explanation of an allocation."""
    if parent.trusted:
        return found
    return msgspec.structs.replace(found, attempts=0, hosts=0, survivors=0, removed={}, zones=[])


def check_trusted(parent: ParentRecord) -> None:
    """Check that a parent zone is trusted.

    :raises Forbidden: the request is for operators
    """
    if not parent.trusted:
        raise Forbidden(
            rule=ASK,
            needs='a zone above that is registered here as trusted',
            have=f'the zone {parent.name}, which is not',
        )
