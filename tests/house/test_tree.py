# SPDX-License-Identifier: Apache-2.0
"""The tree is the diagram: each folder says what it is, and no two modules import each other."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = sorted(path.parent for path in (ROOT / 'gantt').rglob('__init__.py'))
#: Modules of a folder, at most; one of plug-ins, options or handlers has one for each.
FILES_MAX = 20
ONE_FOR_EACH = {
    'gantt/core/filters',
    'gantt/core/weighers',
    'gantt/conf',
    'gantt/cli',
    'gantt/cmd',
    'gantt/http',
    'gantt/http/handlers',
    'gantt/db/schema/alembic/versions',
}


def modules(package='gantt'):
    paths = {}
    for path in (ROOT / package).rglob('*.py'):
        parts = path.relative_to(ROOT).with_suffix('').parts
        if 'versions' not in parts:  # of the schema, which import nothing of ours
            paths['.'.join(parts[:-1] if parts[-1] == '__init__' else parts)] = path
    return paths


def imports(paths, name):
    """What a module imports, for types and inside of functions as well."""
    for node in ast.walk(ast.parse(paths[name].read_text())):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f'{name} imports by a relative path'
            named = [
                full if (full := f'{node.module}.{alias.name}') in paths else node.module
                for alias in node.names
            ]
        else:
            continue
        yield from (module for module in named if module in paths and module != name)


def circles(graph):
    """Groups of modules that reach each other: what is left when leaves and roots are taken."""
    remaining = {name: set(of) for name, of in graph.items()}
    while True:
        needed = {name for of in remaining.values() for name in of}
        gone = {name for name, of in remaining.items() if not of or name not in needed}
        if not gone:
            return sorted(remaining)
        remaining = {name: of - gone for name, of in remaining.items() if name not in gone}


def test_circles_are_found():
    assert circles({'a': ['b'], 'b': ['c'], 'c': ['b'], 'd': []}) == ['b', 'c']
    assert circles({'a': ['b'], 'b': ['c'], 'c': []}) == []


def test_no_module_imports_itself_by_way_of_others():
    paths = modules()
    assert len(paths) > 400
    assert circles({name: set(imports(paths, name)) for name in paths}) == []


@pytest.mark.parametrize('folder', PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_folder_says_what_lives_there(folder):
    docstring = ast.get_docstring(ast.parse((folder / '__init__.py').read_text()))
    assert docstring, 'a first line that says what lives here'
    assert len(docstring.splitlines()[0]) > 20
    count = len([path for path in folder.glob('*.py') if path.name != '__init__.py'])
    if str(folder.relative_to(ROOT)) not in ONE_FOR_EACH:
        assert count <= FILES_MAX


def test_the_page_of_the_tree_shows_folders_contracts_and_both_flows():
    page = (ROOT / 'doc/source/contributor/tree.rst').read_text()
    shown = {line.removeprefix('.. ') for line in page.splitlines() if line.startswith('.. ')}
    flows = {'gantt-flow:: request', 'gantt-flow:: report'}
    assert shown == {'gantt-tree::', 'gantt-contracts::', *flows}


#: Classes of ours that a class may have above it in one line.
ANCESTORS_MOST = 3


def bases_by_class(paths):
    """Each class of these modules, by its full name, and those that it names as its bases."""
    bases = {}
    for module, path in paths.items():
        tree = ast.parse(path.read_text())
        full = {
            statement.name: f'{module}.{statement.name}'
            for statement in tree.body
            if isinstance(statement, ast.ClassDef)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                full |= {
                    alias.asname or alias.name: f'{node.module}.{alias.name}'
                    for alias in node.names
                }
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                named = [ast.unparse(base).partition('[')[0] for base in node.bases]
                bases[f'{module}.{node.name}'] = [
                    '.'.join((full.get(first, first), *rest))
                    for first, *rest in (name.split('.') for name in named)
                ]
    return bases


def ancestors(bases, name):
    """How many classes of ours a class has above it, in the longest line."""
    return max((1 + ancestors(bases, base) for base in bases[name] if base in bases), default=0)


def test_ancestors_are_counted():
    bases = {'m.A': [], 'm.B': ['m.A', 'typing.Any'], 'm.C': ['m.A'], 'm.D': ['m.C', 'm.B']}
    assert [ancestors(bases, name) for name in bases] == [0, 1, 1, 2]


def test_no_class_inherits_by_more_than_three_steps():
    paths = {**modules(), **modules('devel')}
    bases = bases_by_class(paths)
    assert len(bases) > 1000
    assert ancestors(bases, 'gantt.core.filters.host_limits.RamFilter') == 3
    assert [name for name in bases if ancestors(bases, name) > ANCESTORS_MOST] == []
