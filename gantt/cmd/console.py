# SPDX-License-Identifier: Apache-2.0
"""What commands print for people: nothing in it that their terminal would obey."""

import sys
from typing import TextIO

from gantt.core.messages import quoting


def print_lines(*lines: str, file: TextIO | None = None) -> None:
    """Print lines; each stays one line, whatever stands in it.

    :param file: None: standard output
    """
    for line in lines:
        print(quoting.plain(line), file=file or sys.stdout)
