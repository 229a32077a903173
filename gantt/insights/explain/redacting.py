# SPDX-License-Identifier: Apache-2.0
"""Explanations for users who may not know hosts, numbers of hosts, or other users.

They keep the outcome of the request, and what obstructed it in the public words of the filters; a
filter without such words reveals nothing.
"""

from collections.abc import Iterable, Mapping

import msgspec

from gantt import exceptions
from gantt.core.claims import quota
from gantt.core.claims.claim import State
from gantt.core.filters.base import Filter
from gantt.core.groups.group_answer import GroupAnswer
from gantt.core.groups.group_plan import PlannedMember
from gantt.core.records.decision import Answer, Selection
from gantt.core.records.rule_texts import plain_text
from gantt.insights.explain import wording
from gantt.insights.views import ClaimView, Explanation, MemberExplanation

OTHER = 'what only operators see'
#: Outcome -> its public text; for others the name of the outcome.
OUTCOMES = {
    'no_valid_host': 'no host fits',
    'conflict': 'others were faster; ask again under a new id',
    'busy': 'more is asked for just now than can be answered, or this very request is worked at',
    'expired': 'there was no answer within the budget',
    'unknown': 'it is not known just now whether there is room',
    'failed': 'the service cannot answer now',
}
NOT_QUERIED = 'no host of this zone fits, and the zones below are not asked for such a request'
#: State of a claim -> why it has ended: the reasons of hosts and operators name hosts,
#: paths and others.
ENDS = {
    State.RELEASED.value: 'released',
    State.EXPIRED.value: 'not confirmed before its lease ran out',
    State.REFUSED.value: 'refused by its host',
}


def words_of(filters: Iterable[Filter]) -> dict[str, str]:
    """Return filter name -> its public words."""
    return {rule.name: rule.public_reason for rule in filters}


def redacted(found: Explanation, words: Mapping[str, str]) -> Explanation:
    """Return an explanation without what only operators may see."""
    reason = _reason(found, words)
    brief = msgspec.structs.replace(
        found,
        reason=reason,
        hosts=0,
        weighers=[],
        seed=0,
        spread=1,
        table_seq=0,
        config_digest='',
        conflicts=[],
        relaxed=[],
        added=[],
        nearest=[],
        contradiction=None,
        worker='',
        members=[_member(member) for member in found.members],
        host_verdicts=[],
        host_filters=[],
        host_filters_when='',
        zones=[],
        zones_explained={},
    )
    outcome = found.outcome.replace('_', ' ')
    lines = [f'{outcome}, {wording.age(found.age_seconds)} ago: {found.count} × {found.shape}']
    lines += [reason] if reason else []
    return msgspec.structs.replace(brief, lines=[*lines, f'decision {found.id}'])


def answer(found: Answer) -> Answer:
    """Return an answer without the hosts: which consumer has which claim, no alternates."""
    chosen = [[_selection(selection[0])] for selection in found.selections if selection]
    return msgspec.structs.replace(
        found, selections=chosen, reason='', zones_not_queried=[], places=[]
    )


def group_answer(answer: GroupAnswer) -> GroupAnswer:
    """Return an answer of a group without hosts, zones, lost races and conclusions from room."""
    what_if = answer.what_if
    if what_if is not None:
        what_if = [
            msgspec.structs.replace(without_policy, score_change=None) for without_policy in what_if
        ]
    plan = answer.plan
    if plan is not None:
        plan = msgspec.structs.replace(
            plan,
            members=[_planned(member) for member in plan.members],
            size=None,
            score=0.0,
            bound=None,
            goals=msgspec.structs.replace(plan.goals, lack=0.0),
            sequential=msgspec.structs.replace(plan.sequential, lack=0.0),
        )
    return msgspec.structs.replace(
        answer, plan=plan, conflicts=[], what_if=what_if, zones_not_queried=[]
    )


def _planned(member: PlannedMember) -> PlannedMember:
    return msgspec.structs.replace(
        member, host='', node='', provider_id=0, allocations=[], layout=None
    )


def _selection(found: Selection) -> Selection:
    return Selection(
        host='',
        node='',
        uuid='',
        provider_id=0,
        consumer=found.consumer,
        claim_id=found.claim_id,
        zone=found.zone,
        resources=found.resources,
        lease_seconds=found.lease_seconds,
    )


def claim(found: ClaimView) -> ClaimView:
    """Return a claim without its host, and without the reasons of hosts and operators."""
    reason = ENDS.get(found.state, '')
    return msgspec.structs.replace(found, host='', host_resources={}, child='', reason=reason)


def placeless(found: exceptions.GanttError) -> exceptions.GanttError:
    """Return a refusal for users who may know neither hosts nor zones."""
    kind, details = type(found), found.kwargs
    if kind is exceptions.NotKnownHere:
        return kind(reason=NOT_QUERIED, decision_id=details.get('decision_id', ''))
    if kind is not exceptions.Refused:
        return found
    shown = {name: value for name, value in details.items() if name not in _PLACES}
    return kind(str(details['reason']) if details.get('places') else found.message, **shown)


def error(found: exceptions.GanttError) -> exceptions.GanttError:
    """Return a refusal of the schedulers in general words.

    Errors of the request itself stay as they are: they name its fields.
    """
    kind, details = type(found), found.kwargs
    if kind is exceptions.NoValidHost:
        return kind(reason=OUTCOMES['no_valid_host'], decision_id=details.get('decision_id', ''))
    if kind is exceptions.NotKnownHere:
        return placeless(found)
    if kind is exceptions.HostsUnknown:
        return kind(problem=OUTCOMES['unknown'])
    if kind is exceptions.Busy:
        return kind(reason=OUTCOMES['busy'], retry_after_ms=details.get('retry_after_ms', 1000))
    outcome = _OF_ERRORS.get(kind)
    return kind(OUTCOMES[outcome]) if outcome else found


#: Details of a refusal that name places, and the sentence without them; see
#: ``exceptions.refused``.
_PLACES = frozenset({'places', 'reason', 'zone'})
_OF_ERRORS: dict[type[exceptions.GanttError], str] = {
    exceptions.Conflict: 'conflict',
    exceptions.Expired: 'expired',
    exceptions.Unavailable: 'failed',
}


def _reason(found: Explanation, words: Mapping[str, str]) -> str:
    if found.outcome == 'placed':
        return ''
    if found.outcome == 'refused' and found.reason.startswith(quota.WORD):
        return found.reason  # it is about the reader's project
    if found.outcome != 'no_valid_host' or not found.members:
        return OUTCOMES.get(found.outcome, found.outcome.replace('_', ' '))
    removed = [step for step in found.members[-1].funnel if step.removed]
    removed.sort(key=lambda step: -step.removed)
    reasons = list(dict.fromkeys(words.get(step.filter) or OTHER for step in removed))
    reasons.sort(key=lambda text: text == OTHER)
    none = f'no {found.kind} fits'
    return f'{none}; in the way: {", ".join(reasons)}' if reasons else none


def _member(member: MemberExplanation) -> MemberExplanation:
    return msgspec.structs.replace(
        member,
        host=None,
        alternates=[],
        funnel=[],
        survivors=0,
        scores=[],
        given_up=[plain_text(rule) for rule in member.given_up],
    )
