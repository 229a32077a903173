# SPDX-License-Identifier: Apache-2.0
"""Nova itself, in another process and an environment of its own, queried line by line.

``make venv-nova`` makes the environment; ``GANTT_TEST_NOVA`` names the Python
of another one.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Self

VARIABLE = 'GANTT_TEST_NOVA'
HOME = Path(__file__).parents[1] / '.venv-nova'
#: Written when the environment is whole.
MADE = HOME / 'made'
HELP = f'"make venv-nova" installs it, or set {VARIABLE} to a Python that has it'


class CannotAsk(RuntimeError):
    """Nova's classes do not accept their input."""


class NoNova(RuntimeError):
    """There is no environment with Nova."""


def python() -> str:
    """Return the Python that has Nova.

    :raises NoNova: it was not made
    """
    configured = os.environ.get(VARIABLE)
    if configured is None and not MADE.exists():
        raise NoNova(f'there is no {HOME.name}')
    return configured or str(HOME / 'bin' / 'python')


class NovaProcess:
    """A process that answers; to be used as a context.

    :param side: the program, a directory with ``__main__.py``
    :param words: its arguments
    """

    def __init__(self, side: Path, *words: str, **environment: str) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(('OS_', 'PYTHON'))}
        self._process = subprocess.Popen(
            [python(), '-B', str(side), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean | environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        self._process.kill()
        self._process.wait()

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to one query.

        :raises CannotAsk: Nova's classes do not accept it
        :raises RuntimeError: the process ended
        """
        self.send(json.dumps(question) + '\n')
        return self.read()

    def send(self, line: str) -> None:
        """Send a line; a process that ended is noticed by the reader."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError:
            return

    def read(self) -> dict[str, Any]:
        """Return the next answer; raises as :meth:`ask`."""
        assert self._process.stdout is not None and self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f'the process ended:\n{self._process.stderr.read()[-4000:]}')
        answer: dict[str, Any] = json.loads(line)
        if 'failed' in answer:
            raise CannotAsk(f'Nova failed:\n{answer["failed"]}')
        return answer
