# SPDX-License-Identifier: Apache-2.0
"""Files of declarative tests, run by gabbi against servers, with states of our own."""

import collections
import contextlib
import os
import traceback
import unittest
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import yaml
from gabbi import handlers, suitemaker

from tests.placement import states
from tests.placement.server import Server, ServerError

#: What one request of a test may take, in seconds; a file may say more.
TIMEOUT = 30


@dataclass
class Results:
    """What became of tests, each by the name of its file and its own: ``traits: get one``.

    :param passed: names
    :param failed: name -> what was expected and found
    :param excluded: name -> why it is not judged
    """

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)

    def add(self, other: 'Results') -> None:
        self.passed += other.passed
        self.failed |= other.failed
        self.excluded |= other.excluded

    def count(self) -> int:
        return len(self.passed) + len(self.failed) + len(self.excluded)

    def as_json(self) -> dict[str, Any]:
        return {
            'passed': len(self.passed),
            'failed': sorted(self.failed),
            'excluded': dict(sorted(self.excluded.items())),
        }


@dataclass(frozen=True)
class TestFile:
    """One file of tests that one after another see what those before them did.

    :param name: without suffix
    :param state: what has to be there before the first
    """

    __test__ = False

    name: str
    folder: Path
    state: states.State
    content: Mapping[str, Any]

    @property
    def names(self) -> list[str]:
        """Of its tests, in order; the second of one name gets a number."""
        seen: collections.Counter[str] = collections.Counter()
        names = []
        for test in self.content['tests']:
            name = f'{self.name}: {test["name"]}'
            seen[name] += 1
            names.append(name if seen[name] == 1 else f'{name} ({seen[name]})')
        return names


def read(path: Path, known: Mapping[str, states.State]) -> TestFile:
    """:raises ValueError: it is no file of tests, or needs a state that nobody has written"""
    content = yaml.safe_load(path.read_text())
    if not isinstance(content, dict) or not content.get('tests'):
        raise ValueError(f'{path.name}: expected a mapping with a list of "tests"')
    fixtures = content.get('fixtures') or []
    if len(fixtures) != 1 or fixtures[0] not in known:
        raise ValueError(
            f'{path.name}: fixtures: expected one of {", ".join(sorted(known))}; got {fixtures!r}'
        )
    return TestFile(path.stem, path.parent, known[fixtures[0]], content)


class _Verdicts(unittest.TestResult):
    """The outcome of each test: no text when it passed."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[unittest.TestCase, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.texts[test] = ''

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.texts[test] = ''

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.texts[test] = ''.join(traceback.format_exception_only(err[1])).strip()

    addError = addFailure

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.texts[test] = f'skipped: {reason}'

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.texts[test] = 'expected to fail, and passed'


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Tests name what they cannot know by variables of the environment."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _suite(file: TestFile, url: str) -> list[Any]:
    """gabbi's tests of a file, in order."""
    parts = urlsplit(url)
    secure = parts.scheme == 'https'
    content = {name: value for name, value in file.content.items() if name != 'fixtures'}
    # Certificates are read for each test, also where nobody looks at one.
    usual = {'timeout': TIMEOUT, 'ssl': secure, 'cert_validate': secure}
    content['defaults'] = usual | (content.get('defaults') or {})
    return list(
        suitemaker.test_suite_from_dict(
            loader=unittest.TestLoader(),
            test_base_name=file.name,
            suite_dict=content,
            test_directory=str(file.folder),
            host=parts.hostname,
            port=parts.port or (443 if secure else 80),
            fixture_module=None,
            intercept=None,
            prefix=parts.path.rstrip('/'),
            handlers=[handler() for handler in handlers.RESPONSE_HANDLERS],
        )
    )


def _request_all(file: TestFile, url: str) -> list[str]:
    """What went wrong in each test of a file, nothing where it passed."""
    tests = _suite(file, url)
    verdicts = _Verdicts()
    # One connection for all of them: gabbi would leave one open for each.
    with httpx.Client(verify=urlsplit(url).scheme == 'https') as client:
        for test in tests:
            test.http.client.close()
            test.http.client = client
        for test in tests:
            test.run(verdicts)
    return [verdicts.texts[test] for test in tests]


def run_file(file: TestFile, url: str, excluded: Mapping[str, str]) -> Results:
    """Make its state, make its requests, and take away what there is then.

    :param url: of an empty server that has the configuration which the file needs
    :param excluded: name -> why the test is not judged; its request is made all the same
    """
    results = Results()
    environment = states.make_environment(file.state)
    server = Server(url)
    try:
        with _environment(environment):
            try:
                server.require_empty()
                states.build(server, file.state, environment)
                texts = _request_all(file, url)
            except ServerError as e:
                texts = [f'its state could not be made: {e}'] * len(file.names)
        for name, text in zip(file.names, texts, strict=True):
            if name in excluded:
                results.excluded[name] = excluded[name]
                if not text:
                    results.failed[name] = 'it passes: take it off the list of exceptions'
            elif text:
                results.failed[name] = text
            else:
                results.passed.append(name)
        try:
            server.clean()
        except ServerError as e:
            results.failed[f'{file.name}: cleaning'] = str(e)
    finally:
        server.close()
    return results


def run(
    files: list[TestFile],
    urls: Mapping[str, str],
    excluded: Mapping[str, str],
    show: Callable[[TestFile, Results], None] = lambda file, results: None,
) -> Results:
    """All files one after another.

    :param urls: configuration (of ``states.RULES``) -> URL; the tests of files that need another
        one are excluded
    :param excluded: name -> why the test is not judged
    :param show: called after each file
    :raises ServerError: a server is not there, or is not empty
    :raises ValueError: one of the names to exclude is of no test in a file of that name
    """
    names = {name for file in files for name in file.names}
    stems = {file.name for file in files}
    if unknown := {name for name in excluded if name.partition(':')[0] in stems} - names:
        raise ValueError(f'exceptions: expected names of tests; unknown: {sorted(unknown)}')
    for url in dict.fromkeys(urls.values()):
        with contextlib.closing(Server(url)) as server:
            server.require_empty()
    total = Results()
    for file in files:
        rules = file.state.rules
        if rules in urls:
            results = run_file(file, urls[rules], excluded)
        else:
            reason = f'no server with the configuration "{rules}" was named'
            results = Results(excluded=dict.fromkeys(file.names, reason))
        show(file, results)
        total.add(results)
    return total
