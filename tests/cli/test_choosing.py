# SPDX-License-Identifier: Apache-2.0
"""Columns, filters and orders of lists, the same in all of them."""

import csv
import io
import json
import subprocess

import pytest
import yaml

from gantt.cli import choosing
from gantt.cli.main import commands
from tests.cli.conftest import Gantt
from tests.http.site import Site, fixed

WIDTHS = (('--max-width', '40'), ('--fit-width',), ('--max-width', '0'))


def _names(listed) -> list[str]:
    assert listed.code == 0, listed.err
    return [line.split()[0] for line in listed.out.splitlines()]


def test_columns_are_titles_of_the_table_or_keys_of_the_objects(gantt: Gantt) -> None:
    lines = gantt('host', 'list', '-c', 'STATE,name', '-c', 'free.VCPU').out.splitlines()
    assert lines[0].split() == ['STATE', 'NAME', 'FREE.VCPU']
    assert lines[1].split() == ['up', 'cmp-1', '16']
    shown = gantt('host', 'list', '-c', 'name,free.VCPU,free_cpu', '-f', 'json')
    assert json.loads(shown.out)[1] == {'name': 'cmp-2', 'free.VCPU': 15, 'FREE CPU': '15/16'}
    shown = gantt('host', 'list', '-c', 'name', '-f', 'yaml', '--limit', '1')
    assert yaml.safe_load(shown.out) == [{'name': 'cmp-1'}]
    shown = gantt('host', 'list', '-c', 'zone,traits,name', '-f', 'csv')
    assert shown.code == 64, 'one that is not there fails, it is not left out'
    shown = gantt('host', 'list', '-c', 'zone,free', '-f', 'csv', '--limit', '1')
    (row,) = csv.DictReader(io.StringIO(shown.out))
    assert (row['zone'], json.loads(row['free'])['VCPU']) == ('az1', 16)


def test_values_alone_are_for_scripts(gantt: Gantt) -> None:
    shown = gantt('host', 'list', '-f', 'value', '-c', 'name,condition', '--limit', '2')
    assert shown.out == 'cmp-1\tup\ncmp-2\tup\n'


def test_one_thing_in_the_forms_that_scripts_of_openstack_read(gantt: Gantt) -> None:
    show = ('host', 'show', 'cmp-2')
    assert gantt(*show, '-f', 'value', '-c', 'condition').out == 'up\n'
    assert gantt(*show, '-f', 'value', '-c', 'condition', '-c', 'host.zone').out == 'up\naz1\n'
    shown = gantt(*show, '-f', 'shell', '--prefix', 'of_', '-c', 'condition,host.zone')
    assert shown.out == 'of_condition=up\nof_host_zone=az1\n'
    shown = gantt(*show, '-c', 'condition')
    assert [line.split() for line in shown.out.splitlines()] == [
        ['FIELD', 'VALUE'],
        ['condition', 'up'],
    ]
    cut = gantt(*show, '-f', 'table', '--max-width', '40').out.splitlines()
    whole = gantt(*show, '-f', 'table', '--max-width', '0').out.splitlines()
    assert max(map(len, cut)) == 40 < max(map(len, whole))
    assert json.loads(gantt(*show, '-f', 'json', '-c', 'condition').out) == {'condition': 'up'}
    assert len(gantt(*show, '-f', 'json', '--noindent').out.splitlines()) == 1
    refused = gantt(*show, '-f', 'value', '-c', 'conditon')
    assert (refused.code, refused.out) == (64, '')
    assert "no column 'conditon'; did you mean condition" in refused.err


def test_a_shell_takes_values_as_they_are(gantt: Gantt) -> None:
    reason = 'it\'s $(date) "new" memory'
    assert gantt('host', 'disable', 'cmp-3', '--reason', reason).code == 0
    shown = gantt('host', 'show', 'cmp-3', '-f', 'shell', '-c', 'reason')
    process = subprocess.run(
        ['sh', '-c', f'{shown.out}printf %s "$reason"'], capture_output=True, text=True, check=True
    )
    assert process.stdout == reason


def test_lists_have_the_options_that_lists_of_openstack_have(gantt: Gantt) -> None:
    names = ('host', 'list', '--no-header', '-c', 'name')
    order = _names(gantt(*names, '--sort-column', 'free.VCPU', '--sort-ascending'))
    assert order[0] == 'cmp-5'
    back = _names(gantt(*names, '--sort-column', 'free.VCPU', '--sort-descending'))
    assert back[-1] == 'cmp-5'
    none = gantt('host', 'list', '--filter', 'zone=moon', '--print-empty')
    assert none.out.split()[:2] == ['HOST', 'STATE']
    wide = ('host', 'list', '--no-header', '-c', 'name,uuid,free,cap')
    widths = [max(map(len, gantt(*wide, *more).out.splitlines())) for more in WIDTHS]
    assert widths[0] < widths[1] == 80 < widths[2]
    quoted = gantt('host', 'list', '-f', 'csv', '--quote', 'all', '-c', 'name', '--limit', '1')
    assert quoted.out.split() == ['"name"', '"cmp-1"']
    numbers = ('-f', 'csv', '--quote', 'nonnumeric', '-c', 'name,free.VCPU', '--limit', '1')
    assert gantt('host', 'list', *numbers).out.split()[1] == '"cmp-1",16'


def _header(gantt: Gantt, *argv: str) -> list[str]:
    printed = gantt(*argv, '-f', 'csv')
    assert printed.code == 0, printed.err
    return next(csv.reader(io.StringIO(printed.out)))


def test_csv_has_its_header_where_no_row_matches(gantt: Gantt) -> None:
    header = _header(gantt, 'host', 'list')
    assert header[0] == 'name'
    for more in ([], ['--print-empty']):
        assert _header(gantt, 'host', 'list', '--filter', 'name=nope', *more) == header
        assert _header(gantt, 'host', 'list', '--name', 'nope', *more) == header
    assert gantt('host', 'list', '--name', 'nope', '-f', 'csv', '--no-header').out == ''
    assert gantt('host', 'list', '--name', 'nope', '-f', 'value').out == ''


@pytest.mark.parametrize('command', sorted(name for name in commands() if name.endswith('list')))
def test_every_list_has_a_header_of_csv_without_rows(
    site: Site, gantt: Gantt, command: str
) -> None:
    list_class = commands()[command].load()
    pool = ('pool',) if command == 'allocation list' else ()
    assert gantt('class', 'create', 'CUSTOM_LICENCE').code == 0
    assert gantt('provider', 'create', 'pool', '--inventory', 'CUSTOM_LICENCE=9').code == 0
    if pool:
        taken = ('allocation', 'set', fixed(1), 'pool:CUSTOM_LICENCE=1')
        more = ('--project', 'red', '--user', 'ann', '--type', 'LICENCE')
        assert gantt(*taken, *more).code == 0
    full = _header(gantt, *command.split(), *pool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(list_class, 'fetch', lambda self, args, most: ([], {'total': 0}, False))
        assert _header(gantt, *command.split(), *pool) == full
    assert full


def test_rows_are_sorted_by_several_columns_in_order(gantt: Gantt) -> None:
    names = ('host', 'list', '--no-header', '-c', 'zone,name')
    shown = [line.split() for line in gantt(*names).out.splitlines()]
    for first, second in ((0, 1), (1, 0)):
        keys = [('zone', 'name')[first], ('zone', 'name')[second]]
        order = [word for key in keys for word in ('--sort-column', key)]
        printed = gantt(*names, *order).out.splitlines()
        key = lambda row, first=first, second=second: (row[first], row[second])  # noqa: E731
        assert [line.split() for line in printed] == sorted(shown, key=key)
    by_free = gantt(*names, '--sort', 'free:VCPU', '--sort', 'name')
    assert by_free.out == gantt(*names, '--sort', 'free.VCPU', '--sort', 'name').out
    assert by_free.code == 0, by_free.err


def test_the_width_of_all_tables_of_openstack_is_kept(
    gantt: Gantt, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = ('host', 'list', '--no-header', '-c', 'name,uuid,free,cap')
    longest = lambda *more: max(map(len, gantt(*wide, *more).out.splitlines()))  # noqa: E731
    unbounded = longest('--max-width', '0')
    monkeypatch.setenv('CLIFF_MAX_TERM_WIDTH', '60')
    assert longest() == 60
    assert longest('--max-width', '70') == 70
    monkeypatch.setenv('CLIFF_MAX_TERM_WIDTH', '0')
    assert longest() == unbounded


@pytest.mark.parametrize('prefix', ['9 x', '9', 'a b', 'x;reboot ', 'a-', '$x', 'ä'])
def test_a_prefix_that_no_shell_takes_is_refused(gantt: Gantt, prefix: str) -> None:
    refused = gantt('host', 'show', 'cmp-2', '-f', 'shell', '--prefix', prefix)
    assert (refused.code, refused.out) == (64, '')


def test_names_of_a_shell_begin_with_no_digit() -> None:
    assert choosing.fact_lines('shell', {'1.a': 'x y', '': 2}, 80, '') == ["_1_a='x y'", '_=2']
    assert choosing.fact_lines('shell', {'1.a': 3}, 80, 'of') == ['of1_a=3']


def test_nested_facts_are_named_to_any_depth(gantt: Gantt) -> None:
    show = ('host', 'show', 'cmp-2', '-f', 'value', '-c')
    assert gantt(*show, 'host.free.VCPU').out == gantt(*show, 'free.VCPU').out == '15\n'
    assert gantt(*show, 'host.free.VCPUS').code == 64
    deep = {'a': {'b.c': {'d': 1}}, 'x': {'y': {'z': {'last': 2}}}}
    assert choosing.picked_values(['a.b.c.d', 'x.y.z.last', 'last'], deep) == {
        **{'a.b.c.d': 1, 'x.y.z.last': 2, 'last': 2},
    }


PLACE = ('select', '--resource', 'VCPU=1')


def test_scripts_read_the_places_of_a_selection(gantt: Gantt) -> None:
    place = (*PLACE, '--alternates', '1')
    host = gantt(*place, '-f', 'value', '-c', 'host').out
    assert host.startswith('cmp-') and len(host.split()) == 1
    ids = [fixed(70), fixed(71)]
    two = (*place, '--consumer', ids[0], '--consumer', ids[1])
    listed = gantt(*two, '-f', 'csv', '-c', 'consumer,claim_id,host,node,alternates')
    rows = list(csv.DictReader(io.StringIO(listed.out)))
    assert [row['consumer'] for row in rows] == ids
    claims = {row['claim_id']: row['host'] for row in rows}
    for claim, name in claims.items():
        assert gantt('claim', 'show', claim, '-f', 'value', '-c', 'host').out == f'{name}\n'
    assert all(len(json.loads(row['alternates'])) == 1 for row in rows)
    again = [fixed(72), fixed(73)]
    two = (*place, '--consumer', again[0], '--consumer', again[1])
    shell = gantt(*two, '-f', 'shell', '-c', 'consumer')
    assert shell.out == f'consumer_0={again[0]}\nconsumer_1={again[1]}\n'
    one = gantt(*place, '--consumer', fixed(74), '-f', 'shell', '--prefix', 'of_').out
    assert f'of_consumer={fixed(74)}\n' in one
    assert 'of_claim_id=' in one and 'of_decision_id=' in one and 'of_host=cmp-' in one
    rows = json.loads(gantt(*place, '-f', 'json', '-c', 'host,resources.VCPU').out)
    assert [(row['host'][:4], row['resources.VCPU']) for row in rows] == [('cmp-', 1)]
    table = gantt(*place, '--consumer', fixed(75), '-c', 'consumer,host').out.splitlines()
    assert [table[0].split(), table[1].split()[0]] == [['CONSUMER', 'HOST'], fixed(75)]
    tried = gantt(*place, '--dry-run', '-f', 'value', '-c', 'claim_id,host').out
    assert tried.startswith('\tcmp-')


def test_a_selection_whose_column_is_not_there_claims_nothing(site: Site, gantt: Gantt) -> None:
    before = gantt('claim', 'list', '-f', 'json', '--all').out
    refused = gantt(*PLACE, '-f', 'value', '-c', 'hots')
    assert (refused.code, refused.out) == (64, '')
    assert "no column 'hots'; did you mean host" in refused.err
    assert json.loads(gantt('claim', 'list', '-f', 'json', '--all').out) == json.loads(before)


@pytest.mark.parametrize('option', ['-c', '--sort', '--filter'])
def test_a_column_that_is_not_there_names_those_that_are(gantt: Gantt, option: str) -> None:
    refused = gantt('host', 'list', option, 'zon=az1' if option == '--filter' else 'zon')
    assert refused.code == 64
    assert "no column 'zon'; did you mean" in refused.err
    assert 'known are HOST, STATE, ZONE, FREE CPU, RAM' in refused.err
    assert 'condition' in refused.err and 'free.VCPU' in refused.err
    assert refused.out == ''


def test_filters_all_hold(gantt: Gantt) -> None:
    rows = ('host', 'list', '--no-header', '-c', 'name')
    assert _names(gantt(*rows, '--filter', 'zone=az2')) == ['cmp-5']
    assert _names(gantt(*rows, '--filter', 'condition!=up')) == ['cmp-6']
    assert _names(gantt(*rows, '--filter', 'name=cmp-[12]')) == ['cmp-1', 'cmp-2']
    some = _names(gantt(*rows, '--filter', 'zone=az1', '--filter', 'name!=cmp-?'))
    assert some == ['no'], 'no host matches'
    assert len(_names(gantt(*rows, '--filter', 'reason='))) == 6
    assert _names(gantt(*rows, '--filter', 'free.VCPU=15')) == ['cmp-2']


def test_an_element_of_a_list_is_enough(gantt: Gantt) -> None:
    assert gantt('aggregate', 'set', 'ssd', '--host', 'cmp-2', '--property', 'rack=7').code == 0
    assert gantt('aggregate', 'set', 'hdd', '--host', 'cmp-3').code == 0
    shown = gantt('aggregate', 'list', '--filter', 'hosts=cmp-2', '-f', 'value', '-c', 'name')
    assert shown.out == 'ssd\n'
    shown = gantt('aggregate', 'list', '--filter', 'metadata.rack=7', '-f', 'value', '-c', 'name')
    assert shown.out == 'ssd\n'


def test_a_filter_looks_at_all_rows_and_then_counts(
    gantt: Gantt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr('gantt.cli.base.PAGE_SIZE', 2)
    rows = ('host', 'list', '--no-header', '-c', 'name', '--limit', '1')
    assert _names(gantt(*rows, '--filter', 'zone=az2')) == ['cmp-5']
    assert _names(gantt(*rows, '--sort', 'free.MEMORY_MB')) == ['cmp-5']


def test_rows_are_sorted_by_what_stands_behind_the_text(site: Site, gantt: Gantt) -> None:
    rows = ('host', 'list', '-f', 'value', '-c', 'name')
    assert gantt(*rows, '--sort', 'REPORT', '-r').out.startswith('cmp-6\n'), 'minutes after seconds'
    assert gantt(*rows, '--sort', 'FREE CPU').out.startswith('cmp-5\n')
    for number in (1, 2, 3):
        site.place(number)
        site.pass_seconds(1)
    ages = gantt('claim', 'list', '--sort', 'AGE', '-f', 'value', '-c', 'request_id').out.split()
    assert ages == [fixed(3), fixed(2), fixed(1)]


def test_numbers_in_names_count_as_numbers(gantt: Gantt) -> None:
    for name in ('rack-10', 'rack-9', 'rack-b'):
        assert gantt('aggregate', 'set', name).code == 0
    rows = ('aggregate', 'list', '-f', 'value', '-c', 'name', '--sort', 'name')
    assert gantt(*rows).out.split() == ['rack-9', 'rack-10', 'rack-b']
    assert gantt(*rows, '-r').out.split() == ['rack-b', 'rack-10', 'rack-9']


@pytest.mark.finding('N20', 'a list that is cut says how to see the rest')
def test_a_list_that_is_cut_says_how_to_see_the_rest(gantt: Gantt) -> None:
    for number in range(3):
        assert gantt('aggregate', 'set', f'rack-{number}').code == 0
    cut = gantt('aggregate', 'list', '--limit', '2').out
    assert cut.splitlines()[-1] == '2 shown, there are more: --limit N, or --all'
    assert len(gantt('aggregate', 'list', '--all').out.splitlines()) == 4
    last = gantt('host', 'list', '--limit', '2').out.splitlines()[-1]
    assert last.startswith('2 of 6 hosts') and last.endswith('--all shows all')
    assert gantt('host', 'list', '--all', '--limit', '3').code == 64
