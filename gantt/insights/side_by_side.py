# SPDX-License-Identifier: Apache-2.0
"""Two explanations of one request side by side: then and again, as it is and what if."""

from collections.abc import Iterable, Sequence

from gantt.insights.views import Explanation, MemberExplanation

_NAME_MAX = 26
_SIDE_MAX = 24
_HOSTS_SHOWN = 4
#: Members whose filters are compared line by line.
_MEMBERS_SHOWN = 5


def lines(titles: tuple[str, str], one: Explanation, other: Explanation) -> list[str]:
    """Return a table of the main values; where both sides are the same the second is ``=``."""
    rows: list[tuple[str, str, str]] = [
        ('outcome', _outcome(one), _outcome(other)),
        ('placed on', _places(one.members), _places(other.members)),
        (f'{one.kind}s', str(one.hosts), str(other.hosts)),
    ]
    for first, second in list(zip(one.members, other.members, strict=False))[:_MEMBERS_SHOWN]:
        has_several = len(one.members) > 1
        if has_several:
            rows.append((f'member {first.member}', '', ''))
        rows.extend(_member_rows(one.kind, first, second, '  ' if has_several else ''))
    size = min(_NAME_MAX, max(len(name) for name, _, _ in rows))
    lines_shown = [f'  {"":<{size}}  {titles[0]:<{_SIDE_MAX}}  {titles[1]}']
    for name, one_text, other_text in rows:
        other_text = '=' if one_text and one_text == other_text else other_text
        lines_shown.append(
            f'  {name[:size]:<{size}}  {_cut(one_text):<{_SIDE_MAX}}  {_cut(other_text)}'.rstrip()
        )
    return lines_shown


def summary(now: Explanation, then: Explanation) -> str:
    """Return what would become of the members, in a sentence: how many fit, how many elsewhere."""
    before = {member.member: member.host for member in now.members}
    after = {member.member: member.host for member in then.members}
    if now.outcome != 'placed':
        before = {}
    if then.outcome != 'placed':
        after = {}
    fitting_then = sum(host is not None for host in after.values())
    fitting_now = sum(host is not None for host in before.values())
    if not fitting_then:
        sentence = 'it would not fit' if then.count == 1 else f'the {then.count} would not fit'
        return f'{sentence}, {"as it is neither" if not fitting_now else "but as it is"}'
    moved = sum(host is not None and host != before.get(member) for member, host in after.items())
    if not fitting_now:
        return f'{"it" if then.count == 1 else f"all {fitting_then}"} would fit, but not as it is'
    if then.count == 1:
        where = f'on {next(iter(after.values()))} instead' if moved else f'on the same {then.kind}'
        return f'it still fits, {where}'
    return f'all {fitting_then} still fit; {moved} would be on another {then.kind}'


def _member_rows(
    kind: str, mine: MemberExplanation, its: MemberExplanation, indent: str
) -> Iterable[tuple[str, str, str]]:
    yield f'{indent}{kind}s that fit', str(mine.survivors), str(its.survivors)
    here = {step.filter: step.removed for step in mine.funnel}
    there = {step.filter: step.removed for step in its.funnel}
    for name in dict.fromkeys([*here, *there]):
        one_removed, other_removed = here.get(name), there.get(name)
        if one_removed or other_removed:
            yield f'{indent}{name}', _removed(one_removed), _removed(other_removed)
    if mine.scores or its.scores:
        yield f'{indent}best score', _best(mine), _best(its)


def _outcome(found: Explanation) -> str:
    return found.outcome.replace('_', ' ')


def _places(members: Sequence[MemberExplanation]) -> str:
    names = list(dict.fromkeys(member.host for member in members if member.host))
    more = f' +{len(names) - _HOSTS_SHOWN}' if len(names) > _HOSTS_SHOWN else ''
    return ', '.join(names[:_HOSTS_SHOWN]) + more or 'nowhere'


def _removed(count: int | None) -> str:
    return 'does not run' if count is None else f'-{count}' if count else '0'


def _best(member: MemberExplanation) -> str:
    return f'{member.scores[0].total:.6g}' if member.scores else '-'


def _cut(text: str) -> str:
    return text if len(text) <= _SIDE_MAX else text[: _SIDE_MAX - 1] + '…'
