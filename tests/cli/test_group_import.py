# SPDX-License-Identifier: Apache-2.0
"""``gantt group import``: from the plan of another tool to a plan of a group, by commands."""

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.conftest import Gantt, run
from tests.templates.test_terraform import GROUP, INSTANCE, Plan

FLAVORS = [{'Name': 'small', 'ID': '1', 'VCPUs': 1, 'RAM': 1024, 'Disk': 1, 'Properties': {}}]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A plan of two servers apart, and flavors."""
    plan = Plan()
    plan.group('apart')
    plan.server('web', f'{GROUP}.apart', keys=(0, 1))
    (tmp_path / 'plan.json').write_text(json.dumps(plan.document))
    (tmp_path / 'flavors.json').write_text(json.dumps(FLAVORS))
    return str(tmp_path / 'plan.json'), str(tmp_path / 'flavors.json')


def test_what_is_imported_can_be_planned(
    gantt: Gantt, files: tuple[str, str], tmp_path: Path
) -> None:
    plan, flavors = files
    imported = run('group', 'import', 'terraform', plan, '--flavors', flavors)
    assert imported.code == 0, imported.err
    assert imported.out.startswith(f'# web: {INSTANCE}.web[0], {INSTANCE}.web[1]\n')
    as_json = run('group', 'import', 'terraform', plan, '--flavors', flavors, '-f', 'json')
    assert json.loads(as_json.out) == yaml.safe_load(imported.out)
    (tmp_path / 'group.yaml').write_text(imported.out)
    planned = gantt('group', 'plan', str(tmp_path / 'group.yaml'), '--dry-run', '-f', 'json')
    assert planned.code == 0, planned.err
    members = json.loads(planned.out)['plan']['members']
    assert len({member['host'] for member in members}) == 2


def test_what_is_wrong_is_named(files: tuple[str, str]) -> None:
    plan, flavors = files
    unknown = run('group', 'import', 'pulumi', plan, '--flavors', flavors)
    assert unknown.code == 64 and "terraform; got 'pulumi'" in unknown.err
    swapped = run('group', 'import', 'terraform', flavors, '--flavors', flavors)
    assert swapped.code == 64 and 'format_version: expected 1, as "terraform show' in swapped.err
    no_flavors = run('group', 'import', 'terraform', plan, '--flavors', plan)
    assert no_flavors.code == 64 and 'flavors: expected a list of flavors' in no_flavors.err
    options = run('group', 'import', 'terraform', plan, '--flavors', flavors, '--parameter', 'a=b')
    assert options.code == 64 and 'parameters: expected none' in options.err
    unnamed = run('group', 'import', 'terraform', plan, '--flavors', flavors, '--parameter', 'ab')
    assert unnamed.code == 64


def test_a_python_without_heat_is_named(tmp_path: Path, files: tuple[str, str]) -> None:
    """Only the converter of Heat templates needs it: the extra ``heat``, or another Python."""
    (tmp_path / 'web.yaml').write_text('heat_template_version: 2021-04-16')
    words = ('group', 'import', 'heat-offline', str(tmp_path / 'web.yaml'), '--flavors', files[1])
    refused = run(*words, '--python', str(tmp_path / 'python'))
    assert refused.code == 64 and 'No such file' in refused.err
