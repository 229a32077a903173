# SPDX-License-Identifier: Apache-2.0
"""The runner of Placement's tests: what it sends, what it reports, and that it can fail."""

import argparse
import json

import pytest
import yaml

from tests.placement import __main__ as command
from tests.placement import runner, states
from tests.placement.exceptions import EXCEPTIONS
from tests.placement.named_states import STATES
from tests.placement.server import Server, ServerError, children_first
from tests.placement.small_server import OneProvider, SmallServer, serving

LIST = {'name': 'list', 'GET': '/resource_providers'}
#: A provider is made, and found by the next; then something is expected that is not so.
GOOD_AND_BAD = [
    {
        'name': 'make',
        'POST': '/resource_providers',
        'request_headers': {'content-type': 'application/json'},
        'data': {'name': "$ENVIRON['RP_NAME']", 'uuid': "$ENVIRON['RP_UUID']"},
    },
    LIST | {'response_json_paths': {'$.resource_providers[0].uuid': "$ENVIRON['RP_UUID']"}},
    {'name': 'wrong', 'GET': '/resource_providers', 'status': 418},
]


@pytest.fixture
def small():
    return SmallServer()


@pytest.fixture
def url(small):
    with serving(small) as address:
        yield address


@pytest.fixture
def write(tmp_path):
    """``write(name, tests)``: a file of tests in ``tmp_path``."""

    def put(name, tests, fixture='APIFixture'):
        path = tmp_path / f'{name}.yaml'
        path.write_text(yaml.safe_dump({'fixtures': [fixture], 'tests': tests}))
        return runner.read(path, STATES)

    return put


@pytest.fixture
def run_command(tmp_path):
    """``run_command(word, ...)``: its code and its report, of the files in ``tmp_path``."""
    python = tmp_path / 'python'
    python.write_text(f'#!/bin/sh\nprintf "16.0.0\\n%s\\n" "{tmp_path}/package"\n')
    python.chmod(0o755)
    folder = tmp_path / 'package/tests/functional'
    folder.mkdir(parents=True)
    (folder / 'gabbits').symlink_to(tmp_path)
    report = tmp_path / 'build' / 'placement.json'

    def run(*words):
        code = command.main(['--python', str(python), '--report', str(report), *words])
        return code, json.loads(report.read_text()) if report.exists() else None

    return run


# -- states ------------------------------------------------------------------------------


@pytest.mark.parametrize('name', sorted(STATES))
def test_a_state_is_built_and_leaves_nothing(small, url, name):
    state = STATES[name]
    environment = states.make_environment(state)
    server = Server(url)
    states.build(server, state, environment)
    for provider in state.providers:
        there = small.providers[environment[provider.variable]]
        assert there.parent == (environment[provider.parent] if provider.parent else None)
        assert set(there.inventories) == set(provider.inventories)
        assert there.traits == list(provider.traits)
        assert there.aggregates == [environment[a] for a in provider.aggregates]
        # Each inventory and each set of traits counts, aggregates do not.
        assert there.generation == len(provider.inventories) + bool(provider.traits)
    assert len(small.providers) == len(state.providers)
    assert len(small.allocations) == len(state.allocations)
    server.clean()
    server.close()
    assert small.empty


def test_a_provider_is_as_its_state_describes_it(small, url):
    state = states.State(
        providers=(
            states.Provider('A', 'root {RP_NAME}', {'VCPU': 8}, ('CUSTOM_X', 'HW_NUMA_ROOT')),
            states.Provider(
                *('B', 'child', {'CUSTOM_C': states.stock(5, reserved=1)}),
                parent='A',
                aggregates=('AGGA',),
            ),
        ),
        allocations=(states.Allocation('B', {'CUSTOM_C': 2}, 'CONSUMER_0', '{USER_ID}'),),
    )
    environment = states.make_environment(state)
    server = Server(url)
    states.build(server, state, environment)
    assert small.providers == {
        environment['A']: OneProvider(
            f'root {environment["RP_NAME"]}',
            None,
            2,
            {'VCPU': {'total': 8, 'max_unit': 8}},
            ['CUSTOM_X', 'HW_NUMA_ROOT'],
        ),
        environment['B']: OneProvider(
            'child',
            environment['A'],
            1,
            {'CUSTOM_C': {'total': 5, 'max_unit': 5, 'reserved': 1}},
            aggregates=[environment['AGGA']],
        ),
    }
    assert small.allocations == {
        environment['CONSUMER_0']: {
            'allocations': {environment['B']: {'resources': {'CUSTOM_C': 2}}},
            'user_id': environment['USER_ID'],
            'project_id': 'something',
            'consumer_generation': None,
        }
    }
    assert (small.traits, small.classes) == ({'CUSTOM_X'}, {'CUSTOM_C'})
    assert {version for method, path, version in small.requests if 'aggregates' in path} == {
        'placement 1.18'
    }
    server.close()


def test_two_files_have_no_uuid_in_common():
    first, second = (set(states.make_environment(STATES['GranularFixture']).values()) for _ in '12')
    assert first & second == set(states.FIXED.values())


def test_children_are_deleted_before_their_parents():
    tree = {'c': 'b', 'a': None, 'b': 'a', 'x': None}
    order = children_first({'uuid': u, 'parent_provider_uuid': p} for u, p in tree.items())
    assert sorted(order) == sorted(tree)
    assert order.index('c') < order.index('b') < order.index('a')


# -- files ---------------------------------------------------------------------------------


def test_what_passes_and_what_fails(small, url, write):
    outcome = runner.run([write('one', GOOD_AND_BAD)], {'legacy': url}, {})
    assert outcome.passed == ['one: make', 'one: list']
    assert list(outcome.failed) == ['one: wrong']
    assert "'200' not found in ['418']" in outcome.failed['one: wrong']
    assert small.empty


def test_tests_see_the_state_of_their_file(url, write):
    seen = [
        {
            'name': 'its inventory',
            'GET': '/resource_providers',
            'response_json_paths': {
                '$.resource_providers.`len`': 1,
                '$.resource_providers[0].name': "$ENVIRON['RP_NAME']",
            },
        }
    ]
    outcome = runner.run([write('one', seen, 'AllocationFixture')], {'legacy': url}, {})
    assert outcome.passed == ['one: its inventory']


def test_an_exception_is_requested_but_not_judged(small, url, write):
    file = write('one', [*GOOD_AND_BAD, LIST | {'name': 'after'}])
    outcome = runner.run([file], {'legacy': url}, {'one: wrong': 'because'})
    assert outcome.excluded == {'one: wrong': 'because'}
    assert not outcome.failed
    assert outcome.passed == ['one: make', 'one: list', 'one: after']
    # Two before the state: of the run and of the file; three of tests; one to clean.
    assert sum(request[:2] == ('GET', '/resource_providers') for request in small.requests) == 6


def test_an_exception_that_passes_is_a_failure(url, write):
    outcome = runner.run([write('one', [LIST])], {'legacy': url}, {'one: list': 'because'})
    assert 'take it off' in outcome.failed['one: list']


def test_an_exception_of_an_unknown_name_is_refused(url, write):
    with pytest.raises(ValueError, match='one: lost'):
        runner.run([write('one', [LIST])], {'legacy': url}, {'one: lost': 'because'})


def test_files_that_need_another_configuration_are_excluded_by_name(url, write):
    files = [write('one', [LIST]), write('two', [LIST], 'CORSFixture')]
    outcome = runner.run(files, {'legacy': url}, {})
    assert outcome.passed == ['one: list']
    assert outcome.excluded == {'two: list': 'no server with the configuration "cors" was named'}


def test_a_state_that_cannot_be_made_fails_all_tests_of_its_file(small, url, write):
    small.refuses['PUT', 'allocations'] = 500
    files = [write('one', [LIST], 'AllocationFixture'), write('two', [LIST])]
    outcome = runner.run(files, {'legacy': url}, {})
    assert 'got 500' in outcome.failed['one: list']
    assert outcome.passed == ['two: list']


def test_what_cannot_be_taken_away_is_a_failure_and_so_is_the_next_file(small, url, write):
    small.refuses['DELETE', 'resource_providers'] = 409
    outcome = runner.run(
        [write('one', GOOD_AND_BAD[:1]), write('two', [LIST])], {'legacy': url}, {}
    )
    assert set(outcome.failed) >= {'one: cleaning', 'two: list'}
    assert 'no resource provider' in outcome.failed['two: list']


def test_a_server_with_providers_is_left_as_it_is(small, url, write):
    small.providers['u'] = OneProvider('production', None)
    with pytest.raises(ServerError, match="'production'"):
        runner.run([write('one', GOOD_AND_BAD)], {'legacy': url}, {})
    assert [request[:2] for request in small.requests] == [('GET', '/resource_providers')]


def test_the_second_test_of_one_name_has_a_name_of_its_own(url, write):
    file = write('one', [LIST, LIST, LIST | {'name': 'other'}])
    assert file.names == ['one: list', 'one: list (2)', 'one: other']
    assert runner.run([file], {'legacy': url}, {}).passed == file.names


@pytest.mark.parametrize('content', ['just text', 'tests: []', 'fixtures: [APIFixture]'])
def test_a_file_without_tests_is_refused_by_name(tmp_path, content):
    path = tmp_path / 'odd.yaml'
    path.write_text(content)
    with pytest.raises(ValueError, match=r'odd\.yaml: expected a mapping'):
        runner.read(path, STATES)


def test_a_file_with_an_unknown_state_is_refused_by_name(write):
    with pytest.raises(ValueError, match='fixtures: expected one of .*NewFixture'):
        write('odd', [LIST], 'NewFixture')


# -- the command ---------------------------------------------------------------------------


def test_a_failure_is_in_the_report_and_in_the_code(url, write, run_command, capsys):
    write('one', GOOD_AND_BAD)
    code, report = run_command('--url', url)
    assert code == 1
    assert report.pop('seconds') >= 0
    assert report == {
        'placement': '16.0.0',
        'other': {'passed': 2, 'failed': ['one: wrong'], 'excluded': {}},
    }
    shown = capsys.readouterr().out
    assert 'one: wrong' in shown
    assert 'other: 2 passed, 1 failed, 0 excluded of openstack-placement 16.0.0' in shown


def results(passed, failed=()):
    return runner.Results(passed=list(passed), failed=dict.fromkeys(failed, 'why'))


@pytest.mark.parametrize(
    ('real', 'postgresql', 'told'),
    [
        (results('ab'), results('ab'), []),
        (results('ab'), results('a', 'b'), ['postgresql: 1 that have to pass do not']),
        (results('ab'), results('a'), ['postgresql: 1 that have to pass do not']),
        (results('a', 'b'), results('ab'), ['real: 1 that have to pass do not']),
    ],
)
def test_what_placement_passes_has_to_pass_elsewhere(real, postgresql, told):
    results = {'real': real, 'postgresql': postgresql}
    assert command.wrong(results, is_all=False) == told
    few = ['real: at least 1300 have to pass']
    assert command.wrong(results, is_all=True) == few + told


def test_a_run_in_which_all_passes(url, write, run_command):
    write('one', GOOD_AND_BAD)
    write('two', [LIST])
    code, report = run_command('--url', f'legacy={url}', 'two')
    assert code == 0
    assert report['other'] == {'passed': 1, 'failed': [], 'excluded': {}}


def test_what_cannot_be_judged_ends_with_a_code_of_its_own(
    small, url, write, run_command, capsys, tmp_path
):
    assert run_command('--url', url) == (2, None)  # no files
    write('one', [LIST])
    assert run_command('--url', url, 'nine') == (2, None)
    assert "unknown: ['nine']" in capsys.readouterr().err
    assert run_command('--url', f'cors={url}') == (2, None)
    assert 'nothing was judged' in capsys.readouterr().err
    small.providers['u'] = OneProvider('production', None)
    assert run_command('--url', url) == (2, None)
    assert 'production' in capsys.readouterr().err
    (tmp_path / 'python').write_text('#!/bin/sh\nexit 1\n')
    assert run_command('--url', url) == (2, None)
    assert 'make venv-placement' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('word', 'expected'),
    [
        ('http://host/a?b=c', ('legacy', 'http://host/a?b=c')),
        ('secure=https://host:1', ('secure', 'https://host:1')),
    ],
)
def test_a_url_may_name_its_configuration(word, expected):
    assert command.named_url(word) == expected


@pytest.mark.parametrize(
    ('word', 'expected'), [('strict=http://host', 'legacy, secure'), ('host:80', 'http://')]
)
def test_a_url_that_is_none_is_refused(word, expected):
    with pytest.raises(argparse.ArgumentTypeError, match=expected):
        command.named_url(word)


def test_exceptions_have_reasons():
    assert all(len(reason) > 20 and ': ' in name for name, reason in EXCEPTIONS.items())
