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
from gantt.core.records.decision import Answer, Selection, plain_text
from gantt.insights.explain import wording
from gantt.insights.views import ClaimView, Explanation, MemberExplanation

OTHER_FILTERS_TEXT = 'what only operators see'
#: Outcome -> its public text; for others the name of the outcome.
OUTCOME_TEXTS = {
    'conflict': 'others were faster; ask again under a new id',
    'busy': 'more is asked for just now than can be answered, or this very request is worked at',
    'expired': 'there was no answer within the budget',
    'unknown': 'it is not known just now whether there is room',
    'failed': 'the service cannot answer now',
}
NOT_QUERIED_TEXT = 'no host of this zone fits, and the zones below are not asked for such a request'
#: State of a claim -> why it has ended: the reasons of hosts and operators name hosts,
#: paths and others.
END_TEXTS = {
    State.RELEASED.value: 'released',
    State.EXPIRED.value: 'not confirmed before its lease ran out',
    State.REFUSED.value: 'refused by its host',
}


def public_texts(filters: Iterable[Filter]) -> dict[str, str]:
    """Return filter name -> its public words."""
    return {rule.name: rule.public_reason for rule in filters}


def redacted_explanation(explanation: Explanation, words: Mapping[str, str]) -> Explanation:
    """Return an explanation without what only operators may see."""
    reason = _redacted_reason(explanation, words)
    brief = msgspec.structs.replace(
        explanation,
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
        members=[_redacted_member(member) for member in explanation.members],
        host_verdicts=[],
        host_filters=[],
        host_filters_when='',
        zones=[],
        zones_explained={},
    )
    outcome = wording.outcome_text(explanation.outcome, explanation.kind)
    lines = [
        f'{outcome}, {wording.age_text(explanation.age_seconds)} ago: '
        f'{explanation.count} × {explanation.shape}'
    ]
    lines += [reason] if reason else []
    return msgspec.structs.replace(brief, lines=[*lines, f'decision {explanation.id}'])


def redacted_answer(full_answer: Answer) -> Answer:
    """Return an answer without the hosts: which consumer has which claim, no alternates."""
    chosen = [
        [_redacted_selection(selection[0])] for selection in full_answer.selections if selection
    ]
    return msgspec.structs.replace(
        full_answer, selections=chosen, reason='', zones_not_queried=[], places=[]
    )


def _redacted_selection(selection: Selection) -> Selection:
    return Selection(
        host='',
        node='',
        uuid='',
        provider_id=0,
        consumer=selection.consumer,
        claim_id=selection.claim_id,
        zone=selection.zone,
        resources=selection.resources,
        lease_seconds=selection.lease_seconds,
    )


def redacted_claim(view: ClaimView) -> ClaimView:
    """Return a claim without its host, and without the reasons of hosts and operators."""
    reason = END_TEXTS.get(view.state, '')
    return msgspec.structs.replace(view, host='', host_resources={}, child='', reason=reason)


def redacted_refusal(original: exceptions.GanttError) -> exceptions.GanttError:
    """Return a refusal for users who may know neither hosts nor zones."""
    kind, details = type(original), original.kwargs
    if kind is exceptions.NotKnownHere:
        return kind(reason=NOT_QUERIED_TEXT, decision_id=details.get('decision_id', ''))
    if kind is not exceptions.Refused:
        return original
    shown = {name: value for name, value in details.items() if name not in _REDACTED_DETAILS}
    return kind(str(details['reason']) if details.get('places') else original.message, **shown)


def redacted_error(original: exceptions.GanttError) -> exceptions.GanttError:
    """Return a refusal of the schedulers in general words.

    Errors of the request itself stay as they are: they name its fields.
    """
    kind, details = type(original), original.kwargs
    if kind is exceptions.NoValidHost:
        of_pool = {'kind': str(details['kind'])} if 'kind' in details else {}
        reason = f'no {of_pool.get("kind", "host")} fits'
        return kind(reason=reason, decision_id=details.get('decision_id', ''), **of_pool)
    if kind is exceptions.NotKnownHere:
        return redacted_refusal(original)
    if kind is exceptions.HostsUnknown:
        return kind(problem=OUTCOME_TEXTS['unknown'])
    if kind is exceptions.Busy:
        return kind(
            reason=OUTCOME_TEXTS['busy'], retry_after_ms=details.get('retry_after_ms', 1000)
        )
    outcome = _ERROR_TEXTS.get(kind)
    return kind(OUTCOME_TEXTS[outcome]) if outcome else original


#: Details of a refusal that name places, and the sentence without them; see
#: ``exceptions.refused``.
_REDACTED_DETAILS = frozenset({'places', 'reason', 'zone'})
_ERROR_TEXTS: dict[type[exceptions.GanttError], str] = {
    exceptions.Conflict: 'conflict',
    exceptions.Expired: 'expired',
    exceptions.Unavailable: 'failed',
}


def _redacted_reason(explanation: Explanation, words: Mapping[str, str]) -> str:
    if explanation.outcome == 'placed':
        return ''
    if explanation.outcome == 'refused' and explanation.reason.startswith(
        quota.QUOTA_REASON_PREFIX
    ):
        return explanation.reason  # it is about the reader's project
    none = f'no {explanation.kind} fits'
    if explanation.outcome != 'no_valid_host':
        return OUTCOME_TEXTS.get(explanation.outcome, explanation.outcome.replace('_', ' '))
    if not explanation.members:
        return none
    removed = [step for step in explanation.members[-1].funnel if step.removed]
    removed.sort(key=lambda step: -step.removed)
    reasons = list(dict.fromkeys(words.get(step.filter) or OTHER_FILTERS_TEXT for step in removed))
    reasons.sort(key=lambda text: text == OTHER_FILTERS_TEXT)
    return f'{none}; in the way: {", ".join(reasons)}' if reasons else none


def _redacted_member(member: MemberExplanation) -> MemberExplanation:
    return msgspec.structs.replace(
        member,
        host=None,
        alternates=[],
        funnel=[],
        survivors=0,
        scores=[],
        given_up=[plain_text(rule) for rule in member.given_up],
    )
