# SPDX-License-Identifier: Apache-2.0
"""What is installed is what is in the tree, also from a copy without git."""

import configparser
import os
import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]
NEEDED = (
    'setup.cfg',
    'setup.py',
    'pyproject.toml',
    'README.rst',
    'LICENSE',
    'MANIFEST.in',
    'requirements.txt',
)


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    """Built as "pip install ." does it, in a directory without git."""
    source = tmp_path_factory.mktemp('source')
    for name in NEEDED:
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / 'gantt', source / 'gantt', ignore=shutil.ignore_patterns('__pycache__', '*.pyc')
    )
    into = tmp_path_factory.mktemp('wheel')
    process = subprocess.run(
        [
            sys.executable,
            '-m',
            'pip',
            '--disable-pip-version-check',
            '--no-input',
            'wheel',
            '--no-build-isolation',
            '--no-deps',
            '--wheel-dir',
            into,
            source,
        ],
        env={**os.environ, 'PBR_VERSION': '1.2.3', 'GIT_CEILING_DIRECTORIES': str(source.parent)},
        cwd=source,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    [built] = into.glob('*.whl')
    return source, built


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    source, built = wheel
    assert built.name == 'gantt-1.2.3-py3-none-any.whl'
    inside = {name for name in zipfile.ZipFile(built).namelist() if name.startswith('gantt/')}
    tree = {
        path.relative_to(source).as_posix()
        for path in source.joinpath('gantt').rglob('*')
        if path.is_file()
    }
    assert inside == tree


def test_nothing_but_the_package_is_in_the_wheel(wheel):
    _, built = wheel
    tops = {name.split('/')[0] for name in zipfile.ZipFile(built).namelist()}
    assert tops == {'gantt', 'gantt-1.2.3.dist-info'}


def test_the_wheel_declares_the_entry_points_of_setup_cfg(wheel):
    from tests.house.test_rules import _declared_entry_points

    _, built = wheel
    text = zipfile.ZipFile(built).read('gantt-1.2.3.dist-info/entry_points.txt').decode()
    for group, name, module, attribute in _declared_entry_points():
        assert f'[{group}]' in text
        assert f'{name} = {module}{attribute and f":{attribute}"}\n' in text + '\n'


@pytest.mark.finding('N17', 'one tree has one version')
def test_one_tree_has_one_version(tmp_path):
    parser = configparser.ConfigParser(delimiters=('=',), interpolation=None)
    parser.read(ROOT / 'setup.cfg')
    stated = parser['metadata']['version']
    for name in ('Makefile', 'setup.cfg'):
        shutil.copy(ROOT / name, tmp_path)
    environment = {k: v for k, v in os.environ.items() if k not in ('PBR_VERSION', 'MAKEFLAGS')}
    environment['GIT_CEILING_DIRECTORIES'] = str(tmp_path.parent)

    def run(folder, *words):
        process = subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
        )
        assert process.returncode == 0, process.stderr
        return process.stdout.strip().rpartition('\n')[2]

    show = ('make', '--no-print-directory', '--eval', 'show: ; @echo "$$PBR_VERSION"', 'show')
    assert run(tmp_path, *show) == f'{stated}.dev0'
    if not (ROOT / '.git').exists():
        pytest.skip('NO GIT: this tree has no commits to count')
    # Nothing is said for pbr: it counts, as it does for "pip install .".
    assert run(ROOT, *show) == ''
    assert run(ROOT, sys.executable, 'setup.py', '--version').startswith(stated)
