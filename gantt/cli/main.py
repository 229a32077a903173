# SPDX-License-Identifier: Apache-2.0
"""The command ``gantt``: its table of commands, and the output of failures."""

import argparse
import importlib
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, TextIO

from cliff import app, commandmanager

from gantt.cli import base, complete, endpoint
from gantt.cli.endpoint import Exit, Failure, Unwritable
from gantt.core.messages import quoting
from gantt.core.messages.near import did_you_mean, near
from gantt.version import version_string

#: Most commands that are suggested where only the first word matches.
_COMMANDS_MEANT = 4
#: Command -> class; a module is imported when its command is run.
COMMANDS = {
    'status': 'status:Status',
    'site': 'services:Site',
    'service list': 'services:ServiceList',
    'events': 'events:Events',
    'host list': 'hosts:HostList',
    'host show': 'hosts:HostShow',
    'host disable': 'hosts:HostDisable',
    'host enable': 'hosts:HostEnable',
    'host drain': 'draining:HostDrain',
    'host undrain': 'draining:HostUndrain',
    'host history': 'host_history:HostHistory',
    'host remove': 'hosts:HostRemove',
    'aggregate list': 'aggregates:AggregateList',
    'aggregate set': 'aggregates:AggregateSet',
    'aggregate remove': 'aggregates:AggregateRemove',
    'aggregate export': 'as_file:AggregateExport',
    'aggregate diff': 'as_file:AggregateDiff',
    'aggregate apply': 'as_file:AggregateApply',
    'group list': 'groups:GroupList',
    'group show': 'group_plans:GroupShow',
    'group create': 'groups:GroupCreate',
    'group remove': 'groups:GroupRemove',
    'group plan': 'group_plans:GroupPlanCreate',
    'group plans': 'group_plans:GroupPlanList',
    'group change': 'group_plans:GroupChange',
    'group heal': 'group_plans:GroupHeal',
    'group extend': 'group_plans:GroupExtend',
    'group release': 'group_plans:GroupRelease',
    'group export': 'as_file:GroupExport',
    'group diff': 'as_file:GroupDiff',
    'group apply': 'as_file:GroupApply',
    'select': 'select:Select',
    'request show': 'requests:RequestShow',
    'request confirm': 'requests:RequestConfirm',
    'request release': 'requests:RequestRelease',
    'request cancel': 'requests:RequestCancel',
    'decision list': 'decisions:DecisionList',
    'decision show': 'decisions:DecisionShow',
    'explain': 'decisions:Explain',
    'replay': 'replay:Replay',
    'what-if': 'what_if:WhatIf',
    'claim list': 'claims:ClaimList',
    'claim show': 'claims:ClaimShow',
    'claim release': 'claims:ClaimRelease',
    'usage list': 'usages:UsageList',
    'usage show': 'usages:UsageShow',
    'capacity': 'capacity:Capacity',
    'roll-up': 'roll_up:RollUpShow',
    'metric list': 'metrics:MetricList',
    'metric set': 'metrics:MetricSet',
    'metric remove': 'metrics:MetricRemove',
    'quota list': 'quotas:QuotaList',
    'quota show': 'quotas:QuotaShow',
    'quota set': 'quotas:QuotaSet',
    'quota unset': 'quotas:QuotaUnset',
    'zone list': 'zones:ZoneList',
    'zone show': 'zones:ZoneShow',
    'zone tree': 'zone_tree:ZoneTreeShow',
    'zone add': 'zones:ZoneAdd',
    'zone set': 'zones:ZoneSet',
    'zone enable': 'zones:ZoneEnable',
    'zone disable': 'zones:ZoneDisable',
    'zone remove': 'zones:ZoneRemove',
    'parent list': 'zones:ParentList',
    'parent add': 'zones:ParentAdd',
    'parent set': 'zones:ParentSet',
    'parent enable': 'zones:ParentEnable',
    'parent disable': 'zones:ParentDisable',
    'parent remove': 'zones:ParentRemove',
    'provider list': 'providers:ProviderList',
    'provider show': 'providers:ProviderShow',
    'provider create': 'providers:ProviderCreate',
    'provider set': 'providers:ProviderSet',
    'provider delete': 'providers:ProviderDelete',
    'class list': 'vocabulary:ClassList',
    'class create': 'vocabulary:ClassCreate',
    'class delete': 'vocabulary:ClassDelete',
    'trait list': 'vocabulary:TraitList',
    'trait create': 'vocabulary:TraitCreate',
    'trait delete': 'vocabulary:TraitDelete',
    'allocation list': 'allocations:AllocationList',
    'allocation show': 'allocations:AllocationShow',
    'allocation set': 'allocations:AllocationSet',
    'allocation delete': 'allocations:AllocationDelete',
    'complete': 'complete:Complete',
}


class _Later:
    """A command that is imported when it is needed."""

    def __init__(self, name: str, target: str) -> None:
        self.name = name
        self.value = f'gantt.cli.{target}'

    def load(self) -> Any:
        """Import the command."""
        module, _, name = self.value.partition(':')
        return getattr(importlib.import_module(module), name)


class Commands(commandmanager.CommandManager):
    """The table above; no search among installed packages."""

    def __init__(self) -> None:
        super().__init__(None)
        for name, target in COMMANDS.items():
            self.commands[name] = _Later(name, target)  # type: ignore[assignment]

    def add_command(self, name: str, command_class: Any) -> None:
        """Add a command of cliff, unless one of ours has its name."""
        if name not in COMMANDS:
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
            help='the API to ask (environment: GANTT_ENDPOINT; default: what the catalog of the '
            f'cloud says, without a cloud {endpoint.DEFAULT})',
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
            type=base.number(0, 86_400, above=True),
            default=60.0,
            help='how long to wait for an answer (default: 60)',
        )
        return parser

    def print_help_if_requested(self) -> None:
        """Print the options, and every command with a line about it."""
        self.parser.print_help(self.stdout)
        self.stdout.write('\ncommands (details: "gantt COMMAND --help"):\n')
        size = max(map(len, COMMANDS))
        for name, target in COMMANDS.items():
            about = (_Later(name, target).load().__doc__ or '').partition('\n')[0].rstrip('.')
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
            hint = did_you_mean(self._meant(argv)) or '; "gantt --help" lists them'
            raise Failure(f'{" ".join(argv)!r} is no command{hint}', Exit.USAGE) from None
        command = factory(self, self.options, name)
        parsed = command.get_parser(f'gantt {name}').parse_args(rest)
        return command.run(parsed)

    def parsers(self) -> dict[str, argparse.ArgumentParser]:
        """Return the parser of each command."""
        return {
            name: _Later(name, target).load()(self, None, name).get_parser(f'gantt {name}')
            for name, target in COMMANDS.items()
        }

    def _meant(self, argv: list[str]) -> list[str]:
        """Return commands with a similar name, or a similar first word."""
        known_commands = sorted(name for name, _ in self.command_manager)
        first_words = {name.partition(' ')[0] for name in known_commands}
        begins = [argv[0]] if argv[0] in first_words else near(argv[0], sorted(first_words))
        same_first_word = [name for name in known_commands if name.partition(' ')[0] in begins]
        with_noun = [name for name in known_commands if argv[0] in name.split(' ')[1:]]
        return (
            near(' '.join(argv[:2]), known_commands)
            or (with_noun or same_first_word)[:_COMMANDS_MEANT]
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
        if isinstance(e, Unwritable):
            _drop_output()
        for line in e.lines('gantt'):
            stderr.write(quoting.plain(line) + '\n')
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
        if complete.COMPLETION_VARIABLE in os.environ:
            complete.answer(gantt.parser, gantt.parsers())
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


if __name__ == '__main__':
    sys.exit(main())
