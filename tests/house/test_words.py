# SPDX-License-Identifier: Apache-2.0
"""Names are words of the field: none of the banned ones, and no class name for two things."""

import ast
import collections
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
GLOSSARY = ROOT / 'doc/source/reference/glossary.rst'

#: What stood for what the field has words of its own for; as parts of names, in any case.
BANNED = {
    'said': 'reported, declared, or what it is: a text, a value',
    'unsaid': 'undeclared, default',
    'told': 'answered, updated',
    'tell': 'send, update',
    'tells': 'sends',
    'telling': 'informative',
    'heard': 'received, seen',
    'hear': 'receive',
    'hears': 'receives',
    'fate': 'outcome',
    'fates': 'outcomes',
    'kept': 'stored, cached, remaining',
    'beside': 'next to, also, supplementary',
    'asked': 'requested, queried',
    'asking': 'querying',
    'lane': 'work queue',
    'lanes': 'work queues',
    'census': 'inventory of guests',
    'outlet': 'publisher',
    'outlets': 'publishers',
    'survey': 'filter run',
    'choosy': 'conditional',
    'unmoved': 'zero counts',
    'greeting': 'session settings',
    'spoken': 'declared',
    'ears': 'tap',
    'settle': 'finish, correct, resolve',
    'settled': 'finished, corrected, resolved',
    'straight': 'fast path',
    'letter': 'message; dead letter is a word of the field',
    'letters': 'messages; dead letters is a word of the field',
    'book': 'commit batch',
}
#: Of places and people in tests, which say nothing of what is tested.
BANNED_IN_TESTS = {'town', 'village', 'hamlet', 'deaf'}

#: Names of code alone that are such a word as a whole; nothing that leaves the process has one.
ALLOWED = {'asked', 'beside', 'settled'}

#: One concept at both ends of a wire, or a command and the view that it shows.
TWICE = {
    'the class that Nova names on the wire, at each end of it': {'NoValidHost'},
    'what the service answers, and what a client reads': {'ClaimOutcome', 'ReportOutcome'},
    'a command, whose class its entry point names, and the view that it shows': {
        'Capacity',
        'HostDrain',
        'HostHistory',
        'Status',
    },
}
_PART = re.compile(r'[A-Z]+(?![a-z])|[A-Z]?[a-z]+')


def parts(name):
    """The words of a name, in lower case; a dead letter is one word."""
    words = [word.lower() for word in _PART.findall(name)]
    return {
        word
        for before, word in zip(['', *words], words, strict=False)
        if not (before == 'dead' and word in ('letter', 'letters'))
    }


def sources(*folders):
    for folder in folders:
        for path in sorted((ROOT / folder).rglob('*.py')):
            if 'versions' not in path.parts and path != pathlib.Path(__file__):
                yield path, ast.parse(path.read_text())


@pytest.fixture(scope='module')
def package():
    """Return the parsed modules of the package and of the programs over it."""
    return list(sources('gantt', 'devel'))


def defined(tree):
    """Names that a module defines: functions, classes, arguments, attributes and variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_words_of_a_name():
    assert parts('dead_letters') == {'dead'}
    assert parts('ClaimFate') == {'claim', 'fate'}
    assert parts('_TOLD_AT') == {'told', 'at'}


def test_no_name_has_a_banned_word(package):
    wrong = sorted(
        f'{path.relative_to(ROOT)}: {name} ({word}: say {BANNED[word]})'
        for path, tree in package
        for name in {*defined(tree), path.stem} - ALLOWED
        for word in parts(name) & BANNED.keys()
    )
    assert not wrong, '\n'.join(wrong)


@pytest.mark.parametrize('folder', ['bench', 'tests'])
def test_no_class_or_fixture_is_called_by_a_place(folder):
    banned = BANNED_IN_TESTS
    wrong = sorted(
        f'{path.relative_to(ROOT)}: {name}'
        for path, tree in sources(folder)
        for name in {
            path.stem,
            *(
                node.name
                for node in ast.walk(tree)
                if isinstance(node, ast.ClassDef | ast.FunctionDef)
                and not node.name.startswith(('test_', 'Test'))
            ),
        }
        if not path.stem.startswith('test_') or name != path.stem
        if parts(name) & banned
    )
    assert not wrong, '\n'.join(wrong)


def test_what_is_allowed_is_there(package):
    there = {name for _, tree in package for name in defined(tree)}
    assert there >= ALLOWED, 'allowed, and nothing is called so any more'


def test_no_class_name_stands_for_two_things(package):
    where = collections.defaultdict(set)
    for path, tree in package:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                where[node.name].add(str(path.relative_to(ROOT)))
    twice = {name: sorted(paths) for name, paths in where.items() if len(paths) > 1}
    allowed = set().union(*TWICE.values())
    assert not {name: paths for name, paths in twice.items() if name not in allowed}


def test_each_term_of_the_glossary_is_there_once_and_in_order():
    terms = re.findall(r'^   (\w[\w -]*)$', GLOSSARY.read_text(), re.MULTILINE)
    assert len(terms) > 50
    assert len(set(terms)) == len(terms)
    assert terms == sorted(terms, key=str.lower)
    words = {word for term in terms for word in re.findall(r'\w+', term)}
    assert not words & BANNED.keys() - {'letter'}
