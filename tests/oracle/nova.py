# SPDX-License-Identifier: Apache-2.0
"""Nova's own filters and weighers, asked in another process in an environment of their own.

``make venv-nova`` makes the environment; ``GANTT_TEST_NOVA`` names the Python
of another one.
"""

import json
import os
import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

HERE = Path(__file__).parent
SIDE = HERE / 'nova_side'
VARIABLE = 'GANTT_TEST_NOVA'
HOME = HERE.parent.parent / '.venv-nova'
#: Written when the environment is whole.
MADE = HOME / 'made'
DEFAULT = HOME / 'bin' / 'python'


class CannotAsk(RuntimeError):
    """Nova's objects cannot be made of a question."""


class Oracle:
    """One process that answers; to be used as a context."""

    def __init__(self, python: str) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(('OS_', 'PYTHON'))}
        # What some filters say depends on the order of a set.
        clean['PYTHONHASHSEED'] = '0'
        self._process = subprocess.Popen(
            [python, '-B', str(SIDE)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env=clean,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        self._process.kill()
        self._process.wait()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The answer to one question."""
        return next(self.ask_all([question]))

    def answer(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """As :meth:`ask`, None where Nova cannot make its objects of it."""
        try:
            return self.ask(question)
        except CannotAsk:
            return None

    def ask_all(self, questions: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Answers in order; the next questions are asked while one is looked at."""
        lines = [json.dumps(question) + '\n' for question in questions]
        writer = threading.Thread(target=self._write, args=[lines], daemon=True)
        writer.start()
        for _ in lines:
            yield self._read()
        writer.join()

    def _write(self, lines: list[str]) -> None:
        assert self._process.stdin is not None
        try:
            for line in lines:
                self._process.stdin.write(line)
                self._process.stdin.flush()
        except OSError:
            return  # it ended, and the reader says so

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f'the oracle ended:\n{self._process.stderr.read()[-4000:]}')
        answer = json.loads(line)
        if 'failed' in answer:
            raise CannotAsk(f'the oracle failed:\n{answer["failed"]}')
        return answer


def start() -> tuple[Oracle, dict[str, Any]] | str:
    """A process that answers, and what it is; text: why there is none."""
    python = os.environ.get(VARIABLE) or str(DEFAULT)
    if VARIABLE not in os.environ and not MADE.exists():
        return f'there is no {MADE.parent.name}'
    try:
        oracle = Oracle(python)
    except OSError as e:
        return str(e)
    try:
        return oracle, oracle.ask({})
    except (RuntimeError, OSError, ValueError) as e:
        oracle.__exit__()
        return str(e).splitlines()[-1]


def start_or_skip() -> tuple[Oracle, dict[str, Any]]:
    """As :func:`start`; where there is none the test is skipped."""
    found = start()
    if isinstance(found, str):
        pytest.skip(
            f'NO NOVA: {found}; "make venv-nova" installs it, or set {VARIABLE} to a Python '
            'that has it'
        )
    return found
