# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage dev``: a filter written anew passes its test at once; plugins are examined."""

import configparser
import os
import pathlib
import subprocess
import sys
import textwrap
from types import SimpleNamespace

import pytest

from gantt import exceptions
from gantt.cmd import dev

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def new_filter(name, folder='.', package=None):
    return dev.new_filter(a_command(name_of_filter=name, folder=folder, package=package))


def check_plugin(plugin, cases=5, seed=0):
    return dev.check_plugin(a_command(plugin=plugin, cases=cases, seed=seed))


def a_command(**words):
    return SimpleNamespace(command=SimpleNamespace(**words))


def run(folder, *words):
    environment = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(folder), str(ROOT)])}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_new_filter_passes_its_test_at_once(folder, capsys):
    assert new_filter('GpuModel') == 0
    assert 'wrote my_gantt_plugins/gpu_model.py' in capsys.readouterr().out
    process = run(folder, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', 'tests')
    assert process.returncode == 0, process.stdout + process.stderr
    assert '2 passed' in process.stdout
    assert new_filter('NUMAThing') == 0
    assert (folder / 'my_gantt_plugins' / 'numa_thing.py').exists()
    parser = configparser.ConfigParser(delimiters=('=',), interpolation=None)
    parser.optionxform = str
    parser.read(folder / 'setup.cfg')
    listed = parser['options.entry_points']['gantt.filters'].split('\n')
    assert [line.partition(' = ')[0] for line in listed if line] == [
        'GpuModelFilter',
        'NUMAThingFilter',
    ]
    checked = run(
        folder,
        '-m',
        'gantt.cmd.manage',
        'dev',
        'check-plugin',
        'my_gantt_plugins.gpu_model:GpuModelFilter',
        '--cases',
        '20',
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert checked.stdout == (
        'filter GpuModelFilter of my_gantt_plugins.gpu_model, over columns: '
        '20 cases, nothing found\n'
    )


INSTALLED = """
    import site, sys
    site.addsitedir(sys.argv[1])
    from gantt import plugin_loader as plugins
    print(plugins.find(plugins.FILTERS, 'GpuModelFilter').__module__)
"""


@pytest.mark.finding('N2', 'what dev new-filter says to do next works')
def test_what_a_new_filter_says_to_do_next_works(folder, capsys):
    assert new_filter('GpuModel', package='acme.filters') == 0
    steps = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert 'pip install -e . pytest' in steps
    assert 'python -m pytest tests/test_gpu_model_filter.py' in steps
    assert 'gantt-manage dev check-plugin GpuModelFilter' in steps
    # Into a place of its own, with the tools that are here.
    process = run(
        folder,
        '-m',
        'pip',
        '--disable-pip-version-check',
        '--no-input',
        'install',
        '--no-index',
        '--no-build-isolation',
        '--no-deps',
        '--prefix',
        folder / 'prefix',
        '-e',
        '.',
    )
    assert process.returncode == 0, process.stdout + process.stderr
    (place,) = (folder / 'prefix').rglob('site-packages')
    process = run(ROOT, '-c', textwrap.dedent(INSTALLED), place)
    assert process.stdout == 'acme.filters.gpu_model\n', process.stderr


@pytest.mark.parametrize('name', ['setup.py', 'pyproject.toml'])
def test_how_a_package_is_built_stays_its_own(folder, name):
    (folder / name).write_text('mine')
    assert new_filter('Gpu') == 0
    there = {path.name for path in folder.glob('*p*.*') if path.suffix in ('.py', '.toml')}
    assert there == {name}
    assert (folder / name).read_text() == 'mine'


def test_the_entry_goes_among_those_that_are_there(folder):
    (folder / 'setup.cfg').write_text(
        '[metadata]\nname = acme-gantt\n\n[options.entry_points]\ngantt.filters =\n'
        '    A = acme:A\ngantt.weighers =\n    B = acme:B\n\n[other]\nx = y\n'
    )
    assert new_filter('Gpu') == 0
    assert (folder / 'setup.cfg').read_text() == (
        '[metadata]\nname = acme-gantt\n\n[options.entry_points]\ngantt.filters =\n'
        '    A = acme:A\n    GpuFilter = acme_gantt.gpu:GpuFilter\n'
        'gantt.weighers =\n    B = acme:B\n\n[other]\nx = y\n'
    )


@pytest.mark.parametrize('name', ['gpu', 'Gpu-Model', 'Gpu.Model', '../Gpu', 'Gpu Model'])
def test_a_name_that_is_none_writes_nothing(folder, name):
    with pytest.raises(exceptions.Misconfigured, match='NAME'):
        new_filter(name)
    assert list(folder.iterdir()) == []


def test_nothing_is_overwritten(folder):
    assert new_filter('Gpu') == 0
    file = folder / 'my_gantt_plugins' / 'gpu.py'
    file.write_text('mine')
    with pytest.raises(exceptions.Misconfigured, match='exists'):
        new_filter('Gpu')
    assert file.read_text() == 'mine'


def test_a_plugin_that_does_not_conform_is_told_why(folder, capsys):
    (folder / 'rowfilter.py').write_text(
        'import numpy as np\n'
        'from gantt.core.filters.base import Filter\n\n\n'
        'class Row(Filter):\n'
        '    def mask(self, hosts, spec):\n'
        '        return np.arange(len(hosts)) % 2 == 0\n'
    )
    assert check_plugin('rowfilter:Row', 10) == 1
    output = capsys.readouterr().out
    assert 'place: says' in output
    assert 'Row does not conform' in output


@pytest.mark.parametrize('name', ['ResourcesFilter', 'RAMWeigher'])
def test_installed_plugins_are_examined_by_name(capsys, name):
    assert check_plugin(name) == 0
    assert name in capsys.readouterr().out


@pytest.mark.parametrize('name', ['NoSuchFilter', 'no.such:Filter', 'os:path'])
def test_what_is_no_plugin_says_so(name):
    with pytest.raises(exceptions.PluginError, match=name):
        check_plugin(name)


@pytest.mark.parametrize('cases', ['0', '-4'], ids=['none', 'less'])
def test_no_cases_are_no_examination(manage, site, cases):
    code, out, error = manage('dev', 'check-plugin', 'ResourcesFilter', f'--cases={cases}')
    assert (code, out) == (64, '')
    assert f"expected a whole number from 1 to 100000, got '{cases}'" in error


def test_the_commands_do_it_or_say_trouble_in_a_line(folder):
    process = run(folder, '-m', 'gantt.cmd.manage', 'dev', 'check-plugin', 'no.such:Filter')
    assert process.returncode == 1
    assert 'no.such:Filter' in process.stderr
    assert 'Traceback' not in process.stderr
    process = run(folder, '-m', 'gantt.cmd.manage', 'dev', 'new-filter', 'GpuModel')
    assert (process.returncode, process.stderr) == (0, '')
    assert 'class GpuModelFilter' in (folder / 'my_gantt_plugins' / 'gpu_model.py').read_text()
    process = run(folder, '-m', 'gantt.cmd.manage', 'dev', 'new-filter', 'gpu')
    assert (process.returncode, process.stdout) == (1, '')
    assert 'Write it as in GpuModel' in process.stderr
