# SPDX-License-Identifier: Apache-2.0
"""Wrong usage: the option, or the file, and what was expected."""

import pytest

from tests.cli.conftest import run


@pytest.mark.parametrize(
    ('argv', 'expected'),
    [
        ('select --vcpu two', 'there is no option --vcpu; say --resource VCPU=2'),
        ('capacity --memory_mb=9', 'there is no option --memory_mb; see --help'),
        ('capacity --RAM 9', 'there is no option --RAM; say --resource MEMORY_MB=4096'),
        ('select --cout 3', 'there is no option --cout; did you mean --count?'),
        ('host list extra', "'extra' is one argument too many"),
        ('select --count two', 'argument --count: expected a whole number from 1 to 1000, got '),
        ('select --budget 1.5', 'argument --budget: expected a whole number from 1 to 600, got '),
        ('select --lease x', 'argument --lease: expected a whole number from 5 to 86400, got '),
        ('select --alternates x', 'argument --alternates: expected a whole number from 0 to 20'),
        ('claim list --limit x', 'argument --limit: expected a whole number from 1 to 100000'),
        ('metric set m --lower x', 'argument --lower: expected a number from '),
        ('replay d --seed x', 'argument --seed: expected a whole number from '),
        ('replay d --subset-size x', 'argument --subset-size: expected a whole number from '),
        ('group create g --policy affinity --max-per-host x', 'argument --max-per-host: expected '),
    ],
)
def test_a_wrong_option_is_named_with_what_was_expected(
    argv: str, expected: str, capsys: pytest.CaptureFixture
) -> None:
    assert run(*argv.split()).code == 64
    last = capsys.readouterr().err.splitlines()[-1]
    assert f'error: {expected}' in last


@pytest.mark.parametrize(
    ('argv', 'expected'),
    [
        ('plan shop.yaml', "'plan shop.yaml' is no command; did you mean group plan"),
        (
            'what-if --resource VCPU=2 --add-host like=cmp-1,count=1',
            "with the name first, got 'like=cmp-1'",
        ),
    ],
)
def test_what_was_meant_is_named(argv: str, expected: str) -> None:
    refused = run(*argv.split())
    assert (refused.code, expected in refused.err) == (64, True), refused.err


def test_a_file_that_is_not_there_is_named_once() -> None:
    problem = run('select', '--request-file', '/nonexistent/request').err
    assert problem == (
        'gantt: /nonexistent/request: No such file or directory; name one that is there, or "-"\n'
    )


def test_a_description_that_is_not_there_is_shown_what_it_has() -> None:
    problem = run('group', 'plan', '/nonexistent/group').err
    assert problem.startswith(
        'gantt: /nonexistent/group: No such file or directory; name the file '
    )
    assert '"members: [{name: web, count: 3, spec: {resources: {VCPU: 2}}}]"' in problem
