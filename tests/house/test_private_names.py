# SPDX-License-Identifier: Apache-2.0
"""Private names of libraries are checked before the first use, all that are used."""

import ast
import importlib
import importlib.metadata
import inspect
import pathlib
import pkgutil
import re
from collections.abc import Iterator, Sequence

import pytest

import gantt
from gantt import exceptions, private_names

ROOT = pathlib.Path(gantt.__file__).parent
REQUIREMENTS = (ROOT.parent / 'requirements.txt').read_text()
#: Names of the standard library, and of libraries that document them.
DOCUMENTED = {
    *('_asdict', '_exit', '_open', '_replace', '_option_string_actions', '_mapping'),
    '_upgrade_checks',
}
PRIVATE = re.compile(r'_[a-z]\w*')
BY_NAME = ('getattr', 'setattr', 'hasattr', 'delattr')


@pytest.fixture(scope='module')
def sources() -> list[tuple[str, ast.Module]]:
    return [
        (path.relative_to(ROOT).as_posix(), ast.parse(path.read_text()))
        for path in sorted(ROOT.rglob('*.py'))
    ]


def _is_own_object(node: ast.expr) -> bool:
    """Return whether it is ``self``, ``cls`` or ``super()``."""
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Name) and node.id in ('self', 'cls', 'super')


def _defined(tree: ast.Module) -> set[str]:
    """Names that a module and its classes define, and that these set on themselves.

    What is set on any other object may be a library's.
    """
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if _is_own_object(node.value):
                names.add(node.attr)
        elif isinstance(node, ast.Module | ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                    names.add(statement.name)
                elif isinstance(statement, ast.Assign | ast.AnnAssign):
                    names |= {
                        found.id
                        for found in ast.walk(statement)
                        if isinstance(found, ast.Name) and isinstance(found.ctx, ast.Store)
                    }
    return names


def _used(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Yield private names that a module uses, and whether on an object of the same class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr, _is_own_object(node.value)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield from ((name, False) for name in [*(node.module or '').split('.'), alias.name])
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield from ((name, False) for name in alias.name.split('.'))
        elif isinstance(node, ast.Call) and getattr(node.func, 'id', '') in BY_NAME:
            yield str(getattr(node.args[1], 'value', '')), _is_own_object(node.args[0])


def _of_others(sources: Sequence[tuple[str, ast.Module]]) -> set[str]:
    """Return ``path: name`` for names that are neither of a class of ours nor of the module."""
    of_classes = set().union(*(_defined(tree) for _, tree in sources))
    return {
        f'{path}: {name}'
        for path, tree in sources
        for defined in [_defined(tree)]
        for name, is_own in _used(tree)
        if PRIVATE.fullmatch(name) and name not in (of_classes if is_own else defined)
    }


def _known() -> set[str]:
    collected = set()
    for classes in private_names.NAMES.values():
        for path, names in classes.items():
            collected |= {path.partition(':')[2], *names}
    return collected


def test_the_libraries_that_are_installed_have_them() -> None:
    for library in private_names.NAMES:
        private_names.check(library)


def test_all_that_are_used_are_looked_for(sources: list[tuple[str, ast.Module]]) -> None:
    known_names = _known() | DOCUMENTED
    uses = _of_others(sources)
    assert {use for use in uses if use.partition(': ')[2] not in known_names} == set()


@pytest.mark.parametrize(
    ('text', 'name'),
    [
        ('conf._mutable_ns = None', '_mutable_ns'),
        ('connection._read_timeout = 1', '_read_timeout'),
        ('from oslo_policy import _checks', '_checks'),
        ('from oslo_policy._checks import Check', '_checks'),
        ('import oslo_policy._checks', '_checks'),
        ('setattr(conf, "_hooks", set())', '_hooks'),
        ('_hidden = conf._hidden_by_us', '_hidden_by_us'),
        ('def f(conf):\n    _local = conf._local', '_local'),
    ],
)
def test_what_is_set_on_an_object_of_a_library_is_none_of_ours(text: str, name: str) -> None:
    ours = ast.parse('class Ours:\n    _kept: int\n    def f(self):\n        self._hooks = {}')
    sources = [('ours.py', ours), ('other.py', ast.parse(text))]
    assert _of_others(sources) == {f'other.py: {name}'}


def test_all_that_are_replaced_are_looked_for() -> None:
    """A method that a library does not call any more would be replaced in vain."""
    importlib.import_module('gantt.cmd')  # it says which threads a library uses, before its import
    replaced = set()
    for found in pkgutil.walk_packages(gantt.__path__, 'gantt.'):
        # Run by their servers when imported: the migrations, and the WSGI application.
        if '.alembic.' in found.name or found.name == 'gantt.wsgi.api':
            continue
        module = importlib.import_module(found.name)
        for kind in vars(module).values():
            if not inspect.isclass(kind) or kind.__module__ != module.__name__:
                continue
            replaced |= {
                name
                for base in kind.__mro__[1:-1]
                if not base.__module__.startswith('gantt')
                for name, value in vars(kind).items()
                if PRIVATE.fullmatch(name) and name in vars(base)
                if str(getattr(value, '__module__', None)).startswith('gantt')
            }
    assert {'_sync_gen', '_get_descriptions'} < replaced
    assert replaced - DOCUMENTED <= _known()


def test_none_is_looked_for_that_is_not_used() -> None:
    text = '\n'.join(
        path.read_text() for path in ROOT.rglob('*.py') if path.name != 'private_names.py'
    )
    for classes in private_names.NAMES.values():
        for path, names in classes.items():
            for name in names or (path.partition(':')[2],):
                assert re.search(rf'\b{name}\b', text), (path, name)


def test_releases_of_these_libraries_are_bounded() -> None:
    bounds = dict(re.findall(r'^([\w.]+)(?:\[\w+\])?>=[\d.]+,<(\d+)$', REQUIREMENTS, re.MULTILINE))
    for library in private_names.NAMES:
        installed = int(importlib.metadata.version(library).partition('.')[0])
        assert int(bounds[library]) == installed + 1


def test_one_that_has_moved_is_named_with_its_library_and_version(monkeypatch) -> None:
    moved = {'psycopg': {'psycopg:Pipeline': ('_sync_gen', '_went_elsewhere'), 'psycopg:No': ()}}
    monkeypatch.setattr(private_names, 'NAMES', moved)
    with pytest.raises(exceptions.Misconfigured) as error:
        private_names.check.__wrapped__('psycopg')
    assert str(error.value) == (
        f'psycopg: {importlib.metadata.version("psycopg")} is installed, which has no '
        'psycopg:Pipeline._went_elsewhere, psycopg:No. Install a release that requirements.txt '
        'of Gantt names'
    )
