# SPDX-License-Identifier: Apache-2.0
"""The options: documented, generated, and what the sample says is what the code has."""

import ast
import importlib.metadata
import pathlib
import re
import socket
import subprocess
import sys

import pytest
from oslo_config import cfg

from gantt import conf as options
from gantt import plugin_loader
from gantt.conf import filters as section
from gantt.conf import list_opts, unknown

ROOT = pathlib.Path(__file__).parents[2]
SAMPLE = ROOT / 'etc' / 'gantt' / 'gantt.conf.sample'
ALL = [
    pytest.param(group, option, id=f'{group}-{option.dest}')
    for group, named in list_opts()
    for option in named
]


def test_the_sample_is_what_the_generator_writes(tmp_path):
    command = pathlib.Path(sys.executable).with_name('oslo-config-generator')
    written = tmp_path / 'gantt.conf.sample'
    process = subprocess.run(
        [command, '--config-file', 'etc/gantt/config-generator.conf', '--output-file', written],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert process.returncode == 0, process.stderr
    assert written.read_text() == SAMPLE.read_text(), 'run "make genconfig" and commit the result'


def test_the_sample_of_the_policy_is_what_the_generator_writes(tmp_path):
    command = pathlib.Path(sys.executable).with_name('oslopolicy-sample-generator')
    written = tmp_path / 'policy.yaml.sample'
    process = subprocess.run(
        [command, '--config-file', 'etc/gantt/policy-generator.conf', '--output-file', written],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert process.returncode == 0, process.stderr
    sample = SAMPLE.with_name('policy.yaml.sample').read_text()
    assert written.read_text() == sample, 'run "make genpolicy" and commit the result'


@pytest.mark.parametrize(('group', 'option'), ALL)
def test_an_option_says_what_it_does(group, option):
    assert len(option.help or '') > 15, f'[{group}] {option.dest}: {option.help!r}'


@pytest.mark.parametrize(('group', 'option'), ALL)
def test_a_number_has_a_lower_bound(group, option):
    """A typing error is told at start, not found at night.  Multipliers may be anything."""
    if option.dest.endswith('multiplier'):
        return
    if isinstance(option, cfg.IntOpt | cfg.FloatOpt):
        assert option.type.min is not None, f'[{group}] {option.dest}'


def test_all_options_register_on_a_configuration_of_one_s_own():
    conf = cfg.ConfigOpts()
    options.register_opts(conf)
    conf([], project='gantt', default_config_files=[])
    for group in section.GROUPS:
        for name in plugin_loader.installed(group):
            section.register_plugin(conf, group, plugin_loader.find(group, name))
    for group, options_of_group in list_opts():
        for option in options_of_group:
            holder = conf if group in (None, 'DEFAULT') else conf[group]
            holder[option.dest]


def test_no_default_depends_on_the_machine_that_makes_the_sample():
    name = re.escape(socket.gethostname())
    assert not re.search(rf'^#?\w+ = .*\b{name}\b', SAMPLE.read_text(), re.MULTILINE)


def test_a_hint_leads_to_the_same_group_or_one_of_ours(tmp_path):
    path = tmp_path / 'gantt.conf'
    path.write_text('[rpc]\ntopic = x\n[oslo_messaging_notifications]\ntopics = y\n')
    conf = cfg.ConfigOpts()
    options.register_opts(conf)
    conf(['--config-file', str(path)], project='gantt')
    (problem,) = unknown.unread_options(conf)
    assert str(problem).endswith('did you mean nova_topic?')


#: Requirement -> why nothing in gantt/ imports it.
NOT_IMPORTED = {'pbr': 'builds the package'}
#: Requirement -> its module, where that is not its name in lower case with underscores.
MODULES = {'openstacksdk': 'openstack', 'pyyaml': 'yaml'}


def test_every_requirement_is_imported_or_has_a_reason():
    lines = (ROOT / 'requirements.txt').read_text().splitlines()
    names = [re.split(r'[>=<\[]', line)[0].lower() for line in lines if line[:1] not in ('', '#')]
    code = '\n'.join(path.read_text() for path in (ROOT / 'gantt').rglob('*.py'))
    modules = {name: MODULES.get(name, re.sub('[.-]', '_', name)) for name in names}
    unused = {
        name
        for name, module in modules.items()
        if not re.search(rf'^\s*(import|from) {module}\b', code, re.MULTILINE)
    }
    assert unused == set(NOT_IMPORTED)


def test_every_library_that_is_imported_is_required():
    """One that comes with another library may leave with it, or come in a release of any number."""
    setup = (ROOT / 'setup.cfg').read_text()
    lines = (ROOT / 'requirements.txt').read_text() + setup.partition('[extras]')[2]
    required = {
        re.sub('[-_.]+', '-', name).lower()
        for name in re.findall(r'^ *([A-Za-z][\w.-]*)(?:\[\w+\])?>=', lines, re.MULTILINE)
    }
    trees = [ast.parse(path.read_text()) for path in (ROOT / 'gantt').rglob('*.py')]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    modules = {name.partition('.')[0] for name in names} - {*sys.stdlib_module_names, 'gantt'}
    of_modules = importlib.metadata.packages_distributions()
    missing = {
        module
        for module in modules
        if not required & {re.sub('[-_.]+', '-', n).lower() for n in of_modules.get(module, ())}
    }
    assert missing == set()
