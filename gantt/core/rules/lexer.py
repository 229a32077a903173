# SPDX-License-Identifier: Apache-2.0
"""The words of the text form, each with its place."""

import re

import msgspec

from gantt.core.rules import tree

_PART = r'(?:[A-Za-z0-9_][A-Za-z0-9_:-]*|"(?:[^"\\]|\\["\\])*")'
_WORDS = re.compile(
    r'(?P<space>\s+)'
    r'|(?P<text>"(?:[^"\\]|\\["\'\\])*"|\'(?:[^\'\\]|\\["\'\\])*\')'
    r'|(?P<version>v[0-9]+(?:\.[0-9]+)*(?![A-Za-z0-9_:-]))'
    rf'|(?P<name>[A-Za-z_][A-Za-z0-9_:-]*(?:\.{_PART})*)'
    r'|(?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?)'
    r'|(?P<sign><=|>=|==|!=|<|>|\.\.|[()\[\],])'
)
_KEYWORDS = frozenset(
    {'and', 'or', 'not', 'in', 'contains', 'known', 'some', 'json', 'true', 'false'}
)
#: A list of plain texts in quotes, as places are written: read at once.
_PLAIN_LIST = re.compile(
    rf'\[\s*"[^"\\]{{0,{tree.LITERAL_MAX}}}"(?:\s*,\s*"[^"\\]{{0,{tree.LITERAL_MAX}}}")*\s*\]'
)
_PLAIN_TEXT = re.compile(r'"([^"]*)"')
_ESCAPED = re.compile(r'\\(.)')
_QUOTED_PART = re.compile(r'"((?:[^"\\]|\\["\\])*)"')


class Wrong(Exception):
    """A text that is no condition.

    :ivar at: where, counted from 0
    """

    def __init__(self, at: int, problem: str) -> None:
        super().__init__(problem)
        self.at = at


class Word(msgspec.Struct, frozen=True):
    """One word.

    :ivar kind: text, version, name, number, keyword, sign, list (of plain texts) or end
    :ivar text: as it stands there; of a text, without quotes; of a list, its first sign
    :ivar at: where it begins, counted from 0
    :ivar items: of a list
    """

    kind: str
    text: str
    at: int
    items: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """As an error names it."""
        if self.kind == 'end':
            return 'the end'
        return tree.operand_text(self.text) if self.kind == 'text' else f"'{self.text[:40]}'"


def words_of(text: str) -> list[Word]:
    """The words of a text, one that says where it ends being the last.

    :raises Wrong: something that is no word, or too much text
    """
    if len(text) > tree.TEXT_MAX:
        raise Wrong(tree.TEXT_MAX, f'expected at most {tree.TEXT_MAX} characters, got {len(text)}')
    words, at = [], 0
    while at < len(text):
        if text[at] == ' ':
            at += 1
            continue
        plain = _PLAIN_LIST.match(text, at)
        if plain is not None and plain.group().count('"') <= 2 * tree.LIST_MAX:
            words.append(Word('list', '[', at, tuple(_PLAIN_TEXT.findall(plain.group()))))
            at = plain.end()
            continue
        found = _WORDS.match(text, at)
        if found is None:
            raise Wrong(at, _complaint(text[at:]))
        kind, said = found.lastgroup or '', found.group()
        if kind == 'text':
            said = said[1:-1]
            if '\\' in said:
                said = _ESCAPED.sub(r'\1', said)
        elif kind == 'name':
            kind, said = _named(said)
        if kind != 'space':
            words.append(Word(kind, said, at))
        at = found.end()
    words.append(Word('end', '', len(text)))
    return words


def _named(said: str) -> tuple[str, str]:
    """Kind and text of what looks like a name."""
    if '"' in said:
        return 'name', _QUOTED_PART.sub(lambda quoted: _ESCAPED.sub(r'\1', quoted[1]), said)
    return 'keyword' if said in _KEYWORDS else 'name', said


def _complaint(rest: str) -> str:
    if rest[0] in '"\'':
        return (
            f'expected a text that ends with {rest[0]}, '
            'with a backslash before quotes and backslashes in it only'
        )
    if rest[0] == '=':
        return "expected a relation such as '==' or '>=', got '='"
    if rest[:2] in ('&&', '||'):
        return f'expected {"and" if rest[0] == "&" else "or"!r}, got {rest[:2]!r}'
    if rest[0] == '!':
        return "expected 'not' or '!=', got '!'"
    return f'expected a fact, a value or a connective, got {rest[0]!r}'
