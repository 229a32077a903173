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
    """A table of what matters; what is the same on both sides is said once, with ``=``."""
    rows: list[tuple[str, str, str]] = [
        ('outcome', _outcome(one), _outcome(other)),
        ('placed on', _places(one.members), _places(other.members)),
        ('hosts', str(one.hosts), str(other.hosts)),
    ]
    for mine, its in list(zip(one.members, other.members, strict=False))[:_MEMBERS_SHOWN]:
        many = len(one.members) > 1
        if many:
            rows.append((f'member {mine.member}', '', ''))
        rows.extend(_member_rows(mine, its, '  ' if many else ''))
    size = min(_NAME_MAX, max(len(name) for name, _, _ in rows))
    lines_shown = [f'  {"":<{size}}  {titles[0]:<{_SIDE_MAX}}  {titles[1]}']
    for name, left, right in rows:
        right = '=' if left and left == right else right
        lines_shown.append(
            f'  {name[:size]:<{size}}  {_cut(left):<{_SIDE_MAX}}  {_cut(right)}'.rstrip()
        )
    return lines_shown


def summary(now: Explanation, then: Explanation) -> str:
    """What would become of the members, in a sentence: how many fit, how many elsewhere."""
    before = {m.member: m.host for m in now.members}
    after = {m.member: m.host for m in then.members}
    if now.outcome != 'placed':
        before = {}
    if then.outcome != 'placed':
        after = {}
    fit = sum(host is not None for host in after.values())
    fits = sum(host is not None for host in before.values())
    if not fit:
        sentence = 'it would not fit' if then.count == 1 else f'the {then.count} would not fit'
        return f'{sentence}, {"as it is neither" if not fits else "but as it is"}'
    other = sum(host is not None and host != before.get(n) for n, host in after.items())
    if not fits:
        return f'{"it" if then.count == 1 else f"all {fit}"} would fit, but not as it is'
    if then.count == 1:
        where = f'on {next(iter(after.values()))} instead' if other else 'on the same host'
        return f'it still fits, {where}'
    return f'all {fit} still fit; {other} would be on another host'


def _member_rows(
    mine: MemberExplanation, its: MemberExplanation, indent: str
) -> Iterable[tuple[str, str, str]]:
    yield f'{indent}hosts that fit', str(mine.survivors), str(its.survivors)
    here = {step.filter: step.removed for step in mine.funnel}
    there = {step.filter: step.removed for step in its.funnel}
    for name in dict.fromkeys([*here, *there]):
        left, right = here.get(name), there.get(name)
        if left or right:
            yield f'{indent}{name}', _removed(left), _removed(right)
    if mine.scores or its.scores:
        yield f'{indent}best score', _best(mine), _best(its)


def _outcome(found: Explanation) -> str:
    return found.outcome.replace('_', ' ')


def _places(members: Sequence[MemberExplanation]) -> str:
    names = list(dict.fromkeys(m.host for m in members if m.host))
    more = f' +{len(names) - _HOSTS_SHOWN}' if len(names) > _HOSTS_SHOWN else ''
    return ', '.join(names[:_HOSTS_SHOWN]) + more or 'nowhere'


def _removed(count: int | None) -> str:
    return 'does not run' if count is None else f'-{count}' if count else '0'


def _best(member: MemberExplanation) -> str:
    return f'{member.scores[0].total:.6g}' if member.scores else '-'


def _cut(text: str) -> str:
    return text if len(text) <= _SIDE_MAX else text[: _SIDE_MAX - 1] + '…'
