# SPDX-License-Identifier: Apache-2.0
"""The command ``gantt``: its commands, the output of failures, and completion by the Tab key.

The script of a shell runs ``gantt`` itself, with ``_ARGCOMPLETE`` in the environment, so that
argcomplete knows the commands and options of the installed version.
"""

import argparse
import functools
import os
import sys
import textwrap
from collections.abc import Sequence
from importlib import metadata
from typing import Any, TextIO

from cliff import app, commandmanager

from gantt.cli import base, endpoint, parsing
from gantt.cli.endpoint import Exit, Failure, OutputUnwritable
from gantt.core.messages import quoting
from gantt.core.messages.near import did_you_mean, nearest_names
from gantt.version import version_string

#: Most commands that are suggested where only the first word matches.
_SIMILAR_MAX = 4
#: Entry points of the commands: ``scheduler_host_list`` is ``gantt host list``.
_GROUP, _PREFIX = 'openstack.scheduler.v1', 'scheduler_'


@functools.cache
def commands() -> dict[str, metadata.EntryPoint]:
    """Return the commands by name; a module is imported when its command is run."""
    entries = metadata.distribution('gantt').entry_points.select(group=_GROUP)
    by_name = {entry.name.removeprefix(_PREFIX).replace('_', ' '): entry for entry in entries}
    return dict(sorted(by_name.items()))


class Commands(commandmanager.CommandManager):
    """The commands of this package; no search among others."""

    def __init__(self) -> None:
        super().__init__(None)
        self.commands.update(commands())

    def add_command(self, name: str, command_class: Any) -> None:
        """Add a command of cliff, unless one of ours has its name."""
        if name not in commands():
            super().add_command(name, command_class)


class Gantt(app.App):
    """The application object of cliff."""

    NAME = 'gantt'

    def build_option_parser(
        self, description: str | None, version: str | None, argparse_kwargs: Any = None
    ) -> Any:
        """Return a parser of the global options, without abbreviations."""
        parser = argparse.ArgumentParser(
            prog='gantt', description=description, add_help=False, allow_abbrev=False
        )
        parser.add_argument(
            '-h',
            '--help',
            action='store_true',
            dest='deferred_help',
            help='show this, or the help of the command',
        )
        parser.add_argument(
            '--version', action='version', version=f'gantt {version}', help='show the version'
        )
        parser.add_argument(
            '--endpoint',
            metavar='URL',
            default=os.environ.get('GANTT_ENDPOINT'),
            help='the URL of the API (environment: GANTT_ENDPOINT; default: the endpoint in the '
            f'catalog of the cloud, without a cloud {endpoint.DEFAULT_URL})',
        )
        parser.add_argument(
            '--os-cloud',
            metavar='NAME',
            help='the cloud of clouds.yaml to log in to (environment: OS_CLOUD, or OS_AUTH_URL '
            'and its kin; default: none, no token is sent)',
        )
        parser.add_argument(
            '--timeout',
            metavar='SECONDS',
            type=parsing.number(0, 86_400, exclusive=True),
            default=60.0,
            help='how long to wait for an answer (default: 60)',
        )
        return parser

    def print_help_if_requested(self) -> None:
        """Print the options, and every command with a line about it."""
        self.parser.print_help(self.stdout)
        self.stdout.write('\ncommands (details: "gantt COMMAND --help"):\n')
        size = max(map(len, commands()))
        for name, entry in commands().items():
            about = (entry.load().__doc__ or '').partition('\n')[0].rstrip('.')
            lines = textwrap.wrap(about, 76 - size)
            self.stdout.write(f'  {name:<{size}}  {lines[0]}\n')
            for line in lines[1:]:
                self.stdout.write(f'  {"":<{size}}  {line}\n')
        raise SystemExit(0)

    def configure_logging(self) -> None:
        """Configure no logging: failures are printed once, by ``main``."""

    def interact(self) -> None:
        """Print a hint where no command is given."""
        self.stderr.write('gantt: which command? "gantt --help" lists them\n')
        raise SystemExit(Exit.USAGE)

    def run_subcommand(self, argv: list[str]) -> int:
        """Find a command, parse its arguments, run it.

        :raises Failure: to be printed by ``main``
        """
        try:
            factory, name, rest = self.command_manager.find_command(argv)
        except ValueError:
            if argv[0].startswith('-'):
                raise Failure(
                    f'{argv[0]!r} is no option of gantt itself; "gantt --help" lists them, '
                    'those of a command come after it',
                    Exit.USAGE,
                ) from None
            hint = did_you_mean(self._similar_commands(argv)) or '; "gantt --help" lists them'
            raise Failure(f'{" ".join(argv)!r} is no command{hint}', Exit.USAGE) from None
        command = factory(self, self.options, name)
        parsed = command.get_parser(f'gantt {name}').parse_args(rest)
        return command.run(parsed)

    def parsers(self) -> dict[str, argparse.ArgumentParser]:
        """Return the parser of each command."""
        return {
            name: entry.load()(self, None, name).get_parser(f'gantt {name}')
            for name, entry in commands().items()
        }

    def _similar_commands(self, argv: list[str]) -> list[str]:
        """Return commands with a similar name, or a similar first word."""
        known_commands = sorted(name for name, _ in self.command_manager)
        first_words = {name.partition(' ')[0] for name in known_commands}
        begins = (
            [argv[0]] if argv[0] in first_words else nearest_names(argv[0], sorted(first_words))
        )
        same_first_word = [name for name in known_commands if name.partition(' ')[0] in begins]
        with_noun = [name for name in known_commands if argv[0] in name.split(' ')[1:]]
        return (
            nearest_names(' '.join(argv[:2]), known_commands)
            or (with_noun or same_first_word)[:_SIMILAR_MAX]
        )


def main(
    argv: Sequence[str] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Run ``gantt`` with ``argv`` and return the exit code."""
    stderr = stderr or sys.stderr
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments, stdout, stderr)
        (stdout or sys.stdout).flush()
        return code
    except Failure as e:
        if isinstance(e, OutputUnwritable):
            _drop_output()
        for line in e.lines('gantt'):
            stderr.write(quoting.plain_text(line) + '\n')
        return int(e.exit_code)
    except BrokenPipeError:
        _drop_output()
        return 141
    except KeyboardInterrupt:
        return 130
    except OSError as e:
        _drop_output()
        stderr.write(f'gantt: {e.strerror or e}\n')
        return int(Exit.TROUBLE)
    except Exception as e:  # a defect, or an answer that no Gantt gives
        message = ' '.join(str(e).split())
        stderr.write(
            f'gantt: an answer is not as expected, or gantt has a defect: '
            f'{type(e).__name__}: {message}\n'
        )
        return int(Exit.TROUBLE)


def _run(arguments: list[str], stdout: TextIO | None, stderr: TextIO) -> int:
    """Run a command and return its exit code.  :raises Failure: to be printed by ``main``"""
    try:
        gantt = Gantt(
            'Ask and steer a Gantt scheduler. Exit codes: 0 placed or done, 2 no valid host, '
            '3 gave up after conflicts, 1 trouble, 64 wrong usage.',
            version_string(),
            Commands(),
            stdout=stdout,
            stderr=stderr,
            deferred_help=True,
        )
        if COMPLETION_VARIABLE in os.environ:
            answer_completion(gantt.parser, gantt.parsers())
        gantt.options, rest = gantt.parser.parse_known_args(arguments)
        if gantt.options.deferred_help:
            if not rest:
                gantt.print_help_if_requested()
            rest.append('--help')
        if not rest:
            gantt.interact()
        return int(gantt.run_subcommand(rest) or 0)
    except SystemExit as e:
        # argparse exits with 2 where the usage is wrong; here 2 is no valid host.
        return int(Exit.USAGE) if e.code == 2 else int(e.code or 0)


def _drop_output() -> None:
    """Redirect standard output to null, so that its buffer does not fail again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


SHELLS = ('bash', 'zsh', 'fish')
#: Set by the script of the shell.
COMPLETION_VARIABLE = '_ARGCOMPLETE'


class Complete(base.Base):
    """Print a script that lets the Tab key complete gantt; for bash, zsh or fish."""

    formats = ('text',)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the shell to complete for."""
        parser.add_argument('shell', choices=SHELLS)

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Print the script."""
        import argcomplete

        shell: str = parsed_args.shell
        code = argcomplete.shellcode(['gantt'], shell=shell)  # nosec B604 # its name, nothing runs
        self.app.stdout.write(code + '\n')
        return 0


def answer_completion(parser: argparse.ArgumentParser, commands: dict[str, Any]) -> None:
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


if __name__ == '__main__':
    sys.exit(main())
