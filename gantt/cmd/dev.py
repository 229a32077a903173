# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage dev``: commands for authors of plugins."""

import keyword
import pathlib
import re
import sys
from typing import Any

from gantt import exceptions, plugin_loader
from gantt.core.plugin import Plugin
from gantt.insights.explain.wording import counted_noun
from gantt.testing import conformance

_CLASS_NAME = re.compile(r'[A-Z][A-Za-z0-9]{2,63}\Z')
_WORD_BOUNDARY = re.compile(r'(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])')
_PACKAGE_NAME = re.compile(r'[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)*\Z')
_ENTRY_POINTS_HEADING = '[options.entry_points]'


def check_plugin(conf: Any) -> int:
    """Run the conformance kit on a filter or weigher, installed or as module:Class."""
    name = conf.command.plugin
    if '' not in sys.path:
        sys.path.insert(0, '')  # what lies in the current folder, before it is installed
    plugin = _load_plugin(name)
    problems = conformance.examine(plugin, conf.command.cases, conf.command.seed)
    for finding in problems:
        print(finding)
    if problems:
        print(f'{plugin.name} does not conform: {counted_noun(len(problems), "kind")} of findings')
        return 1
    print(f'{conformance.describe(plugin)}: {conf.command.cases} cases, nothing found')
    return 0


def _load_plugin(name: str) -> type[Plugin]:
    if ':' not in name:
        group = next(
            (g for g in plugin_loader.KINDS if name in plugin_loader.installed(g)),
            plugin_loader.FILTERS,
        )
        return plugin_loader.find(group, name)
    try:
        return plugin_loader.find(plugin_loader.FILTERS, name)
    except exceptions.PluginError as e:
        if 'expected a subclass' not in e.message:
            raise
        return plugin_loader.find(plugin_loader.WEIGHERS, name)


def new_filter(conf: Any) -> int:
    """Write a filter: its file, its entry point, and its test, which passes at once."""
    given_name, folder = conf.command.name_of_filter, pathlib.Path(conf.command.folder)
    name = given_name if given_name.endswith('Filter') else f'{given_name}Filter'
    if not _CLASS_NAME.match(name) or keyword.iskeyword(name):
        raise exceptions.Misconfigured(
            option='NAME',
            problem=f'{given_name!r} is no name of a class',
            fix='Write it as in GpuModel: letters and digits, the first one a capital',
        )
    stem = _WORD_BOUNDARY.sub('_', name.removesuffix('Filter')).lower()
    setup = folder / 'setup.cfg'
    package = conf.command.package or _package_of(setup)
    if not _PACKAGE_NAME.match(package):
        raise exceptions.Misconfigured(
            option='--package',
            problem=f'{package!r} is no name of a package',
            fix='Write it as in acme_gantt or acme.filters',
        )
    home = folder.joinpath(*package.split('.'))
    tests = folder / 'tests' / ('core' if package == 'gantt.core.filters' else '')
    test = tests / f'test_{stem}_filter.py'
    new = {
        home / f'{stem}.py': _FILTER_TEMPLATE.format(name=name, stem=stem),
        test: _TEST_TEMPLATE.format(name=name, package=package, stem=stem),
    }
    existing = [str(path) for path in new if path.exists()]
    if existing:
        raise exceptions.Misconfigured(
            option='NAME', problem=f'{" and ".join(existing)} exists', fix='Choose another name'
        )
    entry = f'    {name} = {package}.{stem}:{name}'
    new_setup = _SETUP_TEMPLATE.format(package=package, top=package.partition('.')[0])
    text = _with_entry(setup.read_text() if setup.exists() else new_setup, entry)
    init = home / '__init__.py'
    if not init.exists():
        new[init] = _INIT_TEMPLATE.format(package=package)
    project = folder / 'pyproject.toml'
    if not project.exists() and not (folder / 'setup.py').exists():
        new[project] = _PYPROJECT_TEMPLATE
    spdx = '# SPDX-License-Identifier: Apache-2.0\n' if package.startswith('gantt.') else ''
    for path, body in new.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(spdx + body if path.suffix == '.py' else body)
    setup.write_text(text)
    for path in [*new, setup]:
        print(f'wrote {path}')
    print('next, in the environment that Gantt is installed in:')
    print(f'  pip install -e {folder} pytest')
    print(f'  python -m pytest {test}')
    print(f'  gantt-manage dev check-plugin {name}')
    print(f'and where it is to run: add {name} to [filters] extra_filters')
    return 0


def _package_of(setup: pathlib.Path) -> str:
    """Return the package of a setup.cfg; without one, a default."""
    match = re.search(r'^name\s*=\s*(\S+)', setup.read_text(), re.M) if setup.exists() else None
    name = match[1].lower().replace('-', '_') if match else 'my_gantt_plugins'
    return 'gantt.core.filters' if name == 'gantt' else name


def _with_entry(text: str, entry: str) -> str:
    """Return the text with the entry among the others of ``gantt.filters``, as their last one."""
    if entry in text:
        return text
    if _ENTRY_POINTS_HEADING not in text:
        text = f'{text.rstrip()}\n\n{_ENTRY_POINTS_HEADING}\n'
    lines = text.splitlines()
    start = lines.index(_ENTRY_POINTS_HEADING)
    end = next((i for i in range(start + 1, len(lines)) if lines[i].startswith('[')), len(lines))
    at = next((i for i in range(start, end) if re.match(r'gantt\.filters\s*=', lines[i])), None)
    if at is None:
        lines[start + 1 : start + 1] = ['gantt.filters =', entry]
    else:
        last = at + 1
        while last < end and lines[last].startswith((' ', '\t')):
            last += 1
        lines.insert(last, entry)
    return '\n'.join(lines) + '\n'


_INIT_TEMPLATE = '"""Filters and weighers of {package}."""\n'

_SETUP_TEMPLATE = """[metadata]
name = {package}
version = 0.1

[options]
packages = find_namespace:

[options.packages.find]
include =
    {top}
    {top}.*
"""

_PYPROJECT_TEMPLATE = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
"""

_FILTER_TEMPLATE = '''"""{name}: at most so many claims on a host, where the request asks for it."""

from gantt.plugin_api import Filter, Option


class {name}(Filter):
    """Keeps hosts below a number of claims, where the request has the hint ``{stem}``."""

    reason = 'has {{limit}} claims or more'
    columns = ('instances',)
    local = True
    options = (Option('{stem}_limit', int, 10, 'Claims on a host, at most', min=1),)

    @property
    def limit(self) -> int:
        return int(getattr(self, '{stem}_limit'))

    def concerns(self, spec):
        # The values of a hint are lists of texts: {{'{stem}': ['yes']}}.
        return '{stem}' in spec.hints

    def mask(self, hosts, spec):
        if not self.concerns(spec):
            return None
        return hosts.instances < self.limit

    def passes(self, hosts, spec, row):
        return not self.concerns(spec) or bool(hosts.instances[row] < self.limit)

    def detail(self, hosts, spec, rows):
        return {{'limit': self.limit}}
'''

_TEST_TEMPLATE = '''"""{name}: whom it lets pass, and that it conforms."""

import random

from gantt.plugin_api import RequestSpec
from gantt.testing import clouds, conformance
from {package}.{stem} import {name}


def test_it_conforms():
    conformance.check({name})


def test_it_keeps_hosts_below_the_limit():
    table = clouds.a_table(*clouds.a_cloud(random.Random(3)))
    rule = {name}({{'{stem}_limit': 1}})
    assert rule.mask(table, RequestSpec(resources={{'VCPU': 1}})) is None
    spec = RequestSpec(resources={{'VCPU': 1}}, hints={{'{stem}': ['yes']}})
    assert rule.mask(table, spec).tolist() == [n < 1 for n in table.instances.tolist()]
    assert rule.reason_for(spec, rule.detail(table, spec, [0])) == 'has 1 claims or more'
'''
