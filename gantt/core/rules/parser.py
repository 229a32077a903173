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
from gantt.core.rules.comparison import TypeMismatch, test_of
from gantt.core.rules.expression import Expression, QuestionsByNode

#: Upper bound of nested parentheses and ``not``; each may take two levels of the tree.
_NESTED_MAX = 12
_EXPECTED_START = 'a comparison such as free.VCPU >= 4'

_NAME_PART = r'(?:[A-Za-z0-9_][A-Za-z0-9_:-]*|"(?:[^"\\]|\\["\\])*")'
_TOKEN = re.compile(
    r'(?P<space>\s+)'
    r'|(?P<text>"(?:[^"\\]|\\["\'\\])*"|\'(?:[^\'\\]|\\["\'\\])*\')'
    r'|(?P<version>v[0-9]+(?:\.[0-9]+)*(?![A-Za-z0-9_:-]))'
    rf'|(?P<name>[A-Za-z_][A-Za-z0-9_:-]*(?:\.{_NAME_PART})*)'
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
    parsed = _parsed(text) if len(text) <= tree.TEXT_MAX else _parse_or_problem(text)
    if isinstance(parsed, Expression):
        return parsed
    position, problem = parsed
    raise exceptions.InvalidRule(
        field=field, problem=f'character {position + 1}: {problem}', at=position + 1
    )


def checked_tree(
    expr: tree.Expr, field: str = 'rule', bounds: tree.Bounds = tree.WRITTEN_BOUNDS
) -> Expression:
    """Return a tree as a condition.

    :raises InvalidRule: names the part and what was expected there
    """
    try:
        tree.check_size(expr, bounds)
        for node, _ in tree.walk(expr):
            if isinstance(node, tree.Comparison | tree.Known | tree.Some):
                test_of(node)
        return Expression(expr, bounds)
    except tree.TooLarge as e:
        raise _not_json(field, str(e)) from None
    except TypeMismatch as e:
        raise _not_json(field, f'in {tree.to_text(node)[:200]}: {e}') from None


def _not_json(field: str, problem: str) -> exceptions.InvalidRule:
    return exceptions.InvalidRule(field=field, problem=problem, at=0)


@functools.lru_cache(maxsize=2048)
def _parsed(text: str) -> Expression | tuple[int, str]:
    return _parse_or_problem(text)


def _parse_or_problem(text: str) -> Expression | tuple[int, str]:
    try:
        parser = _Parser(text)
        return Expression(parser.whole_expression(), known_questions=parser.questions)
    except ParseError as e:
        return e.at, str(e)
    except tree.TooLarge as e:
        return 0, str(e)


# -- words ----------------------------------------------------------------------


class ParseError(Exception):
    """A text that is not a condition.

    :ivar at: position of the error, counted from 0
    """

    def __init__(self, at: int, problem: str) -> None:
        super().__init__(problem)
        self.at = at


class Token(msgspec.Struct, frozen=True):
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


def _tokenize(text: str) -> list[Token]:
    """Return the tokens of a text, with an end token.

    :raises ParseError: a part is not a token, or the text is too long
    """
    if len(text) > tree.TEXT_MAX:
        raise ParseError(
            tree.TEXT_MAX, f'expected at most {tree.TEXT_MAX} characters, got {len(text)}'
        )
    tokens, position = [], 0
    while position < len(text):
        if text[position] == ' ':
            position += 1
            continue
        plain_list = _PLAIN_LIST.match(text, position)
        if plain_list is not None and plain_list.group().count('"') <= 2 * tree.LIST_MAX:
            tokens.append(
                Token('list', '[', position, tuple(_PLAIN_TEXT.findall(plain_list.group())))
            )
            position = plain_list.end()
            continue
        matched = _TOKEN.match(text, position)
        if matched is None:
            raise ParseError(position, _lexical_problem(text[position:]))
        kind, token = matched.lastgroup or '', matched.group()
        if kind == 'text':
            token = token[1:-1]
            if '\\' in token:
                token = _ESCAPED.sub(r'\1', token)
        elif kind == 'name':
            kind, token = _name_token(token)
        if kind != 'space':
            tokens.append(Token(kind, token, position))
        position = matched.end()
    tokens.append(Token('end', '', len(text)))
    return tokens


def _name_token(tokens: str) -> tuple[str, str]:
    """Return kind and text of a token with the form of a name."""
    if '"' in tokens:
        return 'name', _QUOTED_PART.sub(lambda quoted: _ESCAPED.sub(r'\1', quoted[1]), tokens)
    return 'keyword' if tokens in _KEYWORDS else 'name', tokens


def _lexical_problem(rest: str) -> str:
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
        self._tokens = _tokenize(text)
        self._next = 0
        self._depth = 0
        self._nodes = 0
        #: Questions of single nodes, by the node's identity.
        self.questions: QuestionsByNode = {}

    @property
    def _current_token(self) -> Token:
        return self._tokens[self._next]

    def _next_token(self) -> Token:
        word = self._current_token
        if word.kind != 'end':
            self._next += 1
        return word

    def _is_token(self, *tokens: str) -> bool:
        word = self._tokens[self._next]
        return word.text in tokens and word.kind in ('keyword', 'sign')

    def _expected_error(self, what: str) -> ParseError:
        return ParseError(
            self._current_token.at, f'expected {what}, got {self._current_token.shown}'
        )

    def _expect_sign(self, sign: str) -> None:
        if not self._is_token(sign):
            raise self._expected_error(f"'{sign}'")
        self._next_token()

    def _count_node(self, at: int) -> None:
        self._nodes += 1
        if self._nodes > tree.NODES_MAX:
            raise ParseError(
                at, f'expected at most {tree.NODES_MAX} tests and connectives in one rule'
            )

    # -- connectives -----------------------------------------------------------

    def whole_expression(self) -> tree.Expr:
        """Parse the condition of all tokens."""
        expr = self._or_expression()
        if self._current_token.kind != 'end':
            raise self._expected_error("'and', 'or' or the end")
        return expr

    def _or_expression(self) -> tree.Expr:
        self._depth += 1
        if self._depth > _NESTED_MAX:
            raise ParseError(
                self._current_token.at, f'expected at most {_NESTED_MAX} levels of nesting'
            )
        parts = [self._and_expression()]
        while self._is_token('or'):
            self._next_token()
            parts.append(self._and_expression())
        self._depth -= 1
        return self._joined(tree.Or, parts)

    def _and_expression(self) -> tree.Expr:
        parts = [self._not_expression()]
        while self._is_token('and'):
            self._next_token()
            parts.append(self._not_expression())
        return self._joined(tree.And, parts)

    def _joined(self, kind: type[tree.And | tree.Or], parts: list[tree.Expr]) -> tree.Expr:
        if len(parts) == 1:
            return parts[0]
        self._count_node(self._current_token.at)
        return kind(of=tuple(parts))

    def _not_expression(self) -> tree.Expr:
        if self._is_token('not'):
            position = self._next_token().at
            self._count_node(position)
            self._depth += 1
            if self._depth > _NESTED_MAX:
                raise ParseError(position, f'expected at most {_NESTED_MAX} levels of nesting')
            expr: tree.Expr = tree.Not(of=self._not_expression())
            self._depth -= 1
            return expr
        if self._is_token('('):
            self._next_token()
            expr = self._or_expression()
            self._expect_sign(')')
            return expr
        if self._is_token('known', 'some'):
            kind = tree.Known if self._next_token().text == 'known' else tree.Some
            word = self._current_token
            if word.kind != 'name':
                raise self._expected_error('the name of a fact')
            self._next_token()
            return self._checked(kind(fact=word.text), word, word, word)
        return self._comparison()

    # -- comparisons -----------------------------------------------------------

    def _comparison(self) -> tree.Expr:
        first = self._current_token
        left = self._operand(_EXPECTED_START)
        sign = self._current_token
        negated = False
        if self._is_token('not'):
            self._next_token()
            negated = True
            if not self._is_token('in', 'contains'):
                raise self._expected_error("'in' or 'contains'")
            sign = self._current_token
        if not self._is_token(*tree.COMPARISON_BY_OPERATOR):
            return self._fact_alone(left, first)
        self._next_token()
        second = self._current_token
        right = self._operand('a value')
        expr = self._compared(left, sign, right, first, second)
        if negated:
            self._count_node(sign.at)
            expr = tree.Not(of=expr)
        return expr

    def _fact_alone(self, left: tree.Operand, word: Token) -> tree.Expr:
        """Parse a boolean fact, or a plain ``true`` or ``false``."""
        if isinstance(left, bool):
            self._count_node(word.at)
            return tree.Always(value=left)
        if not isinstance(left, tree.Ref):
            raise self._expected_error("a relation such as '==' or 'in'")
        node = tree.Equal(fact=left.name, value=True)
        try:
            test_of(node)
        except TypeMismatch as e:
            if e.part == 'fact':
                raise ParseError(word.at, str(e)) from None
            raise self._expected_error("a relation such as '==' or 'in'") from None
        self._count_node(word.at)
        return node

    def _compared(
        self, left: tree.Operand, sign: Token, right: tree.Operand, first: Token, second: Token
    ) -> tree.Expr:
        op = sign.text
        node: tree.Comparison
        if isinstance(left, tree.Ref):
            if op == 'in' and isinstance(right, tree.Ref):
                # Membership in a set is a question about the set.
                node = tree.Contains(fact=right.name, value=left)
                return self._checked(node, second, sign, first)
            return self._checked(
                tree.COMPARISON_BY_OPERATOR[op](fact=left.name, value=right), first, sign, second
            )
        if not isinstance(right, tree.Ref):
            raise ParseError(first.at, f'expected a fact on one side of {op!r}')
        if op == 'in':
            node = tree.Contains(fact=right.name, value=left)
        elif op in tree.SWAPPED_OPERATORS:
            node = tree.COMPARISON_BY_OPERATOR[tree.SWAPPED_OPERATORS[op]](
                fact=right.name, value=left
            )
        else:
            raise ParseError(first.at, f'expected a fact on the left side of {op!r}')
        return self._checked(node, second, sign, first)

    def _checked(
        self, node: tree.Comparison | tree.Known | tree.Some, fact: Token, sign: Token, value: Token
    ) -> tree.Expr:
        self._count_node(fact.at)
        try:
            self.questions[id(node)] = (node, test_of(node))
        except TypeMismatch as e:
            position = {'fact': fact.at, 'op': sign.at, 'value': value.at}[e.part]
            raise ParseError(position, str(e)) from None
        return node  # type: ignore[return-value]

    # -- values ----------------------------------------------------------------

    def _operand(self, what: str) -> tree.Operand:
        word = self._current_token
        if word.kind == 'list':
            self._next_token()
            return word.items
        if self._is_token('['):
            return self._list()
        if self._is_token('..'):
            self._next_token()
            return tree.Range(high=self._range_end())
        if self._is_token('true', 'false'):
            return self._next_token().text == 'true'
        if self._is_token('json'):
            return self._json()
        if word.kind == 'name':
            self._next_token()
            self._bounded_literal(word)
            return tree.Ref(name=word.text)
        if word.kind == 'text':
            self._next_token()
            self._bounded_literal(word)
            return word.text
        if word.kind not in ('number', 'version'):
            raise self._expected_error(what)
        low = self._range_end()
        if not self._is_token('..'):
            return low
        self._next_token()
        is_open = self._current_token.kind not in ('number', 'version')
        return tree.Range(low=low, high=None if is_open else self._range_end())

    def _json(self) -> tree.Json:
        """Parse a value of any type, as text in quotes."""
        self._next_token()
        word = self._current_token
        if word.kind != 'text':
            raise self._expected_error('JSON as a text in quotes')
        self._next_token()
        self._bounded_literal(word)
        return tree.Json(text=word.text)

    def _range_end(self) -> int | float | tree.VersionNumber:
        """Parse a number or a version."""
        word = self._current_token
        if word.kind == 'version':
            self._next_token()
            self._bounded_literal(word)
            return tree.VersionNumber(text=word.text[1:])
        if word.kind != 'number':
            raise self._expected_error('a number or a version')
        self._next_token()
        self._bounded_literal(word)
        number = int(word.text) if word.text.lstrip('-').isdigit() else float(word.text)
        if not tree.is_number(number):
            raise ParseError(word.at, 'expected a number of at most 2^53')
        return number

    def _bounded_literal(self, word: Token) -> None:
        if len(word.text) > tree.LITERAL_MAX:
            raise ParseError(
                word.at, f'expected at most {tree.LITERAL_MAX} characters in one piece'
            )

    def _list(self) -> tuple[tree.Item, ...]:
        start = self._next_token()
        items: list[tree.Item] = []
        while not self._is_token(']'):
            if items:
                self._expect_sign(',')
            word = self._tokens[self._next]
            if word.kind == 'text':
                self._next += 1
                self._bounded_literal(word)
                items.append(word.text)
            elif word.kind in ('number', 'version'):
                items.append(self._range_end())
            else:
                raise self._expected_error('a text in quotes, a number or a version')
            if len(items) > tree.LIST_MAX:
                raise ParseError(start.at, f'expected at most {tree.LIST_MAX} items in a list')
        self._next_token()
        return tuple(items)
