# SPDX-License-Identifier: Apache-2.0
"""Private names of libraries are checked before the first use, all that are used."""

import ast
import importlib
import importlib.metadata
import inspect
import pathlib
import re
from collections.abc import Iterator
from typing import Protocol

import pytest

import gantt
from gantt import exceptions, private_names
from gantt.db.engine import packets, pipelines

ROOT = pathlib.Path(gantt.__file__).parent
REQUIREMENTS = (ROOT.parent / 'requirements.txt').read_text()
#: Names of the standard library, and of libraries that document them.
DOCUMENTED = {
    *('_asdict', '_exit', '_replace', '_option_string_actions', '_mapping'),
    *('_load_hooks', '_upgrade_checks', '_abc_impl', '_compiler_dispatch'),
}
#: Absence of what it uses is an error of an import.
ELSEWHERE = ('http/policy.py',)


def _sources() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob('*.py')):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def _own_names() -> set[str]:
    """Names that some module here defines or sets, of which nobody else's need be known."""
    names = set()
    for _, tree in _sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def _known() -> set[str]:
    collected = set()
    for classes in private_names.NAMES.values():
        for path, names in classes.items():
            collected |= {path.partition(':')[2], *names}
    return collected


def test_the_libraries_that_are_installed_have_them() -> None:
    for library in private_names.NAMES:
        private_names.check(library)


def test_all_that_are_used_are_looked_for() -> None:
    own, known_names = _own_names(), _known() | DOCUMENTED
    missing = {
        f'{path}: {node.attr}'
        for path, tree in _sources()
        if not path.startswith(ELSEWHERE)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.match(r'_[a-z]', node.attr)
        and node.attr not in own | known_names
    }
    assert missing == set()


@pytest.mark.parametrize('module', [packets, pipelines], ids=lambda module: module.__name__)
def test_all_that_are_replaced_are_looked_for(module) -> None:
    """A method that a library does not call any more would be replaced in vain."""
    known_names = _known()
    replaced = {
        name
        for kind in vars(module).values()
        if inspect.isclass(kind)
        and kind.__module__ == module.__name__
        and Protocol not in kind.__bases__
        for base in kind.__mro__[1:-1]
        if not base.__module__.startswith('gantt')
        for name in vars(kind)
        if re.match(r'_[a-z]', name) and name in vars(base)
    }
    assert replaced and replaced - DOCUMENTED <= known_names


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
