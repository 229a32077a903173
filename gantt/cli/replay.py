# SPDX-License-Identifier: Apache-2.0
"""``gantt replay``: a stored decision repeated, as it was or with other settings."""

import argparse
import json
from typing import Any

from gantt.cli import base, plan_lines
from gantt.cli.endpoint import Exit, Failure
from gantt.cli.group_plans import plan_of


class Replay(base.Base):
    """Make a decision again on the hosts as they were, with other settings where given.

    Without other settings it has to come out the same, bit for bit, unless the
    configuration has changed since: then, and only then, the exit code is 1.
    Of a plan of a group it is checked whether it holds: 1 where a policy is violated.
    """

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the decision, and other settings."""
        parser.add_argument(
            'id',
            help='a decision id, a request id, or a unique prefix of either; or uuid of a group',
        )
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
            type=base.whole_number(1, 100_000),
            metavar='N',
            help='pick at random among so many best',
        )
        parser.add_argument(
            '--shuffle', action='store_true', help='pick at random among equally good ones'
        )
        parser.add_argument(
            '--seed',
            type=base.whole_number(0, 2**62),
            metavar='N',
            help='another seed for what is random',
        )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """POST and print."""
        settings = {
            'options': dict(parsed_args.options),
            'filters': parsed_args.filter or None,
            'weighers': parsed_args.weigher or None,
            'host_subset_size': parsed_args.subset_size,
            'shuffle_best': parsed_args.shuffle or None,
            'seed': parsed_args.seed,
        }
        body = {name: value for name, value in settings.items() if value not in (None, {})}
        path = f'/v1/decisions/{base.path_part(parsed_args.id)}/replay'
        try:
            answer = self.endpoint.post(path, body)
        except Failure as e:
            plan = None
            if e.error.get('code') == 'gantt.not_found' and not body:
                plan = plan_of(self.endpoint, parsed_args.id, check=True)
            if plan is None:
                raise
            self.show(parsed_args, plan, plan_lines.checked(plan, self.width))
            return Exit.TROUBLE if plan['violated'] else Exit.PLACED
        self.show(parsed_args, answer, answer['lines'])
        return Exit.PLACED if answer['same'] or body else Exit.TROUBLE


def setting(value: str) -> tuple[str, Any]:
    """Parse an argument ``ram_weight_multiplier=2.0``; the value as JSON, else as text."""
    name, equals, rest = value.partition('=')
    if not (equals and name):
        raise argparse.ArgumentTypeError(f'expected OPTION=VALUE, got {value!r}')
    try:
        return name, json.loads(rest)
    except ValueError:
        return name, rest
