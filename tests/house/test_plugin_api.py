# SPDX-License-Identifier: Apache-2.0
"""The public face of plug-ins: complete, the only thing samples import, old paths found."""

import ast
import importlib
import pathlib
import sys
import warnings

import pytest

from gantt import client, moved, plugin_api
from gantt.plugin_api import report_sources

ROOT = pathlib.Path(__file__).parents[2]
SAMPLES = sorted((ROOT / 'tests' / 'samples' / 'acme_gantt').glob('*.py'))
FACES = {'gantt.plugin_api', 'gantt.plugin_api.report_sources'}
OLD_FILTER = """
from gantt.core.columns import BoolArray
from gantt.core.filters.base import Filter
from gantt.core.plugin import Option
from gantt.core.resources import format_amount


class OldFilter(Filter):
    columns = ('free',)

    def mask(self, hosts, spec):
        return None
"""


def imported(path):
    """Modules of Gantt that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module


@pytest.mark.parametrize('path', [*SAMPLES, ROOT / 'gantt/core/filters/location.py'], ids=str)
def test_samples_import_nothing_else(path):
    assert {one for one in imported(path) if one.split('.')[0] == 'gantt'} <= FACES


@pytest.mark.parametrize('face', [plugin_api, report_sources], ids=lambda face: face.__name__)
def test_all_that_a_face_names_is_there(face):
    assert sorted(face.__all__) == sorted(set(face.__all__))
    assert [one for one in face.__all__ if not hasattr(face, one)] == []


@pytest.mark.parametrize('old', sorted(moved.MOVED))
def test_every_old_path_is_found_where_it_says(old):
    now, face = moved.MOVED[old]
    module = importlib.import_module(now)
    public = next(name for name in vars(module) if not name.startswith('_'))
    with pytest.warns(FutureWarning, match=f'{old} has moved: .*{face}'):
        assert getattr(importlib.import_module(old), public) is getattr(module, public)
    with pytest.raises(AttributeError, match='no_such_name'):
        importlib.import_module(old).no_such_name  # noqa: B018


def test_a_plug_in_with_old_paths_runs_and_is_given_the_new_ones(tmp_path, monkeypatch):
    (tmp_path / 'old_plugin_of_acme.py').write_text(OLD_FILTER)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ('gantt.core.columns', 'gantt.core.resources'):
        sys.modules.pop(name, None)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        from old_plugin_of_acme import OldFilter
    assert OldFilter().mask(None, None) is None
    # One import asks twice for a name in a package.
    assert list(dict.fromkeys(str(one.message) for one in found)) == [
        'gantt.core.columns has moved: import BoolArray from gantt.plugin_api',
        'gantt.core.resources has moved: import format_amount from gantt.plugin_api',
    ]
    assert {one.filename for one in found} == {str(tmp_path / 'old_plugin_of_acme.py')}


@pytest.mark.parametrize(
    'face, old, now',
    [
        (plugin_api, 'Unknown', 'UnknownFacts'),
        (plugin_api, 'told_apart', 'grouped_by_problem'),
        (report_sources, 'Facts', 'HostReadings'),
        (report_sources, 'Settings', 'HostAgentSettings'),
        (client, 'ClaimFate', 'ClaimOutcome'),
        (client, 'ReportFate', 'ReportOutcome'),
    ],
)
def test_a_former_name_of_a_face_goes_on(face, old, now):
    with pytest.warns(FutureWarning, match=f'{face.__name__}.{old} is called {now} now'):
        assert getattr(face, old) is getattr(face, now)
    with pytest.raises(AttributeError, match='no_such_name'):
        face.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    'made',
    [
        client.ClaimOutcome(claim_id='c', outcome='gone'),
        client.ReportOutcome(name='h', outcome='gone'),
    ],
)
def test_the_former_name_of_an_outcome_goes_on(made):
    with pytest.warns(FutureWarning, match='fate is called outcome now'):
        assert made.fate == 'gone'
