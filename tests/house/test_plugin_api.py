# SPDX-License-Identifier: Apache-2.0
"""The public face of plug-ins: complete, and the only thing that samples import."""

import ast
import pathlib

import pytest

from gantt import plugin_api
from gantt.plugin_api import report_sources

ROOT = pathlib.Path(__file__).parents[2]
SAMPLES = sorted((ROOT / 'tests' / 'samples' / 'acme_gantt').glob('*.py'))
FACES = {'gantt.plugin_api', 'gantt.plugin_api.report_sources'}


def imported(path):
    """Modules of Gantt that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module


@pytest.mark.parametrize('path', SAMPLES, ids=str)
def test_samples_import_nothing_else(path):
    assert {module for module in imported(path) if module.split('.')[0] == 'gantt'} <= FACES


@pytest.mark.parametrize('face', [plugin_api, report_sources], ids=lambda face: face.__name__)
def test_all_that_a_face_names_is_there(face):
    assert sorted(face.__all__) == sorted(set(face.__all__))
    assert [name for name in face.__all__ if not hasattr(face, name)] == []
