# SPDX-License-Identifier: Apache-2.0
"""Output of commands for people, without characters that their terminal would obey."""

import json
import sys
from collections.abc import Iterable
from typing import Any, TextIO

import msgspec

from gantt.core.messages import quoting


def print_lines(*lines: str, file: TextIO | None = None) -> None:
    """Print lines; each stays one line, whatever it contains.

    :param file: None: standard output
    """
    for line in lines:
        print(quoting.plain_text(line), file=file or sys.stdout)


def show(conf: Any, data: Any, lines: Iterable[str]) -> None:
    """Print ``data`` as one line of JSON where the command is to, else ``lines`` for people."""
    if conf.command.format == 'json':
        print(json.dumps(msgspec.to_builtins(data)))
    else:
        print_lines(*lines)
