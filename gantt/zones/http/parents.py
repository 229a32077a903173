# SPDX-License-Identifier: Apache-2.0
"""Parent zones that call: who they are, and the part of this zone's data that they get.

A zone of another owner learns what every tenant does: whether there is a place for its request, and
the outcome of it.  What exists here, how many hosts there are and why others do not fit is for
operators, and for parent zones that are registered as trusted.
"""

import msgspec

from gantt.core.messages.zone_step import ZoneExplanation
from gantt.http.context import Caller
from gantt.http.policy import Forbidden
from gantt.zones.http.context import ZoneHandlerContext
from gantt.zones.model.messages import (
    ParentRecord,
    ZoneEvaluated,
    ZoneFacts,
    ZonesQueried,
    ZoneSummary,
)

#: Addresses from which a caller is trusted without a token.
LOOPBACK = ('127.0.0.1', '::1')
#: The rule of requests of parent zones.
QUERY_POLICY = 'gantt:zone:query'
#: Facts by which a parent zone cannot rule this one out.
NO_FACTS = ZoneFacts()


def parent_of(context: ZoneHandlerContext, caller: Caller) -> tuple[ParentRecord, Caller]:
    """Return the calling parent zone, and a caller of its project.

    A zone of the same owner is admitted to the objects of all projects, as operators are.

    :raises Forbidden: it is none that is registered here, or is on another machine without proof
    """
    directory = context.zones.directory
    directory.freshen()
    parent = directory.parent(caller.user) if caller.user else None
    pin = '' if parent is None else parent.certificate_sha256
    is_proven = bool(pin) and pin == caller.certificate
    if caller.remote and caller.remote not in LOOPBACK and not is_proven:
        raise Forbidden(
            rule=QUERY_POLICY,
            needs='a token, from another machine than this one ([api] auth_strategy = keystone), '
            'or the certificate that the zone is registered with',
            have='neither',
        )
    if parent is None or not parent.enabled:
        raise Forbidden(
            rule=QUERY_POLICY,
            needs='a parent zone that is registered here and enabled',
            have=f'the user {caller.user or "without a name"}',
        )
    if pin and not is_proven:
        raise Forbidden(
            rule=QUERY_POLICY,
            needs=f'the certificate that {parent.name} is registered with',
            have=f'one with the SHA-256 {caller.certificate}' if caller.certificate else 'none',
        )
    return parent, msgspec.structs.replace(
        caller, project=parent.project_id, everywhere=parent.trusted, is_parent=True
    )


def disclosed_facts(parent: ParentRecord, facts: ZoneFacts) -> ZoneFacts:
    """Return the facts of this zone that a parent zone may know: none where it is not trusted."""
    return facts if parent.trusted else NO_FACTS


def disclosed_summary(parent: ParentRecord, summary: ZoneSummary) -> ZoneSummary:
    """Return the summary of free room that a parent zone may know: empty without trust."""
    return summary if parent.trusted else ZoneSummary(revision='', facts='', fits={})


def disclosed_evaluation(parent: ParentRecord, evaluation: ZoneEvaluated) -> ZoneEvaluated:
    """Return the part of an evaluation that a parent zone may know: no counts without trust."""
    if parent.trusted:
        return evaluation
    return msgspec.structs.replace(
        evaluation, hosts=0, survivors=0, removed={}, children=ZonesQueried()
    )


def disclosed_explanation(parent: ParentRecord, explanation: ZoneExplanation) -> ZoneExplanation:
    """Return the part of an explanation that a parent zone may know: no counts without trust."""
    if parent.trusted:
        return explanation
    return msgspec.structs.replace(
        explanation, attempts=0, hosts=0, survivors=0, removed={}, zones=[]
    )


def check_trusted(parent: ParentRecord) -> None:
    """Check that a parent zone is trusted.

    :raises Forbidden: the request is for operators
    """
    if not parent.trusted:
        raise Forbidden(
            rule=QUERY_POLICY,
            needs='a parent zone that is registered here as trusted',
            have=f'the zone {parent.name}, which is not',
        )
