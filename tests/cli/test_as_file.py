# SPDX-License-Identifier: Apache-2.0
"""Aggregates and server groups as a file: export, diff, apply."""

import io
import json
import pathlib

import pytest
import yaml

from gantt.cli import as_file
from tests.cli.conftest import Gantt
from tests.http.site import Site, fixed

PAGES = pathlib.Path(__file__).parents[2] / 'doc' / 'source' / 'admin'


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / 'aggregates.yaml'


def _write(file: pathlib.Path, **entries: object) -> str:
    file.write_text(yaml.safe_dump({'aggregates': entries}))
    return str(file)


def _there(gantt: Gantt) -> dict[str, tuple[dict[str, str], list[str]]]:
    rows = json.loads(gantt('aggregate', 'list', '-f', 'json').out)
    return {row['name']: (row['metadata'], sorted(row['hosts'])) for row in rows}


def test_a_file_is_compared_applied_and_then_the_same(gantt: Gantt, file: pathlib.Path) -> None:
    assert gantt('aggregate', 'set', 'ssd', '--host', 'cmp-1', '--property', 'rack=6').code == 0
    assert gantt('aggregate', 'set', 'other', '--host', 'cmp-2').code == 0
    before = _there(gantt)
    path = _write(
        file,
        ssd={'metadata': {'rack': '7', 'cool': 'yes'}, 'hosts': ['cmp-2', 'cmp-1']},
        new={'hosts': ['cmp-3']},
    )
    diff = gantt('aggregate', 'diff', path)
    assert diff.out.splitlines() == [
        '+ aggregate new',
        '    + host cmp-3',
        '~ aggregate ssd',
        '    + cool = yes',
        '    ~ rack = 7 (was 6)',
        '    + host cmp-2',
    ]
    assert _there(gantt) == before, 'a diff changes nothing'
    applied = gantt('aggregate', 'apply', path)
    assert applied.out.splitlines() == ['aggregate new is saved', 'aggregate ssd is saved']
    after = _there(gantt)
    assert after == {
        'ssd': ({'rack': '7', 'cool': 'yes'}, ['cmp-1', 'cmp-2']),
        'new': ({}, ['cmp-3']),
        'other': ({}, ['cmp-2']),
    }
    for command in ('diff', 'apply'):
        assert gantt('aggregate', command, path).out == 'there is nothing to change\n'
    # Idempotent: not even a generation changed.
    assert _there(gantt) == after


def test_nothing_is_deleted_without_being_told_to(gantt: Gantt, file: pathlib.Path) -> None:
    assert gantt('aggregate', 'set', 'old').code == 0
    path = _write(file, kept={})
    assert gantt('aggregate', 'apply', path).code == 0
    assert set(_there(gantt)) == {'old', 'kept'}
    assert gantt('aggregate', 'diff', path, '--delete').out == '- aggregate old\n'
    assert gantt('aggregate', 'apply', path, '--delete').out == 'aggregate old is removed\n'
    assert set(_there(gantt)) == {'kept'}


def test_what_an_entry_leaves_out_stays(gantt: Gantt, file: pathlib.Path) -> None:
    assert gantt('aggregate', 'set', 'a', '--host', 'cmp-1', '--property', 'x=1').code == 0
    assert gantt('aggregate', 'apply', _write(file, a={'metadata': {}})).code == 0
    assert _there(gantt) == {'a': ({}, ['cmp-1'])}
    assert gantt('aggregate', 'apply', _write(file, a={'hosts': []})).code == 0
    assert _there(gantt) == {'a': ({}, [])}


def test_an_export_is_a_file_that_makes_the_same_elsewhere(
    gantt: Gantt, site: Site, file: pathlib.Path
) -> None:
    assert gantt('aggregate', 'set', 'a', '--host', 'cmp-1', '--zone', 'az9').code == 0
    assert gantt('aggregate', 'set', 'b', '--property', 'key=a: "b" #').code == 0
    exported = gantt('aggregate', 'export').out
    assert gantt('aggregate', 'export', str(file)).code == 0
    assert file.read_text() == exported
    refused = gantt('aggregate', 'export', str(file))
    assert refused.code == 64 and '--force' in refused.err
    before = _there(gantt)
    for name in before:
        assert gantt('aggregate', 'remove', name).code == 0
    assert gantt('aggregate', 'apply', str(file)).code == 0
    assert _there(gantt) == before
    assert gantt('aggregate', 'export').out == exported, 'with their uuids'


@pytest.mark.parametrize(
    ('entry', 'said'),
    [
        ({'host': ['cmp-1']}, "aggregates.good.host: unknown field; did you mean 'hosts'?"),
        ({'metadata': {'rack': 7}}, 'aggregates.good.metadata.rack: expected '),
        ({'hosts': ['cmp-1'], 'zone': 'az1'}, 'aggregates.good.zone: unknown field'),
    ],
)
def test_what_is_not_understood_is_named_and_nothing_is_written(
    gantt: Gantt, file: pathlib.Path, entry: object, said: str
) -> None:
    applied = gantt('aggregate', 'apply', _write(file, a={}, good=entry))
    assert applied.code == 64
    assert f'{file}.{said}' in applied.err
    assert _there(gantt) == {}


def test_a_host_that_is_not_there_stops_all_of_it(gantt: Gantt, file: pathlib.Path) -> None:
    path = _write(file, a={'hosts': ['cmp-1']}, z={'hosts': ['cmp-9']})
    for command in ('diff', 'apply'):
        refused = gantt('aggregate', command, path)
        assert refused.code == 1 and "'cmp-9'" in refused.err
    assert _there(gantt) == {}


def test_standard_input_is_a_file(gantt: Gantt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('sys.stdin', io.StringIO('aggregates: {a: {hosts: [cmp-1]}}'))
    assert gantt('aggregate', 'apply', '-').out == 'aggregate a is saved\n'


def test_groups_are_made_and_their_rules_never_change(gantt: Gantt, tmp_path: pathlib.Path) -> None:
    path = tmp_path / 'groups.yaml'
    rule = {'policy': 'anti-affinity', 'max_per_host': 2, 'name': 'db'}
    path.write_text(json.dumps({'server_groups': {fixed(1): rule}}))
    diff = gantt('group', 'diff', str(path)).out
    assert f'+ server group {fixed(1)}' in diff and '+ max_per_host = 2' in diff
    assert gantt('group', 'apply', str(path)).out == f'server group {fixed(1)} is there\n'
    assert gantt('group', 'apply', str(path)).out == 'there is nothing to change\n'
    exported = yaml.safe_load(gantt('group', 'export').out)
    assert exported == {'server_groups': {fixed(1): {**rule, 'project_id': None}}}
    path.write_text(json.dumps({'server_groups': {fixed(1): {**rule, 'max_per_host': 3}}}))
    compared = gantt('group', 'diff', str(path))
    assert compared.code == 64
    assert (
        f'server_groups.{fixed(1)}.max_per_host: the rule of a server group stays' in compared.err
    )
    path.write_text(json.dumps({'server_groups': {}}))
    assert gantt('group', 'apply', str(path), '--delete').code == 0
    assert yaml.safe_load(gantt('group', 'export').out) == {'server_groups': {}}


def test_the_file_in_the_documents_is_understood() -> None:
    aggregates = as_file.AggregateKind().read(str(PAGES / 'aggregates.yaml'))
    assert set(aggregates) == {'ssd', 'licensed'}
    assert aggregates['licensed'].hosts is None


def test_groups_with_policies_at_any_level_are_made_as_well(
    gantt: Gantt, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / 'groups.yaml'
    rule = {'policies': [{'policy': 'affinity', 'level': 'rack'}], 'name': 'db'}
    path.write_text(json.dumps({'server_groups': {fixed(1): rule}}))
    assert gantt('group', 'apply', str(path)).out == f'server group {fixed(1)} is there\n'
    assert gantt('group', 'apply', str(path)).out == 'there is nothing to change\n'
    exported = gantt('group', 'export').out
    path.write_text(exported)
    applied = gantt('group', 'apply', str(path))
    assert (applied.err, applied.out) == ('', 'there is nothing to change\n')
    path.write_text(json.dumps({'server_groups': {fixed(1): {'policy': 'affinity'}}}))
    compared = gantt('group', 'diff', str(path))
    assert compared.code == 64
    assert f'server_groups.{fixed(1)}.policies: the rule of a server group stays' in compared.err
