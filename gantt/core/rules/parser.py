# SPDX-License-Identifier: Apache-2.0
"""The text form of conditions, read from left to right with bounds on everything.

    either     = both { "or" both }
    both       = single { "and" single }
    single     = "not" single | "(" either ")" | "known" FACT | "some" FACT | comparison
    comparison = operand [ relation operand ]

Errors name the character, what was expected there, and the nearest known name.
"""

import functools
import re

import msgspec

from gantt import exceptions
from gantt.core.rules import tree
from gantt.core.rules.comparison import TypeMismatch, question_of
from gantt.core.rules.expression import Expression, QuestionsByNode

#: Upper bound of nested parentheses and ``not``; each may take two levels of the tree.
_NESTED_MAX = 12
_STARTS = 'a comparison such as free.VCPU >= 4'

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


def parse(text: str, field: str = 'rule') -> Expression:
    """Return the condition of a text.

    :param field: name of the text in an error
    :raises InvalidRule: names the character and what was expected there
    """
    parsed = _parsed(text) if len(text) <= tree.TEXT_MAX else _attempt(text)
    if isinstance(parsed, Expression):
        return parsed
    position, problem = parsed
    raise exceptions.InvalidRule(
        field=field, problem=f'character {position + 1}: {problem}', at=position + 1
    )


def checked(expr: tree.Expr, field: str = 'rule', bounds: tree.Bounds = tree.WRITTEN) -> Expression:
    """Return a tree as a condition.

    :raises InvalidRule: names the part and what was expected there
    """
    try:
        tree.check_size(expr, bounds)
        for node, _ in tree.walk(expr):
            if isinstance(node, tree.Comparison | tree.Known | tree.Some):
                question_of(node)
        return Expression(expr, bounds)
    except tree.TooLarge as e:
        raise _not_json(field, str(e)) from None
    except TypeMismatch as e:
        raise _not_json(field, f'in {tree.to_text(node)[:200]}: {e}') from None


def _not_json(field: str, problem: str) -> exceptions.InvalidRule:
    return exceptions.InvalidRule(field=field, problem=problem, at=0)


@functools.lru_cache(maxsize=2048)
def _parsed(text: str) -> Expression | tuple[int, str]:
    return _attempt(text)


def _attempt(text: str) -> Expression | tuple[int, str]:
    try:
        parser = _Parser(text)
        return Expression(parser.whole(), known_questions=parser.questions)
    except Wrong as e:
        return e.at, str(e)
    except tree.TooLarge as e:
        return 0, str(e)


# -- words ----------------------------------------------------------------------


class Wrong(Exception):
    """A text that is not a condition.

    :ivar at: position of the error, counted from 0
    """

    def __init__(self, at: int, problem: str) -> None:
        super().__init__(problem)
        self.at = at


class Word(msgspec.Struct, frozen=True):
    """A token of the text form.

    :ivar kind: text, version, name, number, keyword, sign, list (of plain texts) or end
    :ivar text: as in the source; of a text, without quotes; of a list, its first sign
    :ivar at: its position, counted from 0
    :ivar items: of a list
    """

    kind: str
    text: str
    at: int
    items: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """Form of the token in an error message."""
        if self.kind == 'end':
            return 'the end'
        return tree.operand_text(self.text) if self.kind == 'text' else f"'{self.text[:40]}'"


def _words_of(text: str) -> list[Word]:
    """Return the tokens of a text, with an end token.

    :raises Wrong: a part is not a token, or the text is too long
    """
    if len(text) > tree.TEXT_MAX:
        raise Wrong(tree.TEXT_MAX, f'expected at most {tree.TEXT_MAX} characters, got {len(text)}')
    tokens, position = [], 0
    while position < len(text):
        if text[position] == ' ':
            position += 1
            continue
        plain_list = _PLAIN_LIST.match(text, position)
        if plain_list is not None and plain_list.group().count('"') <= 2 * tree.LIST_MAX:
            tokens.append(
                Word('list', '[', position, tuple(_PLAIN_TEXT.findall(plain_list.group())))
            )
            position = plain_list.end()
            continue
        matched = _WORDS.match(text, position)
        if matched is None:
            raise Wrong(position, _complaint(text[position:]))
        kind, token = matched.lastgroup or '', matched.group()
        if kind == 'text':
            token = token[1:-1]
            if '\\' in token:
                token = _ESCAPED.sub(r'\1', token)
        elif kind == 'name':
            kind, token = _named(token)
        if kind != 'space':
            tokens.append(Word(kind, token, position))
        position = matched.end()
    tokens.append(Word('end', '', len(text)))
    return tokens


def _named(tokens: str) -> tuple[str, str]:
    """Return kind and text of a token with the form of a name."""
    if '"' in tokens:
        return 'name', _QUOTED_PART.sub(lambda quoted: _ESCAPED.sub(r'\1', quoted[1]), tokens)
    return 'keyword' if tokens in _KEYWORDS else 'name', tokens


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


# -- conditions -----------------------------------------------------------------


class _Parser:
    def __init__(self, text: str) -> None:
        self._words = _words_of(text)
        self._next = 0
        self._depth = 0
        self._nodes = 0
        #: Questions of single nodes, by the node's identity.
        self.questions: QuestionsByNode = {}

    @property
    def _word(self) -> Word:
        return self._words[self._next]

    def _take(self) -> Word:
        word = self._word
        if word.kind != 'end':
            self._next += 1
        return word

    def _is(self, *tokens: str) -> bool:
        word = self._words[self._next]
        return word.text in tokens and word.kind in ('keyword', 'sign')

    def _wanted(self, what: str) -> Wrong:
        return Wrong(self._word.at, f'expected {what}, got {self._word.shown}')

    def _end_with(self, sign: str) -> None:
        if not self._is(sign):
            raise self._wanted(f"'{sign}'")
        self._take()

    def _count(self, at: int) -> None:
        self._nodes += 1
        if self._nodes > tree.NODES_MAX:
            raise Wrong(at, f'expected at most {tree.NODES_MAX} tests and connectives in one rule')

    # -- connectives -----------------------------------------------------------

    def whole(self) -> tree.Expr:
        """Parse the condition of all tokens."""
        expr = self._either()
        if self._word.kind != 'end':
            raise self._wanted("'and', 'or' or the end")
        return expr

    def _either(self) -> tree.Expr:
        self._depth += 1
        if self._depth > _NESTED_MAX:
            raise Wrong(self._word.at, f'expected at most {_NESTED_MAX} levels of nesting')
        parts = [self._both()]
        while self._is('or'):
            self._take()
            parts.append(self._both())
        self._depth -= 1
        return self._joined(tree.Or, parts)

    def _both(self) -> tree.Expr:
        parts = [self._single()]
        while self._is('and'):
            self._take()
            parts.append(self._single())
        return self._joined(tree.And, parts)

    def _joined(self, kind: type[tree.And | tree.Or], parts: list[tree.Expr]) -> tree.Expr:
        if len(parts) == 1:
            return parts[0]
        self._count(self._word.at)
        return kind(of=tuple(parts))

    def _single(self) -> tree.Expr:
        if self._is('not'):
            position = self._take().at
            self._count(position)
            self._depth += 1
            if self._depth > _NESTED_MAX:
                raise Wrong(position, f'expected at most {_NESTED_MAX} levels of nesting')
            expr: tree.Expr = tree.Not(of=self._single())
            self._depth -= 1
            return expr
        if self._is('('):
            self._take()
            expr = self._either()
            self._end_with(')')
            return expr
        if self._is('known', 'some'):
            kind = tree.Known if self._take().text == 'known' else tree.Some
            word = self._word
            if word.kind != 'name':
                raise self._wanted('the name of a fact')
            self._take()
            return self._checked(kind(fact=word.text), word, word, word)
        return self._comparison()

    # -- comparisons -----------------------------------------------------------

    def _comparison(self) -> tree.Expr:
        first = self._word
        left = self._operand(_STARTS)
        sign = self._word
        negated = False
        if self._is('not'):
            self._take()
            negated = True
            if not self._is('in', 'contains'):
                raise self._wanted("'in' or 'contains'")
            sign = self._word
        if not self._is(*tree.RELATIONS):
            return self._alone(left, first)
        self._take()
        second = self._word
        right = self._operand('a value')
        expr = self._compared(left, sign, right, first, second)
        if negated:
            self._count(sign.at)
            expr = tree.Not(of=expr)
        return expr

    def _alone(self, left: tree.Operand, word: Word) -> tree.Expr:
        """Parse a boolean fact, or a plain ``true`` or ``false``."""
        if isinstance(left, bool):
            self._count(word.at)
            return tree.Always(value=left)
        if not isinstance(left, tree.Ref):
            raise self._wanted("a relation such as '==' or 'in'")
        node = tree.Equal(fact=left.name, value=True)
        try:
            question_of(node)
        except TypeMismatch as e:
            if e.part == 'fact':
                raise Wrong(word.at, str(e)) from None
            raise self._wanted("a relation such as '==' or 'in'") from None
        self._count(word.at)
        return node

    def _compared(
        self, left: tree.Operand, sign: Word, right: tree.Operand, first: Word, second: Word
    ) -> tree.Expr:
        op = sign.text
        node: tree.Comparison
        if isinstance(left, tree.Ref):
            if op == 'in' and isinstance(right, tree.Ref):
                # Membership in a set is a question about the set.
                node = tree.Contains(fact=right.name, value=left)
                return self._checked(node, second, sign, first)
            return self._checked(
                tree.RELATIONS[op](fact=left.name, value=right), first, sign, second
            )
        if not isinstance(right, tree.Ref):
            raise Wrong(first.at, f'expected a fact on one side of {op!r}')
        if op == 'in':
            node = tree.Contains(fact=right.name, value=left)
        elif op in tree.TURNED:
            node = tree.RELATIONS[tree.TURNED[op]](fact=right.name, value=left)
        else:
            raise Wrong(first.at, f'expected a fact on the left side of {op!r}')
        return self._checked(node, second, sign, first)

    def _checked(
        self, node: tree.Comparison | tree.Known | tree.Some, fact: Word, sign: Word, value: Word
    ) -> tree.Expr:
        self._count(fact.at)
        try:
            self.questions[id(node)] = (node, question_of(node))
        except TypeMismatch as e:
            position = {'fact': fact.at, 'op': sign.at, 'value': value.at}[e.part]
            raise Wrong(position, str(e)) from None
        return node  # type: ignore[return-value]

    # -- values ----------------------------------------------------------------

    def _operand(self, what: str) -> tree.Operand:
        word = self._word
        if word.kind == 'list':
            self._take()
            return word.items
        if self._is('['):
            return self._list()
        if self._is('..'):
            self._take()
            return tree.Range(high=self._end())
        if self._is('true', 'false'):
            return self._take().text == 'true'
        if self._is('json'):
            return self._json()
        if word.kind == 'name':
            self._take()
            self._bounded(word)
            return tree.Ref(name=word.text)
        if word.kind == 'text':
            self._take()
            self._bounded(word)
            return word.text
        if word.kind not in ('number', 'version'):
            raise self._wanted(what)
        low = self._end()
        if not self._is('..'):
            return low
        self._take()
        is_open = self._word.kind not in ('number', 'version')
        return tree.Range(low=low, high=None if is_open else self._end())

    def _json(self) -> tree.Json:
        """Parse a value of any type, as text in quotes."""
        self._take()
        word = self._word
        if word.kind != 'text':
            raise self._wanted('JSON as a text in quotes')
        self._take()
        self._bounded(word)
        return tree.Json(text=word.text)

    def _end(self) -> int | float | tree.VersionNumber:
        """Parse a number or a version."""
        word = self._word
        if word.kind == 'version':
            self._take()
            self._bounded(word)
            return tree.VersionNumber(text=word.text[1:])
        if word.kind != 'number':
            raise self._wanted('a number or a version')
        self._take()
        self._bounded(word)
        number = int(word.text) if word.text.lstrip('-').isdigit() else float(word.text)
        if not tree.is_number(number):
            raise Wrong(word.at, 'expected a number of at most 2^53')
        return number

    def _bounded(self, word: Word) -> None:
        if len(word.text) > tree.LITERAL_MAX:
            raise Wrong(word.at, f'expected at most {tree.LITERAL_MAX} characters in one piece')

    def _list(self) -> tuple[tree.Item, ...]:
        start = self._take()
        items: list[tree.Item] = []
        while not self._is(']'):
            if items:
                self._end_with(',')
            word = self._words[self._next]
            if word.kind == 'text':
                self._next += 1
                self._bounded(word)
                items.append(word.text)
            elif word.kind in ('number', 'version'):
                items.append(self._end())
            else:
                raise self._wanted('a text in quotes, a number or a version')
            if len(items) > tree.LIST_MAX:
                raise Wrong(start.at, f'expected at most {tree.LIST_MAX} items in a list')
        self._take()
        return tuple(items)
