# SPDX-License-Identifier: Apache-2.0
"""Explanations of stored decisions: structured, and in lines for people.

Nothing is reconstructed here: every count, reason and score was stored while deciding.
"""

import collections
import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from gantt.core.messages.request import RequestKind, SelectDestinations
from gantt.core.messages.zone_step import ExplainedShare, ZoneExplanation
from gantt.core.placement.host_trace import HostStep
from gantt.core.records.decision import (
    CHOSEN_VERDICT,
    PASSED_VERDICT,
    Decision,
    FilterCount,
    MemberDecision,
    Score,
    Selection,
    ZoneStep,
    plain_text,
)
from gantt.core.records.decision_codec import StoredDecision
from gantt.insights import views
from gantt.insights.explain import wording
from gantt.insights.views import Explanation, HostScore, MemberExplanation, ScoreRow, Step

WIDTH = 80
#: Maximum number of members and finalists in the lines; the structured form has them all.
MEMBERS_SHOWN = 3
FINALISTS_SHOWN = 5
HOSTS_SHOWN = 10
CONFLICTS_SHOWN = 5
#: Columns of the screen that a weigher takes in the score table.
_LABEL_WIDTH = 11


def shape_of(request: SelectDestinations) -> str:
    """Return the flavor's name, where it has one, and what each member needs."""
    needs = wording.needs_text(request.spec)
    name = request.spec.flavor.name
    return f'{name} ({needs})' if name else needs


def explain(
    stored: StoredDecision,
    created_at: float,
    now: float,
    provider_ids: bytes = b'',
    host: tuple[str, int] | None = None,
    is_stored: bool = True,
    steps: tuple[str, list[HostStep]] | None = None,
    scores: Sequence[MemberDecision] = (),
) -> Explanation:
    """Return the explanation of a stored decision.

    :param now: the clock that ``created_at`` is of
    :param provider_ids: hosts in the order of the verdicts, packed int64
    :param host: name and provider id of a host whose verdict is included
    :param is_stored: False: decided just now and stored nowhere
    :param steps: each filter's evaluation of that host, and whether ``then`` or ``now``
    :param scores: the members, with the scores of all hosts that no filter removed
    """
    decision, request = stored.decision, stored.request
    kind = request.spec.kind.value
    verdicts = list(_host_verdicts(decision, kind, provider_ids, host, steps)) if host else []
    explanation = views.view_of(
        Explanation,
        decision,
        outcome=decision.outcome.value,
        shape=shape_of(request),
        count=len(request.consumers),
        kind=kind,
        oldest_report_age_seconds=round(decision.age_seconds, 3),
        origin=request.origin,
        trace=request.trace,
        created_at=views.utc_text(created_at),
        age_seconds=views.age_seconds(now, created_at),
        members=[_member_explanation(decision, member, request) for member in decision.members],
        host_verdicts=verdicts,
        host_filters=steps[1] if steps else [],
        host_filters_when=steps[0] if steps else '',
        host_scores=[] if host is None else list(_host_scores(scores, host[1])),
        zones_explained={},
        lines=[],
    )
    return msgspec.structs.replace(
        explanation,
        lines=list(_explanation_lines(explanation, bool(request and request.dry_run), is_stored)),
    )


def funnel(hosts: int, member: MemberDecision) -> list[Step]:
    """Return the hosts that each filter removed and left, in the order of running."""
    steps, remaining = [], hosts
    for count in member.filters:
        remaining -= count.removed
        steps.append(
            Step(
                filter=count.name,
                removed=count.removed,
                remaining=remaining,
                reason=_removal_reason(count),
            )
        )
    return steps


def _removal_reason(count: FilterCount) -> str:
    """Return the reason of a removal; with several parts each with its number."""
    parts = count.detail.get('parts')
    if not parts or sum(parts.values()) != count.removed:
        return count.reason
    if len(parts) == 1:
        return next(iter(parts))
    return ', '.join(
        f'{number} {text}' for text, number in sorted(parts.items(), key=lambda part: -part[1])
    )


def _member_explanation(
    decision: Decision, member: MemberDecision, request: SelectDestinations
) -> MemberExplanation:
    chosen = member.selection
    requested = request.spec.resources
    return views.view_of(
        MemberExplanation,
        member,
        host=chosen.host if chosen else None,
        alternates=[alternate.host for alternate in member.alternates],
        # The amount granted, where a range was requested.
        resources=(chosen.resources if chosen else {}) or requested,
        funnel=funnel(decision.hosts, member),
        scores=[_score_row(score, chosen) for score in member.scores],
    )


def _score_row(score: Score, chosen: Selection | None) -> ScoreRow:
    is_chosen = chosen is not None and score.provider_id == chosen.provider_id
    return views.view_of(ScoreRow, score, chosen=is_chosen)


def _host_scores(members: Iterable[MemberDecision], provider_id: int) -> Iterable[HostScore]:
    for member in members:
        for rank, score in enumerate(member.scores, 1):
            if score.provider_id == provider_id:
                yield HostScore(
                    member=member.member,
                    rank=rank,
                    survivors=len(member.scores),
                    score=_score_row(score, member.selection),
                )


def _host_verdicts(
    decision: Decision,
    kind: str,
    provider_ids: bytes,
    host: tuple[str, int],
    steps: tuple[str, list[HostStep]] | None,
) -> Iterable[str]:
    name, provider_id = host
    # Each filter's evaluation of the host alone, where that is of the host as it was.
    reasons = {step.filter: step.why for step in steps[1]} if steps and steps[0] == 'then' else {}
    ids = np.frombuffer(provider_ids, np.int64)
    places = np.flatnonzero(ids == provider_id)
    if not len(places):
        yield f'{name} was not looked at: it was not known when this was decided'
        return
    for member in decision.members:
        if len(member.verdicts) != len(ids):
            yield f'member {member.member}: no verdict of {name} is kept'
            continue
        verdict = member.verdicts[int(places[0])]
        if verdict == CHOSEN_VERDICT:
            sentence = 'was chosen'
        elif verdict == PASSED_VERDICT:
            sentence = f'passed every filter, another {kind} was chosen'
            if member.selection is None:
                sentence = 'passed every filter, but the request was not placed'
        elif verdict < len(member.filters):
            step = member.filters[verdict]
            sentence = f'was removed by {step.name}: {reasons.get(step.name) or step.reason}'
        else:
            sentence = f'has an unknown verdict ({verdict})'
        yield f'member {member.member}: {name} {sentence}'


# -- lines ---------------------------------------------------------------------
def with_zone_explanations(
    explanation: Explanation, below: dict[str, ZoneExplanation]
) -> Explanation:
    """Return an explanation with the explanations of child zones, by name."""
    if not below:
        return explanation
    old_lines = list(zone_lines(explanation.zones))
    new_lines = list(zone_lines(explanation.zones, below))
    at = explanation.lines.index(old_lines[0])
    lines = [*explanation.lines[:at], *new_lines, *explanation.lines[at + len(old_lines) :]]
    return msgspec.structs.replace(explanation, zones_explained=below, lines=lines)


def _explanation_lines(explanation: Explanation, dry_run: bool, is_stored: bool) -> Iterable[str]:
    sentence = [
        wording.outcome_text(explanation.outcome, explanation.kind),
        'dry run' if dry_run else '',
        f'{wording.age_text(explanation.age_seconds)} ago' if is_stored else '',
    ]
    yield f'{", ".join(filter(None, sentence))}: {explanation.count} × {explanation.shape}'
    if explanation.reason:
        yield from wrapped_lines(explanation.reason)
    if explanation.contradiction is not None and any(
        rule != plain_text(rule) for rule in explanation.contradiction.rules
    ):
        # The reason is worded for the requester, and names only an operator's rule.
        yield from wrapped_lines(f'rules:   {"; ".join(explanation.contradiction.rules)}')
    for line in explanation.added:
        yield from wrapped_lines(f'added:   {line}')
    for line in _nearest_lines(explanation):
        yield from wrapped_lines(f'nearest: {line}')
    yield from zone_lines(explanation.zones, explanation.zones_explained)
    for line in explanation.host_verdicts:
        yield from wrapped_lines(line)
    yield from _host_filter_lines(explanation)
    yield from _rank_lines(explanation)
    yield ''
    yield from (
        _host_count_lines(explanation) if explanation.members or not explanation.zones else ()
    )
    # Members without a host come first.
    groups = sorted(
        _members_alike(explanation.members), key=lambda group: group[0].host is not None
    )
    for members in groups[:MEMBERS_SHOWN]:
        yield from _member_lines(explanation, members)
    more = sum(map(len, groups[MEMBERS_SHOWN:]))
    if more:
        yield f'and {wording.counted_noun(more, "more member")}; -f json has them all'
        yield ''
    for line in explanation.relaxed:
        yield from wrapped_lines(f'given up: {line}')
    yield from _lost_race_lines(explanation)
    if is_stored:
        yield f'decision {explanation.id}'
        yield f'request  {explanation.request_id}'
        yield from [f'asked as {explanation.origin}'] if explanation.origin else []
    yield from [f'trace    {explanation.trace}'] if explanation.trace else []
    yield from _decision_lines(explanation)


def _decision_lines(explanation: Explanation) -> Iterable[str]:
    """Yield the lines with the worker and the data of a decision."""
    facts = (
        f'by {explanation.worker}' if explanation.worker else '',
        f'attempt {explanation.attempts}',
        *_table_text(explanation),
    )
    yield from wrapped_lines(f'decided  {", ".join(filter(None, facts))}', 9)
    if not explanation.members and explanation.zones:
        return  # its own table was not decided on
    configuration_text = (
        f', configuration {explanation.config_digest}' if explanation.config_digest else ''
    )
    source = 'oldest report' if _has_reports(explanation) else 'table'
    yield from wrapped_lines(
        f'         {source} {explanation.oldest_report_age_seconds:.1f} s old{configuration_text}',
        9,
    )


def _has_reports(explanation: Explanation) -> bool:
    """Return whether there were finalists that report: pools never do."""
    of_hosts = explanation.kind == RequestKind.HOST.value
    return of_hosts and any(member.host or member.scores for member in explanation.members)


def _table_text(explanation: Explanation) -> list[str]:
    if explanation.zones and not explanation.members:
        return []
    return [f'table {explanation.table_seq}', f'seed {explanation.seed}']


def _nearest_lines(explanation: Explanation) -> Iterable[str]:
    """Return the smallest changes that help; with members where they help only some."""
    if not explanation.members:
        return explanation.nearest
    failed = explanation.members[-1].member + 1
    if failed == explanation.count:
        return explanation.nearest
    # The first line states for the whole request that fewer members fit.
    fewer = min(len(explanation.members) - 1, 1)
    sentence = [
        f'member {failed} of {explanation.count} {line}' for line in explanation.nearest[fewer:]
    ]
    return [*explanation.nearest[:fewer], *sentence]


def _host_filter_lines(explanation: Explanation) -> Iterable[str]:
    if not explanation.host_filters:
        return
    when = {
        'then': f'each filter on its own, on the {explanation.kind} as it was then',
        'now': f'each filter on its own, on the {explanation.kind} as it is now '
        '(the table of then is gone)',
    }
    yield from wrapped_lines(f'  {when[explanation.host_filters_when]}', 4)
    evaluated = [step for step in explanation.host_filters if step.passes is not None]
    size = max((len(step.filter) for step in evaluated), default=0)
    for step in evaluated:
        head = f'  {"passes" if step.passes else "REMOVES"}'
        facts = ', '.join(step.facts)
        sentence = facts if step.passes else step.why
        if not step.passes and facts and not any(map(str.isdigit, step.why)):
            sentence = f'{step.why} ({facts})'
        yield from wrapped_lines(
            f'{head:<9}  {step.filter:<{size}}  {sentence}'.rstrip(), size + 13
        )
    silent = len(explanation.host_filters) - len(evaluated)
    if silent:
        yield f'  {wording.counted_noun(silent, "further filter")} did not concern the request'


def _rank_lines(explanation: Explanation) -> Iterable[str]:
    """Yield the rank of the requested host among those that no filter removed."""
    for ranked in explanation.host_scores[:MEMBERS_SHOWN]:
        yield from wrapped_lines(
            f'  member {ranked.member}: {ranked.score.host} is number {ranked.rank} of '
            f'{ranked.survivors} by weighted score, with {ranked.score.total:.4g}',
            4,
        )
        weighted = ranked.score.weighted
        useful = [
            weigher
            for weigher in range(len(explanation.weighers))
            if weigher < len(weighted) and weighted[weigher]
        ]
        yield from _weigher_parts(explanation.weighers, ranked.score, useful)
    more = len(explanation.host_scores) - MEMBERS_SHOWN
    if more > 0:
        yield f'  and of {wording.counted_noun(more, "more member")}; -f json has them all'


def _host_count_lines(explanation: Explanation) -> Iterable[str]:
    """Yield the number of placed members and the hosts with their counts, for many members."""
    members = explanation.members
    if len(members) <= MEMBERS_SHOWN:
        return
    hosts = collections.Counter(member.host for member in members if member.host)
    placed = sum(hosts.values())
    placed_text = (
        f'all {placed} members' if placed == len(members) else f'{placed} of {len(members)}'
    )
    shown = [
        f'{name} × {number}' if number > 1 else name
        for name, number in hosts.most_common(HOSTS_SHOWN)
    ]
    more = f' and {len(hosts) - HOSTS_SHOWN} more' if len(hosts) > HOSTS_SHOWN else ''
    if placed:
        yield from wrapped_lines(
            f'{placed_text} on {wording.counted_noun(len(hosts), explanation.kind)}: '
            f'{", ".join(shown)}{more}'
        )
    else:
        yield f'none of {len(members)} members has a {explanation.kind}'
    yield ''


def _lost_race_lines(explanation: Explanation) -> Iterable[str]:
    for line in explanation.conflicts[:CONFLICTS_SHOWN]:
        yield from wrapped_lines(f'lost a race and planned again: {line}')
    if len(explanation.conflicts) > CONFLICTS_SHOWN:
        yield f'and {len(explanation.conflicts) - CONFLICTS_SHOWN} more lost races'
    if explanation.spread > 1:
        yield from wrapped_lines(
            f'picked by the seed among the best {explanation.spread}: races were lost'
        )


def _members_alike(members: Sequence[MemberExplanation]) -> list[list[MemberExplanation]]:
    """Return members grouped so that refused ones with equal funnels are listed once."""
    alike = itertools.groupby(
        members, lambda member: member.funnel if member.host is None else member.member
    )
    return [list(group) for _, group in alike]


def _member_lines(explanation: Explanation, members: Sequence[MemberExplanation]) -> Iterable[str]:
    first = members[0]
    if len(explanation.members) > 1 or first.host:
        which = f'member {first.member}'
        if len(members) > 1:
            which = f'members {first.member} to {members[-1].member}'
        where = f' on {first.host}' if first.host else f': no {explanation.kind}'
        yield from wrapped_lines(f'{which}{where}')
    yield from _funnel_lines(explanation, first)
    if first.scores:
        yield from _score_lines(explanation, first)
    if first.alternates:
        yield from wrapped_lines(f'  alternates: {", ".join(first.alternates)}', 14)
    yield ''


def _funnel_lines(explanation: Explanation, member: MemberExplanation) -> Iterable[str]:
    steps = [step for step in member.funnel if step.removed]
    size = max((len(step.filter) for step in steps), default=0)
    digits = len(str(explanation.hosts))
    yield f'  {wording.counted_noun(explanation.hosts, explanation.kind)}'
    for step in steps:
        removed = f'-{step.removed}'
        head = f'  {step.remaining:>{digits}} left  {removed:>{digits + 1}} {step.filter:<{size}}  '
        yield from wrapped_lines(head + step.reason, len(head))
    silent = len(member.funnel) - len(steps)
    if silent:
        yield f'  {wording.counted_noun(silent, "further filter")} removed none'


def _score_lines(explanation: Explanation, member: MemberExplanation) -> Iterable[str]:
    weighers = explanation.weighers
    shown = list(member.scores[:FINALISTS_SHOWN])
    chosen = next((score for score in member.scores if score.chosen), None)
    if chosen is not None and chosen not in shown:
        shown[-1] = chosen
    useful = [
        i
        for i in range(len(weighers))
        if any(i < len(score.weighted) and score.weighted[i] for score in member.scores)
    ]
    size = min(30, max(4, *(len(score.host) for score in shown)))
    # The heaviest where there is no room for all; below the table all are listed.
    weight = {i: max(abs(score.weighted[i]) for score in shown) for i in useful}
    heaviest = sorted(useful, key=lambda i: -weight[i])[: (WIDTH - size - 13) // _LABEL_WIDTH]
    across = sorted(heaviest)
    total_text = f' of {member.survivors}' if member.survivors > len(shown) else ''
    best = f'{len(shown)}'
    if chosen is not None and chosen not in member.scores[:FINALISTS_SHOWN]:
        best = f'{len(shown) - 1} and the chosen one'
    yield f'  best {best}{total_text} that passed, by weighted score'
    titles = ''.join(f'  {_short_name(weighers[i]):>9}' for i in across)
    yield f'    {explanation.kind.upper():<{size}}    TOTAL{titles}'
    for score in shown:
        mark = '>' if score.chosen else ' '
        parts = ''.join(f'  {score.weighted[i] + 0.0:>9.4g}' for i in across)  # never "-0"
        yield f'  {mark} {score.host[:size]:<{size}}  {score.total:>7.4g}{parts}'
    if not useful:
        yield '    no weigher preferred any of them; the tie is broken by the seed'
    if chosen is not None and useful:
        yield from wrapped_lines(f'  {chosen.host}: raw → normalized → weighted', 4)
        yield from _weigher_parts(weighers, chosen, useful)


def _weigher_parts(
    weighers: Sequence[str], score: ScoreRow, useful: Sequence[int]
) -> Iterable[str]:
    """Yield the scores of a host by each of some weighers."""
    names = [_short_name(weighers[i]) for i in useful]
    pad = max(map(len, names), default=0)
    for i, name in zip(useful, names, strict=True):
        raw, normalized, weighted = score.raw[i], score.normalized[i], score.weighted[i]
        yield f'    {name:<{pad}}  {raw:.7g} → {normalized:.4g} → {weighted + 0.0:.4g}'


def _short_name(weigher: str) -> str:
    name = weigher.removesuffix('Weigher')
    for long, short in (('ServerGroup', 'Grp'), ('Soft', ''), ('AntiAffinity', 'Anti')):
        name = name.replace(long, short)
    return name[:9]


def wrapped_lines(text: str, indent: int = 2) -> list[str]:
    """Return a line wrapped to the width, continuation lines indented."""
    if len(text) <= WIDTH:
        return [text]
    stored = len(text) - len(text.lstrip())
    lines = textwrap.wrap(
        text.lstrip(),
        WIDTH,
        initial_indent=' ' * stored,
        subsequent_indent=' ' * indent,
        break_on_hyphens=False,
        break_long_words=True,
    )
    return lines or ['']


#: Maximum number of zones listed, and of filters named for one.
ZONES_SHOWN, FILTERS_SHOWN = 20, 3


def zone_lines(
    steps: Sequence[ZoneStep], below: Mapping[str, ZoneExplanation] | None = None
) -> Iterable[str]:
    """Yield the zones of a decision, those with members first.

    :param below: explanations of child zones, by name
    """
    if not steps:
        return
    yield 'zones:'
    first = sorted(steps, key=lambda step: (not step.taken, not step.round, bool(step.zone)))
    width = min(24, max(len(step.zone or 'this zone') for step in first[:ZONES_SHOWN]))
    for step in first[:ZONES_SHOWN]:
        yield f'  {step.zone or "this zone":<{width}}  {_step_text(step)}'
        explanation = (below or {}).get(step.zone)
        if explanation is not None:
            yield from _zone_explanation_lines(explanation, width + 4)
    if len(steps) > ZONES_SHOWN:
        rest = wording.counted_noun(len(steps) - ZONES_SHOWN, 'more zone')
        yield f'  and {rest}; -f json has them all'


def _zone_explanation_lines(explanation: ZoneExplanation, indent: int) -> Iterable[str]:
    """Yield the explanation of a zone and those below it, which it does not name."""
    margin = ' ' * indent
    if explanation.hosts and not explanation.zones:
        hosts = _hosts_text(explanation.hosts, explanation.survivors, explanation.removed)
        yield f'{margin}there: {hosts}'
    number = 0
    for share in explanation.zones:
        number += not share.is_own
        who = 'its own hosts' if share.is_own else f'a zone below it ({number})'
        yield f'{margin}{who}: {_step_text(share)}'
        if share.below is not None:
            yield from _zone_explanation_lines(share.below, indent + 2)


def _step_text(one: ZoneStep | ExplainedShare) -> str:
    parts = []
    if one.round:
        parts.append(
            f'round {one.round}, after {_ms_text(one.queried_after)}, for {_ms_text(one.seconds)}'
        )
    if one.outcome:
        if one.hosts:  # a zone of another owner does not say how many it has
            parts.append(_hosts_text(one.hosts, one.survivors, one.removed))
        parts.append(_offers_text(one))
    elif one.strategy:
        parts.append(f'not queried ({one.strategy}): {one.reason}')
    elif one.round:
        parts.append(f'no answer: {one.reason}')
    else:
        parts.append(f'not queried: {one.reason}')
    if one.taken:
        parts.append(f'takes {wording.counted_noun(one.taken, "member")}')
    return '; '.join(parts)


def _offers_text(one: ZoneStep | ExplainedShare) -> str:
    if not one.offers:
        return 'no offer'
    if one.outcome and isinstance(one, ZoneStep) and one.reason:
        return f'{wording.counted_noun(one.offers, "offer")}: {one.reason}'
    level = f', level {one.level}' if one.level else ''
    return f'{wording.counted_noun(one.offers, "offer")}, the best {one.score:.3f}{level}'


def _hosts_text(hosts: int, survivors: int, removed: Mapping[str, int]) -> str:
    most = sorted(removed.items(), key=lambda pair: (-pair[1], pair[0]))[:FILTERS_SHOWN]
    why = f' ({", ".join(f"{name} removed {count}" for name, count in most)})' if most else ''
    return f'{survivors} of {hosts} hosts fit{why}'


def _ms_text(seconds: float) -> str:
    return f'{seconds * 1000:.0f} ms'
