# SPDX-License-Identifier: Apache-2.0
"""Nova's own filters and weighers, asked."""

import json
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import nova_process
from tests.nova_process import CannotAsk

SIDE = Path(__file__).parent / 'nova_side'


class Oracle(nova_process.NovaProcess):
    """One process that answers; to be used as a context."""

    def __init__(self) -> None:
        # What some filters say depends on the order of a set.
        super().__init__(SIDE, PYTHONHASHSEED='0')

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
            yield self.read()
        writer.join()

    def _write(self, lines: list[str]) -> None:
        for line in lines:
            self.send(line)


def start() -> tuple[Oracle, dict[str, Any]] | str:
    """A process that answers, and what it is; text: why there is none."""
    try:
        oracle = Oracle()
    except (nova_process.NoNova, OSError) as e:
        return str(e)
    try:
        return oracle, oracle.ask({})
    except (RuntimeError, OSError, ValueError) as e:
        oracle.__exit__()
        return str(e).splitlines()[-1]


def start_or_skip() -> tuple[Oracle, dict[str, Any]]:
    """As :func:`start`; where there is none the test is skipped."""
    started = start()
    if isinstance(started, str):
        pytest.skip(f'NO NOVA: {started}; {nova_process.HELP}')
    return started
