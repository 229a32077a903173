# SPDX-License-Identifier: Apache-2.0
"""An explanation for those who may not know hosts, numbers of hosts, or other users.

What is left is what became of the request, and what in it was in the way in the
public words of the filters; a filter without such words tells nothing.
"""

from collections.abc import Iterable, Mapping

import msgspec

from gantt.core.decision import Answer, Selection
from gantt.core.filters.base import Filter
from gantt.core.rules.told import told
from gantt.scheduler import wording
from gantt.scheduler.views import ClaimView, Explanation, MemberExplanation

OTHER = 'what only operators see'


def words_of(filters: Iterable[Filter]) -> dict[str, str]:
    """Filter name -> its public words."""
    return {rule.name: rule.public_reason for rule in filters}


def redacted(found: Explanation, words: Mapping[str, str]) -> Explanation:
    """The same without what only operators see."""
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
    )
    outcome = found.outcome.replace('_', ' ')
    lines = [f'{outcome}, {wording.age(found.age_seconds)} ago: {found.count} × {found.shape}']
    lines += [reason] if reason else []
    return msgspec.structs.replace(brief, lines=[*lines, f'decision {found.id}'])


def answer(found: Answer) -> Answer:
    """An answer without the hosts: which consumer has which claim, no alternates."""
    chosen = [[_selection(of[0])] for of in found.selections if of]
    return msgspec.structs.replace(found, selections=chosen, reason='')


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
    """A claim without its host."""
    return msgspec.structs.replace(found, host='')


def _reason(found: Explanation, words: Mapping[str, str]) -> str:
    if found.outcome == 'placed':
        return ''
    if found.outcome != 'no_valid_host' or not found.members:
        return found.outcome.replace('_', ' ')
    removed = [step for step in found.members[-1].funnel if step.removed]
    removed.sort(key=lambda step: -step.removed)
    said = list(dict.fromkeys(words.get(step.filter) or OTHER for step in removed))
    said.sort(key=lambda text: text == OTHER)
    return f'no host fits; in the way: {", ".join(said)}' if said else 'no host fits'


def _member(member: MemberExplanation) -> MemberExplanation:
    return msgspec.structs.replace(
        member, host=None, alternates=[], funnel=[], survivors=0, scores=[],
        given_up=[told(rule) for rule in member.given_up],
    )  # fmt: skip
