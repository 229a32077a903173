# SPDX-License-Identifier: Apache-2.0
"""Commands and options that the documents name exist."""

import argparse
import contextlib
import io
import pathlib
import re
import shlex
import sys

import pytest

from gantt import conf
from gantt.cli import main as cli
from gantt.cmd import manage
from gantt.core.table import columns

ROOT = pathlib.Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob('*.rst'), *(ROOT / 'doc' / 'source').rglob('*.rst')])
#: In running text between double backquotes, or on a line of a literal block.
QUOTED = re.compile(r'``((?:gantt|gantt-[a-z]+) [^`]+)``')
BLOCK = re.compile(r'^ {3,}(?:\$ )?((?:gantt|gantt-[a-z]+) .+)$', re.MULTILINE)
#: Options before the command, which are not its own.
BEFORE = re.compile(r'^((?:gantt|gantt-[a-z]+))(?: --(?:config-file|os-cloud) \S+)+')


def _commands():
    pages = {}
    for page in PAGES:
        text = page.read_text().replace('\\\n', '')
        for line in [*QUOTED.findall(text), *BLOCK.findall(text)]:
            command = BEFORE.sub(r'\1', ' '.join(line.split()))
            pages.setdefault(command, page.relative_to(ROOT).as_posix())
    return pages


COMMANDS = _commands()


def _help(words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = cli.main([*words, '--help'])
    assert code == 0, words
    return out.getvalue()


def test_the_documents_name_commands_at_all():
    assert sum(line.startswith('gantt ') for line in COMMANDS) > 10
    assert any(line.startswith('gantt-manage ') for line in COMMANDS)


@pytest.mark.parametrize('line', sorted(line for line in COMMANDS if line.startswith('gantt ')))
def test_a_command_of_the_documents_exists_with_its_options(line):
    words = shlex.split(line)[1:]
    name = next(
        (' '.join(words[:n]) for n in (3, 2, 1) if ' '.join(words[:n]) in cli.commands()), None
    )
    assert name, f'{COMMANDS[line]}: {line!r} is no command'
    text = _help(name.split())
    for word in words:
        if word.startswith('-'):
            assert re.search(rf'(?<![\w-]){re.escape(word)}(?![\w-])', text), (
                f'{COMMANDS[line]}: {line!r}: no option {word}'
            )


@pytest.fixture(scope='module')
def manage_parser():
    """The command line of gantt-manage; options before the command are those of oslo.config."""
    parser = argparse.ArgumentParser()
    manage.add_commands(parser.add_subparsers(required=True))
    return parser


@pytest.mark.parametrize(
    'line', sorted(line for line in COMMANDS if line.startswith('gantt-manage '))
)
def test_what_the_documents_say_of_gantt_manage_is_understood(manage_parser, line):
    try:
        manage_parser.parse_args(shlex.split(line)[1:])
    except SystemExit as e:
        assert not e.code, f'{COMMANDS[line]}: {line!r}'


def test_the_only_command_of_gantt_status_is_the_documented_one():
    documented = {line for line in COMMANDS if line.startswith('gantt-status ')}
    assert documented
    assert documented <= {'gantt-status upgrade check', 'gantt-status upgrade check --json'}


def test_options_that_the_documents_name_exist():
    known_options = {
        (group, option.dest) for group, options in conf.list_opts() for option in options
    }
    groups = {group for group, _ in known_options}
    wrong = []
    for page in PAGES:
        for group, name in re.findall(r'``\[(\w+)\] (\w+)``', page.read_text()):
            if group in groups and (group, name) not in known_options:
                wrong.append(f'{page.relative_to(ROOT)}: [{group}] {name}')
    assert not wrong, '\n'.join(wrong)


def test_the_files_for_gantt_compute_in_the_documents_are_understood():
    from gantt.compute import farm, report_only, shapes

    pages = ROOT / 'doc' / 'source' / 'admin'
    hosts = report_only.load(str(pages / 'hosts.yaml'))
    assert set(hosts) == {'compute-7', 'compute-8'}
    assert hosts['compute-7'].running is None
    assert [shape.name for shape in shapes.load_shapes(str(pages / 'shapes.yaml'))] == [
        'general',
        'graphics',
    ]
    events = farm.load_events(str(pages / 'events.yaml'))
    assert [event.at for event in events] == [30, 60, 120, 180]


def test_the_guests_in_the_documents_are_understood():
    from gantt.cmd import manage_hosts

    page = ROOT / 'doc' / 'source' / 'admin' / 'guests.jsonl'
    assert [g.host for g in manage_hosts._read_guests(str(page), frozenset())] == ['cmp-1', 'cmp-2']


def test_tests_that_the_documents_name_exist():
    named = []
    for page in PAGES:
        for path, name in re.findall(r'``([\w/]*test_\w+\.py)::(test_\w+)``', page.read_text()):
            named.append(name)
            file = ROOT / (path if '/' in path else f'tests/faults/{path}')
            assert file.exists(), f'{page.relative_to(ROOT)}: {path}'
            assert f'def {name}(' in file.read_text(), f'{page.relative_to(ROOT)}: {path}::{name}'
    assert len(named) > 50


def test_tests_that_the_documents_name_without_a_file_exist():
    defined = {
        name
        for file in (ROOT / 'tests').rglob('test_*.py')
        for name in re.findall(r'^def (test_\w+)\(', file.read_text(), re.MULTILINE)
    }
    named = {
        f'{page.relative_to(ROOT)}: {name}'
        for page in PAGES
        for name in re.findall(r'``(test_\w+)``', page.read_text())
        if name not in defined
    }
    assert named == set()


def test_every_file_of_faults_is_in_the_list_of_them():
    text = (ROOT / 'doc' / 'source' / 'contributor' / 'faults.rst').read_text()
    files = sorted((ROOT / 'tests' / 'faults').glob('test_*.py'))
    assert [file.name for file in files if f'{file.name}::' not in text] == []


@pytest.mark.finding('N16', 'the columns that a filter may read are listed')
def test_every_column_of_the_host_table_is_described():
    everything = columns.COLUMNS | columns.OBJECT_COLUMNS
    assert all(column.doc for column in everything.values())
    page = (ROOT / 'doc' / 'source' / 'contributor' / 'write-a-filter.rst').read_text()
    assert '.. gantt-columns::' in page


def _leaves(parser, path=()):
    """Every command of a parser, in words."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        yield ' '.join(path)
    for group in groups:
        for name, inner in group.choices.items():
            yield from _leaves(inner, (*path, name))


@pytest.mark.finding('N25', 'the table of commands is complete')
def test_the_table_of_commands_is_complete(manage_parser):
    page = (ROOT / 'doc' / 'source' / 'reference' / 'commands.rst').read_text()
    table = page.partition('.. list-table::')[2].partition('.. gantt-commands::')[0]
    listed = ' '.join(table.split())
    commands = [f'gantt {name}' for name in cli.commands()]
    commands += [f'gantt-manage {name}' for name in _leaves(manage_parser)]
    assert len(commands) > 40
    missing = [
        command for command in commands if not re.search(rf'``{re.escape(command)}[` ]', listed)
    ]
    assert missing == []
    # Each with the options that it insists on.
    assert '``gantt claim release ID --reason TEXT``' in listed


DECISIONS = ROOT / 'doc' / 'source' / 'decisions'
STATUS = re.compile(r':Status: (?:accepted|(?:amended|superseded) by (\d{4}(?:, \d{4})*))')


@pytest.mark.parametrize('page', sorted(DECISIONS.glob('0*.rst')), ids=lambda page: page.stem[:4])
def test_a_decision_has_a_title_a_status_and_a_date(page):
    title, line, blank, status, date, *_ = page.read_text().splitlines()
    slug = re.sub(r'[^a-z0-9]+', '-', title.removeprefix(f'{page.stem[:4]}: ').lower())
    assert page.stem == f'{page.stem[:4]}-{slug}', 'the file is named by the number and the title'
    assert line == '=' * len(title)
    assert not blank
    assert re.fullmatch(r':Date: 20\d\d-\d\d-\d\d', date)
    by = STATUS.fullmatch(status)
    assert by, f'{status!r} is no status'
    for number in (by[1] or page.stem[:4]).split(', '):
        assert list(DECISIONS.glob(f'{number}-*.rst')), f'there is no decision {number}'


def test_each_decision_has_a_number_of_its_own():
    numbers = [page.stem[:4] for page in DECISIONS.glob('0*.rst')]
    assert len(numbers) > 90
    assert sorted(numbers) == [f'{n:04}' for n in range(1, len(numbers) + 1)]


@pytest.fixture(scope='module')
def apis():
    """The extension of the documents that renders the APIs."""
    sys.path.insert(0, str(ROOT / 'doc' / 'source' / '_ext'))
    try:
        import gantt_apis
    finally:
        sys.path.pop(0)
    return gantt_apis


def _lines(directive, *arguments):
    instance = directive.__new__(directive)
    instance.arguments = arguments
    return list(instance.lines())


def test_every_operation_and_type_of_the_http_api_is_in_its_reference(apis):
    page = (ROOT / 'doc' / 'source' / 'reference' / 'http.rst').read_text()
    assert '.. gantt-http-operations::' in page
    assert '.. gantt-http-refusals::' in page
    operations, types = _lines(apis.Operations), _lines(apis.Types)
    refusals = _lines(apis.Refusals)
    document = apis.document()
    for path, methods in document['paths'].items():
        for method in methods:
            assert f'{method.upper()} {path}' in operations
    assert {apis.title_of(name) for name in document['components']['schemas']} <= set(types)
    for link in re.findall(r'<(api-[\w-]+)>', '\n'.join([*operations, *types])):
        assert f'.. _{link}:' in {*operations, *types, *refusals}, link


@pytest.mark.parametrize('topic', ['scheduler', 'claims', 'stats', 'planner'])
def test_every_method_of_a_topic_is_in_the_reference_of_the_rpc_api(apis, topic):
    page = (ROOT / 'doc' / 'source' / 'reference' / 'rpc.rst').read_text()
    assert f'.. gantt-rpc-methods:: gantt-{topic}' in page
    text = '\n'.join(_lines(apis.RpcMethods, f'gantt-{topic}'))
    methods = apis.topics()[f'gantt-{topic}']
    assert len(methods) > 3
    assert [name for name in methods if f'``{name}``' not in text] == []


def test_every_page_is_in_one_part_of_the_index():
    source = ROOT / 'doc' / 'source'
    text = (source / 'index.rst').read_text()
    parts = re.findall(r':caption: (.+)\n.*\n\n((?:   \S+\n)+)', text)
    assert [caption for caption, _ in parts] == [
        'Tutorial',
        'How-to guides',
        'Explanation',
        'Reference',
    ]
    listed = [page for _, pages in parts for page in pages.split()]
    pages = {page.relative_to(source).with_suffix('').as_posix() for page in source.rglob('*.rst')}
    decisions = {page for page in pages if page.startswith('decisions/0')}
    assert sorted(listed) == sorted(pages - decisions - {'index'})


def test_files_that_the_documents_name_exist():
    roots = [folder for base in (ROOT, ROOT / 'gantt') for folder in base.iterdir()]
    names = {folder.name for folder in roots if folder.is_dir() and folder.name[0].isalpha()}
    wrong = []
    for page in PAGES:
        for quoted in re.findall(r'``([a-z][\w./-]+)(?:::\w+)?``', page.read_text()):
            first, slash, _ = quoted.partition('/')
            if not slash or first not in names or first == 'build':  # what a run writes
                continue
            if quoted.endswith(('.conf', '.journal')):
                continue
            path = quoted if (ROOT / first).is_dir() else f'gantt/{quoted}'
            if not any((ROOT / f'{path}{suffix}').exists() for suffix in ('', '.py')):
                wrong.append(f'{page.relative_to(ROOT)}: {quoted}')
    assert wrong == []


@pytest.mark.parametrize('page', ['README.rst', 'CONTRIBUTING.rst', 'doc/source/tutorial.rst'])
def test_the_pythons_that_a_page_asks_for_are_those_of_the_package(page):
    pythons = re.findall(r'Python :: (3\.\d+)', (ROOT / 'setup.cfg').read_text())
    asked = re.findall(r'Python (3\.[\w., ]*\d)', (ROOT / page).read_text())
    assert asked == [f'{", ".join(pythons[:-1])} or {pythons[-1]}']


def test_programs_and_packages_that_are_to_be_installed_are_of_any_python():
    files = [*PAGES, ROOT / 'bindep.txt']
    named = {page.name: re.findall(r'python3\.\d+', page.read_text()) for page in files}
    assert {name: words for name, words in named.items() if words} == {}
