# SPDX-License-Identifier: Apache-2.0
"""The public face of plug-ins: complete, the only thing samples import, old paths found."""

import ast
import importlib
import pathlib
import sys
import warnings

import pytest

from gantt import client, exceptions, moved, plugin_api
from gantt.client import calls
from gantt.compute import ports
from gantt.compute.over_rpc import OverRpc
from gantt.core.claims.host_facts import UpdateHostFacts, UpdateHostFactsResult
from gantt.core.filters import base
from gantt.core.messages.report import ClaimUpdate
from gantt.core.nova import source
from gantt.plugin_api import report_sources
from gantt.testing import clouds, conformance
from tests.rpc.bus import a_conf

ROOT = pathlib.Path(__file__).parents[2]
SAMPLES = sorted((ROOT / 'tests' / 'samples' / 'acme_gantt').glob('*.py'))
FACES = {'gantt.plugin_api', 'gantt.plugin_api.report_sources'}
UPDATE = ClaimUpdate(name='h', epoch=1, sequence=1, claim_ids=[])
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


@pytest.mark.parametrize(
    ('old', 'former'),
    [(old, name) for old, (now, _) in moved.MOVED.items() for name in moved.RENAMED.get(now, ())],
)
def test_every_former_name_is_found_behind_its_old_path(old, former):
    where, _, now = moved.RENAMED[moved.MOVED[old][0]][former].rpartition(':')
    there = importlib.import_module(where or moved.MOVED[old][0])
    with pytest.warns(FutureWarning, match=f'{old} has moved: .*\\b{now}\\b'):
        assert getattr(importlib.import_module(old), former) is getattr(there, now)


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


def test_a_filter_that_looks_for_shared_classes_finds_none():
    class OldFilter(base.Filter):
        columns = ('free', 'pool', 'pools')

        def mask(self, hosts, spec):
            code = hosts.class_code('VCPU')
            assert code not in hosts.pooled
            return (hosts.free_of(code) > 1) | (hosts.pool[code] >= 0)

    OldFilter.check_columns()
    table = clouds.table_of({'a': {'VCPU': 1}, 'b': {'VCPU': 2}})
    assert OldFilter().mask(table, None).tolist() == [False, True]


@pytest.mark.parametrize(
    ('public', 'old', 'now'),
    [
        (base, 'Unknown', 'UnknownFacts'),
        (base, 'told_apart', 'grouped_by_problem'),
        (calls, 'Caller', 'ServerCaller'),
        (client, 'ClaimFate', 'ClaimOutcome'),
        (client, 'ReportFate', 'ReportOutcome'),
        (conformance, 'Finding', 'RuleFinding'),
        (ports, 'Facts', 'HostReadings'),
        (ports, 'Guest', 'RunningGuest'),
        (ports, 'fate_of', 'report_outcome'),
    ],
)
def test_a_former_name_of_a_public_module_goes_on(public, old, now):
    with pytest.warns(FutureWarning, match=f'{public.__name__}.{old} is called {now} now'):
        assert getattr(public, old) is getattr(public, now)
    with pytest.raises(AttributeError, match='no_such_name'):
        public.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    ('made', 'old', 'now'),
    [
        (client.ClaimOutcome(claim_id='c', outcome='gone'), 'fate', 'outcome'),
        (client.ReportOutcome(name='h', outcome='gone'), 'fate', 'outcome'),
        (UpdateHostFactsResult(outcome='stale', sequence=1), 'fate', 'outcome'),
        (conformance.RuleFinding('pure', 'it reads a file', 1), 'said', 'message'),
        (clouds.table_of({'a': {'VCPU': 1}}), 'kept', 'array_cache'),
        (clouds.table_of({'a': {'VCPU': 1}}), 'kept_masks', 'mask_cache'),
        (clouds.table_of({'a': {'VCPU': 1}}), 'rows_beside', 'rows_of_same_host'),
    ],
)
def test_a_former_attribute_goes_on(made, old, now):
    with pytest.warns(FutureWarning, match=f'{type(made).__name__}.{old} is called {now} now'):
        assert getattr(made, old) == getattr(made, now)


@pytest.fixture(scope='module')
def transport():
    made = client.get_transport(a_conf())
    yield made
    made.cleanup()


@pytest.mark.parametrize(
    ('made_by', 'method', 'old', 'message'),
    [
        (client.ClaimsClient, 'confirm_claims', 'words', UPDATE),
        (client.ClaimsClient, 'refuse_claims', 'words', UPDATE),
        (client.ClaimsClient, 'release_claims', 'words', UPDATE),
        (client.NovaClient, 'tell_aggregates', 'told', source.AggregateUpdate()),
        (client.NovaClient, 'tell_groups', 'told', source.GroupUpdate(groups=[])),
        (client.NovaClient, 'open_moves', 'asked', source.ListMoves(seconds=1)),
        (client.NovaClient, 'settle_guests', 'told', source.GuestLocations(guests=[])),
        (client.NovaClient, 'tell_facts', 'told', UpdateHostFacts(host='h', sequence=1)),
        (OverRpc, 'confirm', 'words', UPDATE),
        (OverRpc, 'refuse', 'words', UPDATE),
        (OverRpc, 'release', 'words', UPDATE),
    ],
)
def test_a_former_argument_of_a_client_goes_on(transport, made_by, method, old, message):
    seconds = 'call_seconds' if made_by is OverRpc else 'timeout'
    call = getattr(made_by(transport, **{seconds: 0.05}), method)
    # It is sent, and nobody is there to take it.
    with pytest.warns(FutureWarning, match=f'{method}: argument {old} is called'):
        with pytest.raises(exceptions.Unavailable):
            call(**{old: message})
    with pytest.raises(TypeError, match='no_such_name'):
        call(no_such_name=message)
