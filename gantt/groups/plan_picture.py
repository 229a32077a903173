# SPDX-License-Identifier: Apache-2.0
"""Picture of a plan: domains as columns, hosts as boxes, members as chips; as text and as SVG."""

import html
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from gantt.cli import text
from gantt.core.messages.quoting import plain_text
from gantt.groups import plan_lines

T = TypeVar('T')

#: Code points that are no characters, which no XML may have.
_NO_CHARACTERS = dict.fromkeys((0xFFFE, 0xFFFF), '\N{REPLACEMENT CHARACTER}')
#: States of members that have no place.
_WITHOUT_PLACE = ('expired', 'lost')
#: Marks of members.
_TEXT_LEGEND = '[created]  (planned)  a member with ! violates a policy'
_SVG_LEGEND = 'dashed: planned, not created; red: violates a policy'


class Chip(NamedTuple):
    """A member in the picture.

    :ivar is_planned: no create has taken its place yet
    :ivar is_violating: it violates a policy where it is
    """

    name: str
    is_planned: bool
    is_violating: bool

    @property
    def text(self) -> str:
        """Text of the chip, with its marks."""
        name = f'{self.name}!' if self.is_violating else self.name
        return f'({name})' if self.is_planned else f'[{name}]'


class DomainColumn(NamedTuple):
    """A domain with the chips on each of its hosts."""

    domain: str
    hosts: dict[str, list[Chip]]


def columns_of(plan: dict[str, Any]) -> list[DomainColumn]:
    """Return domains of the narrowest level that members are in, in order of their names."""
    members = plan['members']
    levels = plan_lines.narrowest_levels(members)
    level = levels[-1] if levels else ''
    violating = {name for found in plan['violated'] or () for name in found['members']}
    by_domain: dict[str, dict[str, list[Chip]]] = {}
    for member in members:
        if member['state'] in _WITHOUT_PLACE or not member['host']:
            continue
        domain = member['levels'].get(level) or 'no domain'
        hosts = by_domain.setdefault(_drawn(domain), {})
        name = member['name']
        chip = Chip(_drawn(name), member['state'] == 'planned', name in violating)
        hosts.setdefault(_drawn(member['host']), []).append(chip)
    return [
        DomainColumn(domain, dict(sorted(hosts.items())))
        for domain, hosts in sorted(by_domain.items())
    ]


def _drawn(name: str) -> str:
    """Return a name as text that a terminal and XML may have."""
    return plain_text(name).translate(_NO_CHARACTERS)


def notes_of(plan: dict[str, Any], width: int) -> list[str]:
    """Return lines below the picture: members without a place, and violated policies."""
    decided = plan['decided'] and plan['decided']['plan']
    absent = [m['name'] for m in plan['members'] if m['state'] in _WITHOUT_PLACE]
    absent += decided['missing'] if decided else []
    lines = text.wrap(plan['problem'], width) if plan.get('problem') else []
    if absent:
        names = plan_lines.joined_names(list(dict.fromkeys(absent)))
        lines += text.wrap(f'without a place: {names}', width)
    return lines + plan_lines.violation_lines(plan['violated'] or (), width)


# -- text ------------------------------------------------------------------------------
_GAP = '  '
_BOX_WIDTH_MAX = 36


def text_lines(plan: dict[str, Any], width: int) -> list[str]:
    """Return the picture as lines of at most ``width``, as many columns side by side as fit."""
    columns = columns_of(plan)
    box_width = min(_BOX_WIDTH_MAX, width, _box_width(columns))
    per_band = max(1, (width + len(_GAP)) // (box_width + len(_GAP)))
    lines: list[str] = []
    for band in _slices(columns, per_band):
        blocks = [_column_lines(column, box_width) for column in band]
        for at in range(max(map(len, blocks))):
            cells = (block[at] if at < len(block) else '' for block in blocks)
            lines.append(_GAP.join(cell.ljust(box_width) for cell in cells).rstrip())
        lines.append('')
    return [*lines, _TEXT_LEGEND, *notes_of(plan, width)]


def _box_width(columns: Sequence[DomainColumn]) -> int:
    """Return the width that the longest domain, host or chip needs."""
    sizes = [0]
    for column in columns:
        sizes.append(len(column.domain))
        for host, chips in column.hosts.items():
            sizes += [len(host) + 6, *(len(chip.text) + 4 for chip in chips)]
    return max(sizes)


def _column_lines(column: DomainColumn, width: int) -> list[str]:
    lines = [text.cut_text(column.domain, width)]
    for host, chips in column.hosts.items():
        title = text.cut_text(host, width - 6)
        lines.append(f'+- {title} {"-" * (width - len(title) - 5)}+')
        lines += [f'| {row.ljust(width - 4)} |' for row in _rows(chips, width - 4)]
        lines.append(f'+{"-" * (width - 2)}+')
    return lines


def _rows(chips: Sequence[Chip], width: int) -> Iterator[str]:
    """Yield chips joined to rows of at most ``width``."""
    row = ''
    for chip in chips:
        chip_text = text.cut_text(chip.text, width)
        if row and len(row) + 1 + len(chip_text) > width:
            yield row
            row = ''
        row = f'{row} {chip_text}' if row else chip_text
    yield row


def _slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


# -- SVG -------------------------------------------------------------------------------
#: Lengths in pixels.
_COLUMN, _PAD, _CHIP, _LINE, _CHARACTER = 230, 10, 22, 20, 7.2
_COLUMNS_PER_BAND = 5
_CHARACTERS_MAX, _CHIP_CHARACTERS_MAX = 30, 26
_STYLE = """
text { font: 12px ui-monospace, monospace; fill: #1b2733; }
.domain { font-weight: bold; } .note { fill: #a11; }
.host { fill: #f3f5f7; stroke: #8595a5; }
.chip { fill: #cfe3ff; stroke: #3b6fb5; } .planned { fill: #fff; stroke-dasharray: 4 2; }
.violating { fill: #ffd9d4; stroke: #c0341d; stroke-width: 2; }
@media (prefers-color-scheme: dark) {
  svg { background: #14191f; } text { fill: #e4eaf0; } .note { fill: #ff9d8f; }
  .host { fill: #1f2730; stroke: #5d6d7d; }
  .chip { fill: #1d3f6b; stroke: #7fb0f0; } .planned { fill: #14191f; }
  .violating { fill: #5c1f16; stroke: #ff8a75; }
}
"""


def svg_lines(plan: dict[str, Any]) -> list[str]:
    """Return the picture as lines of an SVG document, for light and dark pages."""
    columns = columns_of(plan)
    shapes: list[str] = []
    top = _PAD
    for band in _slices(columns, _COLUMNS_PER_BAND):
        bottoms = [
            _column_shapes(column, _PAD + at * (_COLUMN + _PAD), top, shapes)
            for at, column in enumerate(band)
        ]
        top = max(bottoms) + 2 * _PAD
    for note in (_SVG_LEGEND, *notes_of(plan, 90)):
        top += _LINE
        shapes.append(_text(_PAD, top, note, '' if note is _SVG_LEGEND else 'note', len(note)))
    width = _PAD + max(3, min(len(columns), _COLUMNS_PER_BAND)) * (_COLUMN + _PAD)
    height = top + 2 * _PAD
    title = html.escape(f'Plan of group {plan["group"]}, revision {plan["revision"]}')
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'preserveAspectRatio="xMinYMin" '
        f'style="max-width: {width}px" role="img" aria-label="{title}">',
        f'<title>{title}</title>',
        *f'<style>{_STYLE}</style>'.splitlines(),
        *shapes,
        '</svg>',
    ]


def _column_shapes(column: DomainColumn, left: int, top: int, shapes: list[str]) -> int:
    """Add the shapes of a column, and return its lower end."""
    top += _LINE
    shapes.append(_text(left, top - 6, column.domain, 'domain'))
    for host, chips in column.hosts.items():
        rows = list(_chip_rows(chips))
        height = _LINE + len(rows) * (_CHIP + 6) + 6
        shapes.append(_rectangle(left, top, _COLUMN, height, 'host'))
        shapes.append(_text(left + 8, top + 15, host, ''))
        for number, row in enumerate(rows):
            at, below = float(left + 8), top + _LINE + number * (_CHIP + 6) + 2
            for chip, size in row:
                marks = ' planned' * chip.is_planned + ' violating' * chip.is_violating
                shapes.append(_rectangle(at, below, size, _CHIP, f'chip{marks}'))
                shapes.append(_text(at + 8, below + 15, chip.name, '', _CHIP_CHARACTERS_MAX))
                at += size + 6
        top += height + _PAD
    return top


def _chip_rows(chips: Sequence[Chip]) -> Iterator[list[tuple[Chip, float]]]:
    """Yield rows of chips with their widths, each row within a column."""
    row: list[tuple[Chip, float]] = []
    room = float(_COLUMN - 16)
    for chip in chips:
        size = min(len(chip.name), _CHIP_CHARACTERS_MAX) * _CHARACTER + 16
        if row and size > room:
            yield row
            row, room = [], float(_COLUMN - 16)
        row.append((chip, size))
        room -= size + 6
    yield row


def _rectangle(left: float, top: float, width: float, height: float, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" '
        'rx="5"/>'
    )


def _text(
    left: float, baseline: float, content: str, kind: str, most: int = _CHARACTERS_MAX
) -> str:
    """Return a text of at most so many characters; the whole of a longer one as a tooltip."""
    shown = text.cut_text(content, most)
    full = f'<title>{html.escape(content)}</title>' if shown != content else ''
    return f'<text class="{kind}" x="{left:g}" y="{baseline:g}">{full}{html.escape(shown)}</text>'
