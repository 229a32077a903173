# SPDX-License-Identifier: Apache-2.0
"""``.ci/run`` knows what each skipped test says, and installs what that test asks for."""

import ast
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = (ROOT / '.ci' / 'run').read_text()
BINDEP = (ROOT / 'bindep.txt').read_text()

#: Reasons that no package mends, with why.
RIGHTS = {
    'NO AUTOGROUP': 'some kernels share out processors by process alone',
    'A DISK OF SOME MB': 'mounting one is for root, and not in every container',
    'NO BUILDER': 'images come from where the machine need not reach',
    'NOT ROOT': 'a file is given to another user by root alone',
    'NO USERS': 'a server that is not ours may refuse the tests the right to make users',
}


def _known():
    """How the reasons begin that the script refuses where the package could be had."""
    tools = re.findall(r"^tool \S+ \S+ '([^']+)'$", SCRIPT, re.MULTILINE)
    added = re.findall(r'AVAILABLE\+=\(((?:"[^"$]+" ?)+)\)', SCRIPT)
    return {*tools, *(word for words in added for word in re.findall(r'"([^"]+)"', words))}


def _words():
    """What the script asks bindep.txt for."""
    tools = re.findall(r'^tool \S+ (\S+) ', SCRIPT, re.MULTILINE)
    servers = re.findall(r'^server \S+ \S+ (\S+) ', SCRIPT, re.MULTILINE)
    return {*tools, *servers, *re.findall(r'install_package (\w+)', SCRIPT)}


def _reasons():
    """(file and line, reason up to its first value) of each skip in the tests."""
    for path in sorted((ROOT / 'tests').rglob('*.py')):
        for node in ast.walk(ast.parse(path.read_text())):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ''
            if name not in ('pytest.skip', 'pytest.importorskip', 'pytest.mark.skipif'):
                continue
            where = f'{path.relative_to(ROOT)}:{node.lineno}'
            reason = node.args[0] if name == 'pytest.skip' else None
            parts = getattr(reason, 'values', [reason])
            texts = [p.value if isinstance(p, ast.Constant) else '{}' for p in parts]
            yield where, ''.join(str(text) for text in texts)


def _servers():
    """What ``tests/services.py`` says in place of a name."""
    source = (ROOT / 'tests' / 'services.py').read_text()
    return re.findall(r"_(?:database|absent)\('(\w+)'", source)


def _beginnings():
    for where, reason in _reasons():
        begin = reason.partition(':')[0]
        names = _servers() if '{}' in begin else ['']
        yield from ((where, begin.replace('{}', name)) for name in names)


def test_there_is_something_to_look_at():
    assert {'NO RABBITMQ', 'NO POSTGRESQL', 'NO NOVA', 'CERTIFICATES'} <= _known()
    assert len(dict(_beginnings())) > 5
    assert {'rabbitmq', 'openssl', 'compiler', 'venv'} <= _words()


def test_each_reason_to_skip_is_loud_and_known_to_the_script():
    known_reasons = _known() | RIGHTS.keys()
    strange = [f'{where}: {begin}' for where, begin in _beginnings() if begin not in known_reasons]
    assert not strange, 'name what is missing in capitals before a colon, and in .ci/run'


def test_the_script_knows_no_reason_that_no_test_gives():
    assert _known() | RIGHTS.keys() == {begin for _, begin in _beginnings()}


def test_each_word_of_the_script_has_its_packages():
    """By the expression of the script itself."""
    expression = re.search(r'sed -n "(s/.*/p)" bindep\.txt', SCRIPT)[1]
    for word in _words():
        asked = expression.replace('$1', word).replace(r'\$/', '$/')
        process = subprocess.run(
            ['sed', '-n', asked], input=BINDEP, capture_output=True, text=True, check=True
        )
        assert process.stdout.split(), word


@pytest.mark.parametrize(
    ('reason', 'code'),
    [
        ('NO RABBITMQ-SERVER: a test starts and kills its own', 1),
        ('NO POLICY OF THE BROKER: not for this user', 0),
        ('A DISK OF SOME MB: mounting one is not allowed here', 0),
    ],
    ids=['could be had', 'not for this user', 'no right'],
)
def test_a_skip_for_what_could_be_had_is_wrong(tmp_path, reason, code):
    judge = SCRIPT.partition("<<'PYTHON'")[2].partition('\n')[2].partition('\nPYTHON\n')[0]
    (tmp_path / 'test_it.py').write_text(
        f'import pytest\ndef test_it():\n    pytest.skip({reason!r})\n'
    )
    ran = subprocess.run(
        [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '--junitxml=it.xml'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert '1 skipped' in ran.stdout
    process = subprocess.run(
        [sys.executable, '-', 'it.xml', 'NO RABBITMQ', 'NO RABBITMQ-SERVER'],
        cwd=tmp_path,
        input=judge,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == code, process.stderr
    assert ('WRONG' if code else 'ok   ') + '     1  ' + reason in process.stdout
