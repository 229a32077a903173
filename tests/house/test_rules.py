# SPDX-License-Identifier: Apache-2.0
"""The rules of the house that no linter knows, checked over the whole tree."""

import ast
import builtins
import collections
import functools
import importlib
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

from gantt import exceptions

ROOT = pathlib.Path(__file__).parents[2]
#: A file is cut where a concept ends; these only find what has become several.
LINES_MAX = {'gantt': 1200, 'devel': 1200, 'bench': 1200, 'tests': 1200}
VAGUE = {'utils', 'util', 'helpers', 'helper', 'common', 'misc'}
MOCKS = {'mock', 'unittest.mock', 'pytest_mock', 'mox', 'mox3'}
#: Files that name other people's packages and files because that is their subject.
SKIPPED_DIRS = {'.git', '.venv', '.tox', 'build', 'dist', '__pycache__', 'node_modules', 'var'}


def _tracked():
    """Files of the tree: what git knows and will know, or all files where there is no git."""
    try:
        listed = (
            subprocess.run(
                ['git', 'ls-files', '-z', '--cached', '--others', '--exclude-standard'],
                cwd=ROOT,
                check=True,
                capture_output=True,
                timeout=60,
            )
            .stdout.decode()
            .split('\0')
        )
        return [ROOT / name for name in listed if name and (ROOT / name).is_file()]
    except (OSError, subprocess.CalledProcessError):
        return [
            path
            for path in ROOT.rglob('*')
            if path.is_file() and not SKIPPED_DIRS & set(path.relative_to(ROOT).parts)
        ]


FILES = _tracked()
PYTHON = [path for path in FILES if path.suffix == '.py']
OURS = [path for path in PYTHON if {*path.relative_to(ROOT).parts} & {'gantt', 'devel'}]


@pytest.fixture(scope='module')
def trees():
    """Return the parsed modules of the package and of the programs over it."""
    return {path: ast.parse(path.read_text()) for path in OURS}


def _name(path):
    return str(path.relative_to(ROOT))


def _imports(tree):
    """Every dotted name that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            for alias in node.names:
                yield node.lineno, f'{node.module}.{alias.name}'


def test_there_is_a_tree_to_look_at():
    assert len(OURS) > 20
    assert ROOT / 'gantt' / 'exceptions.py' in OURS


def test_the_import_contracts_hold():
    command = pathlib.Path(sys.executable).with_name('lint-imports')
    process = subprocess.run(
        [command, '--no-cache'], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert process.returncode == 0, process.stdout + process.stderr


def test_modules_have_names_that_say_something():
    vague = [_name(p) for p in PYTHON if p.stem in VAGUE or VAGUE & set(p.parts[len(ROOT.parts) :])]
    assert not vague


def test_no_module_is_longer_than_a_reader_can_hold():
    long = []
    for path in PYTHON:
        most = LINES_MAX.get(path.relative_to(ROOT).parts[0])
        lines = len(path.read_text().splitlines())
        if most and lines > most:
            long.append(f'{_name(path)}: {lines} lines, at most {most}')
    assert not long, '\n'.join(long)


def test_doubles_are_implementations_not_mocks():
    uses = [
        f'{_name(path)}:{line} {name}'
        for path in PYTHON
        if re.search('mock|mox', text := path.read_text())  # to read all of them takes seconds
        for line, name in _imports(ast.parse(text))
        if name in MOCKS or name.startswith(('unittest.mock', 'mock.'))
    ]
    assert not uses


def test_only_entry_points_touch_the_global_configuration(trees):
    allowed = [ROOT / name for name in ('gantt/cmd', 'gantt/wsgi', 'devel/examples')]
    uses = []
    for path, tree in trees.items():
        if any(path.is_relative_to(folder) for folder in allowed):
            continue
        for node in ast.walk(tree):
            used = isinstance(node, ast.Attribute) and node.attr == 'CONF'
            imported = isinstance(node, ast.ImportFrom) and any(
                alias.name == 'CONF' for alias in node.names
            )
            if used or imported:
                uses.append(f'{_name(path)}:{node.lineno}')
    assert not uses


def test_lines_of_the_log_are_a_sentence_and_pairs(trees):
    shape = re.compile(r'(?:[A-Z]|gantt-)[^%]*[^%.](?:: (?:\w+=(?:http://)?%[^=]+)+)?')
    found = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not ast.unparse(node.func).startswith('LOG.'):
                continue
            line = node.args[ast.unparse(node.func) == 'LOG.log']
            if isinstance(line, ast.Constant) and not shape.fullmatch(line.value):
                found.append(f'{_name(path)}:{node.lineno} {line.value}')
    assert not found, '\n'.join(found)


def test_every_source_file_names_its_license_first():
    missing = []
    for path in PYTHON:
        text = path.read_text()
        first = text.splitlines()[0] if text else ''
        if text and first != '# SPDX-License-Identifier: Apache-2.0':
            missing.append(_name(path))
    assert not missing


def test_every_module_says_what_it_is(trees):
    silent = [
        _name(path)
        for path, tree in trees.items()
        if (text := path.read_text()).strip()
        and not ast.get_docstring(tree)
        and len(text.splitlines()) > 1
    ]
    assert not silent


#: A dotted name of a module of the package, or of something in one.
DOTTED = re.compile(r'(?:``|:\w+:`~?)(gantt(?:\.\w+)+)`')


def _is_there(dotted):
    """Return whether the longest importable part of a name has the rest as attributes."""
    parts = dotted.split('.')
    for length in range(len(parts), 0, -1):
        try:
            owner = importlib.import_module('.'.join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(owner, part):
                return False
            owner = getattr(owner, part)
        return True
    return False


def test_dotted_names_in_texts_are_there():
    """Entry points, error codes and files look alike: their second part is no module of ours."""
    ours = {path.stem for path in (ROOT / 'gantt').iterdir()}
    places = collections.defaultdict(set)
    for path in FILES:
        if path.suffix in ('.py', '.rst') and 'releasenotes' not in path.parts:
            for dotted in DOTTED.findall(path.read_text()):
                if dotted.split('.')[1] in ours and not dotted.endswith('.sample'):
                    places[dotted].add(_name(path))
    assert len(places) > 20
    assert not {dotted: names for dotted, names in places.items() if not _is_there(dotted)}


# -- docstrings ----------------------------------------------------------------------


def _raises_fields(tree):
    """Yield each name that a docstring of a module has after ``:raises``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for names in re.findall(r':raises([^:]*):', ast.get_docstring(node) or ''):
                yield from (name.strip(' `~') for name in names.split(','))


def _own_exceptions(trees):
    """Names of the exception classes that the tree defines, each by any of its modules."""
    bases = {
        node.name: {ast.unparse(base).partition('[')[0].split('.')[-1] for base in node.bases}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    names = {name for name in vars(builtins) if _is_exception(getattr(builtins, name))}
    count = 0
    while count < len(names):
        count = len(names)
        names |= {name for name, above in bases.items() if above & names}
    return names


def _is_exception(value):
    return isinstance(value, type) and issubclass(value, BaseException)


def _imported(tree, name):
    """Return what a dotted name of a module is by its imports, else None."""
    alias, *rest = name.split('.')
    for node in ast.walk(tree):
        for named in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            if (named.asname or named.name) == alias:
                path = [named.name] if isinstance(node, ast.Import) else [node.module, named.name]
                value = pkgutil.resolve_name('.'.join(path))
                return functools.reduce(
                    lambda v, attribute: getattr(v, attribute, None), rest, value
                )
    return None


def _unknown_raises(trees):
    """Return (tree, name) of fields that name no exception that there is."""
    known = _own_exceptions(trees)
    return [
        (tree, name)
        for tree in trees
        for name in _raises_fields(tree)
        if name not in known and not _is_exception(_imported(tree, name))
    ]


def test_what_a_docstring_says_is_raised_is_an_exception(trees):
    names = {id(tree): _name(path) for path, tree in trees.items()}
    package = [tree for path, tree in trees.items() if path.is_relative_to(ROOT / 'gantt')]
    assert sum(1 for tree in package for _ in _raises_fields(tree)) > 500
    unknown = _unknown_raises(package)
    assert not unknown, '\n'.join(f'{names[id(tree)]}: {name}' for tree, name in unknown)


@pytest.mark.parametrize(
    ('name', 'is_known'),
    [
        ('Own', True),
        ('ValueError', True),
        ('cfg.NoSuchOptError, Own', True),
        ('Locked', False),
        ('NoSuchOptError', False),
        ('cfg.Locked', False),
        ('cfg.ConfigOpts', False),
        ('Holder', False),
        ('', False),
    ],
)
def test_an_exception_that_there_is_not_is_found(name, is_known):
    text = f"""
from oslo_config import cfg
class Holder: ...
class Base(Exception): ...
class Own(Base): ...
def f():
    '''Return nothing.

    :raises {name}: always
    '''
"""
    assert bool(_unknown_raises([ast.parse(text)])) is not is_known


# -- errors -----------------------------------------------------------------------


def _error_classes(base=exceptions.GanttError):
    yield base
    for child in base.__subclasses__():
        if child.__module__ == exceptions.__name__:
            yield from _error_classes(child)


def test_error_codes_are_unique_and_well_formed():
    codes = [cls.code for cls in _error_classes()]
    assert sorted(codes) == sorted(set(codes))
    assert all(re.fullmatch(r'gantt(\.[a-z_]+)+', code) for code in codes)


# -- entry points -------------------------------------------------------------------


def _declared_entry_points():
    """(group, name, module, attribute) from setup.cfg."""
    import configparser

    parser = configparser.ConfigParser(delimiters=('=',), interpolation=None)
    parser.optionxform = str
    parser.read(ROOT / 'setup.cfg')
    for group, lines in parser['options.entry_points'].items():
        for line in lines.strip().splitlines():
            name, _, target = line.partition('=')
            module, _, attribute = target.strip().partition(':')
            yield group, name.strip(), module, attribute


@pytest.mark.parametrize(
    ('group', 'name', 'module', 'attribute'),
    [
        pytest.param(*entry, id=f'{entry[0]}-{entry[1]}')
        for entry in _declared_entry_points()
        if entry[0] != 'console_scripts'
    ],
)
def test_an_entry_point_leads_somewhere(group, name, module, attribute):
    # A plugin of OpenStackClient is a module, of which it calls this function.
    assert callable(getattr(importlib.import_module(module), attribute or 'make_client'))


def test_every_command_can_be_imported():
    """In a process of its own: importing one chooses a concurrency backend."""
    targets = [entry[2:] for entry in _declared_entry_points() if entry[0] == 'console_scripts']
    assert len(targets) > 3
    code = (
        'import importlib, sys\n'
        f'for module, name in {targets!r}:\n'
        '    assert callable(getattr(importlib.import_module(module), name)), module\n'
    )
    process = subprocess.run(
        [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert process.returncode == 0, process.stderr


# -- what must not be in a file that others get -----------------------------------------

_TEXT = {
    '.py',
    '.rst',
    '.txt',
    '.cfg',
    '.toml',
    '.ini',
    '.conf',
    '.sample',
    '.yaml',
    '.yml',
    '.json',
    '.svg',
    '.html',
    '.md',
    '.sh',
    '',
    '.mako',
}
_FORBIDDEN = {
    "a path of somebody's machine": re.compile(r'(?<![\w.])/(?:home|Users|root|work)/[\w.-]+'),
    'a package registry': re.compile(
        r'https?://(?:[\w.-]*\.)?(?:pypi\.org|pythonhosted\.org|artifactory|nexus)[\w./-]*'
        r'|--(?:extra-)?index-url|--find-links|\bfile:///'
    ),
}


def test_no_file_names_a_machine_or_a_registry():
    uses = []
    for path in FILES:
        if path.suffix not in _TEXT or path == pathlib.Path(__file__):
            continue
        if path.is_relative_to(ROOT / 'tests' / 'data'):
            continue  # captured from elsewhere, kept as it was
        for number, line in enumerate(path.read_text(errors='replace').splitlines(), 1):
            for rule, pattern in _FORBIDDEN.items():
                if pattern.search(line):
                    uses.append(f'{_name(path)}:{number}: {rule}: {line.strip()[:80]}')
    assert not uses, '\n'.join(uses)


def test_constraints_are_exact_and_cover_what_is_required():
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    def lines(name):
        return [
            line
            for raw in (ROOT / name).read_text().splitlines()
            if (line := raw.partition('#')[0].strip())
        ]

    pinned = {}
    for line in lines('constraints.txt'):
        requirement = Requirement(line)
        assert re.fullmatch(r'==[\w.!+]+', str(requirement.specifier)), line
        assert not requirement.url
        pinned[canonicalize_name(requirement.name)] = str(requirement.specifier)[2:]
    for name in ('requirements.txt', 'test-requirements.txt'):
        for line in lines(name):
            requirement = Requirement(line)
            version = pinned.get(canonicalize_name(requirement.name))
            assert version, f'{name}: {requirement.name} is not in constraints.txt'
            assert requirement.specifier.contains(version), f'{line} against {version}'


def test_the_lock_has_the_versions_of_the_constraints_and_a_hash_of_each():
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    text = (ROOT / 'requirements.lock').read_text().replace('\\\n', ' ')
    locked = {}
    for line in text.splitlines():
        if line.startswith('#'):
            continue
        pin, *hashes = line.split(' --hash=')
        requirement = Requirement(pin)
        assert hashes and all(
            re.fullmatch(r'sha256:[0-9a-f]{64} *', digest) for digest in hashes
        ), pin
        locked[canonicalize_name(requirement.name)] = requirement
    pinned = [
        Requirement(line)
        for line in (ROOT / 'constraints.txt').read_text().splitlines()
        if not line.startswith('#')
    ]
    versions = {
        canonicalize_name(requirement.name): requirement.specifier for requirement in pinned
    }
    for name, requirement in locked.items():
        # What only another Python needs is not in the set that the tests are green on.
        if requirement.marker is None or requirement.marker.evaluate():
            assert requirement.specifier == versions.get(name), 'run "make hashes"'
    needed = (ROOT / 'requirements.txt').read_text().splitlines()
    for line in (*needed, 'setuptools'):
        if not line.startswith('#'):
            assert canonicalize_name(Requirement(line).name) in locked, 'run "make hashes"'
