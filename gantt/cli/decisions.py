# SPDX-License-Identifier: Apache-2.0
"""``gantt decision``, ``gantt explain`` and ``gantt replay``: stored decisions."""

import argparse
import json
from typing import Any

from gantt.cli import base, parsing, text
from gantt.cli.endpoint import Exit
from gantt.cli.text import TextColumn

OUTCOMES = (
    'placed',
    'no_valid_host',
    'conflict',
    'busy',
    'expired',
    'unknown',
    'cancelled',
    'reused',
    'failed',
)

ID_HELP = (
    'a decision id, a request id, or a unique prefix of either; else the uuid of a server or '
    'the id of a request to Nova (req-...): of these the newest decision'
)


class DecisionList(base.Lister):
    """List the decisions, newest first."""

    may_watch = True
    path = '/v1/decisions'
    list_key = 'decisions'
    empty_message = 'no stored decision matches'
    columns = (
        TextColumn('DECISION', lambda r: text.short_id(r['id'])),
        TextColumn('REQUEST', lambda r: text.short_id(r['request_id'])),
        TextColumn('OUTCOME', lambda r: text.outcome_text(r['outcome'], r['kind'])),
        TextColumn(
            'AGE',
            lambda r: text.age_text(r['age_seconds']),
            align_right=True,
            sort_key='age_seconds',
        ),
        TextColumn('WHY', text.value_of_key('reason'), min_width=20),
    )

    arguments = (
        base.arg('--outcome', choices=OUTCOMES, help='only those that ended so'),
        base.arg('--consumer', metavar='UUID', help='only those about this one, such as a server'),
    )

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        """Return the filters."""
        return {'outcome': args.outcome, 'consumer': args.consumer}


class DecisionShow(base.Show):
    """Show one decision in a few lines; "gantt explain" tells the whole story."""

    arguments = (base.arg('decision', help=ID_HELP),)

    path = '/v1/decisions/{decision}'

    def lines(self, decision: dict[str, Any]) -> list[str]:
        lines = [
            f'decision {decision["id"]}: '
            f'{text.outcome_text(decision["outcome"], decision["kind"])}',
            f'  request   {decision["request_id"]}',
            f'  made      {text.age_text(decision["age_seconds"])} ago by '
            f'{decision["worker"] or "-"}',
            f'  project   {decision["project_id"] or "-"}',
        ]
        if decision.get('origin'):
            lines.append(f'  asked as  {decision["origin"]}')
        if decision['reason']:
            lines += text.wrap(f'  because   {decision["reason"]}', self.width, ' ' * 12)
        lines.append(f'the whole story: gantt explain {text.short_id(decision["id"])}')
        return lines


class Explain(base.Show):
    """Explain a decision: what each filter removed, how the finalists scored, what was near."""

    arguments = (
        base.arg('id', help=ID_HELP),
        base.arg('--host', help='say what became of this host as well'),
    )

    path = '/v1/decisions/{id}'

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        return {'explain': True, 'host': args.host}

    def lines(self, explanation: dict[str, Any]) -> list[str]:
        return list(explanation['lines'])


class Replay(base.Base):
    """Make a decision again on the hosts as they were, with other settings where given.

    Without other settings it has to come out the same, bit for bit, unless the
    configuration has changed since: then, and only then, the exit code is 1.
    """

    id_help = 'a decision id, a request id, or a unique prefix of either'

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the decision, and other settings."""
        parser.add_argument('id', help=self.id_help)
        many: dict[str, Any] = {'action': 'append', 'default': []}
        parser.add_argument(
            '--set',
            dest='options',
            type=setting,
            metavar='OPTION=VALUE',
            **many,
            help='an option of a filter or weigher, e.g. ram_weight_multiplier=2',
        )
        parser.add_argument(
            '--filter', metavar='NAME', **many, help='run these filters only, in this order'
        )
        parser.add_argument('--weigher', metavar='NAME', **many, help='ask these weighers only')
        parser.add_argument(
            '--subset-size',
            type=parsing.whole_number(1, 100_000),
            metavar='N',
            help='pick at random among so many best',
        )
        parser.add_argument(
            '--shuffle', action='store_true', help='pick at random among equally good ones'
        )
        parser.add_argument(
            '--seed',
            type=parsing.whole_number(0, 2**62),
            metavar='N',
            help='another seed for what is random',
        )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """POST and print."""
        body = self.settings(parsed_args)
        path = f'/v1/decisions/{base.path_part(parsed_args.id)}/replay'
        answer = self.endpoint.post(path, body)
        self.show(parsed_args, answer, answer['lines'])
        return Exit.PLACED if answer['same'] or body else Exit.TROUBLE

    def settings(self, args: argparse.Namespace) -> dict[str, Any]:
        """Return the other settings; empty: as it was."""
        edits = {
            'options': dict(args.options),
            'filters': args.filter or None,
            'weighers': args.weigher or None,
            'host_subset_size': args.subset_size,
            'shuffle_best': args.shuffle or None,
            'seed': args.seed,
        }
        return {name: value for name, value in edits.items() if value not in (None, {})}


def setting(value: str) -> tuple[str, Any]:
    """Parse an argument ``ram_weight_multiplier=2.0``; the value as JSON, else as text."""
    name, equals, rest = value.partition('=')
    if not (equals and name):
        raise argparse.ArgumentTypeError(f'expected OPTION=VALUE, got {value!r}')
    try:
        return name, json.loads(rest)
    except ValueError:
        return name, rest
