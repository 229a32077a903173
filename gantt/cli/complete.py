# SPDX-License-Identifier: Apache-2.0
"""``gantt complete``: the Tab key of bash, zsh and fish, by argcomplete.

The script of a shell runs ``gantt`` itself, with ``_ARGCOMPLETE`` in the environment, so that
it knows the commands and options of the installed version.
"""

import argparse
from typing import Any

from gantt.cli import base

SHELLS = ('bash', 'zsh', 'fish')
#: Set by the script of the shell.
COMPLETION_VARIABLE = '_ARGCOMPLETE'


class Complete(base.Base):
    """Print a script that lets the Tab key complete gantt; for bash, zsh or fish."""

    forms = ('text',)

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the shell to complete for."""
        parser.add_argument('shell', choices=SHELLS)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Print the script."""
        import argcomplete

        shell: str = parsed_args.shell
        code = argcomplete.shellcode(['gantt'], shell=shell)  # nosec B604 # its name, nothing runs
        self.app.stdout.write(code + '\n')
        return 0


def answer(parser: argparse.ArgumentParser, commands: dict[str, Any]) -> None:
    """Return completions to the shell, and exit, where the shell requests them.

    :param parser: parser of the options before the command
    :param commands: command -> a parser of its arguments
    """
    import argcomplete

    groups: dict[str, Any] = {'': parser.add_subparsers()}
    for name, arguments in commands.items():
        first, _, second = name.partition(' ')
        if not second:
            groups[''].add_parser(first, parents=[arguments], add_help=False)
            continue
        if first not in groups:
            groups[first] = groups[''].add_parser(first).add_subparsers()
        groups[first].add_parser(second, parents=[arguments], add_help=False)
    argcomplete.autocomplete(parser, append_space=True)
