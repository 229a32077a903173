# SPDX-License-Identifier: Apache-2.0
"""``gantt host drain`` and ``gantt host undrain``: empty a host, and revert that."""

import argparse
import time
from typing import Any

from gantt.cli import base, text
from gantt.cli.endpoint import Exit, Failure
from gantt.cli.hosts import HostDisable, HostEnable
from gantt.cli.text import TextColumn

#: Claims that are listed; the rest is counted.
SHOWN_MAX = 20
#: Consecutive reads that may fail while it waits.
FAILURES_MAX = 5
_WORDS = {
    'running': 'run here',
    'allocated': 'written by the API',
    'moving': 'being moved',
    'in_flight': 'not confirmed yet',
}


class HostDrain(HostDisable):
    """Empty a host: let nothing new land there, and show what is left until nothing is."""

    takes = (
        base.arg('host'),
        base.arg(
            '--reason', default='draining', help='why; shown in every verdict (default: draining)'
        ),
        base.arg('--by', help='who says so (default: the user who runs this)'),
        base.arg(
            '--wait', action='store_true', help='end when the host is empty, and show progress'
        ),
        base.arg(
            '--interval',
            metavar='SECONDS',
            type=base.number(0.1, 3600),
            default=5.0,
            help='with --wait: between two looks (default: 5)',
        ),
        base.arg(
            '--for',
            dest='seconds',
            metavar='SECONDS',
            type=base.number(0, 604_800),
            default=3600.0,
            help='with --wait: give up after so long; the host stays disabled (default: 3600)',
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Disable the host, read its drain, and wait where requested."""
        args = parsed_args
        result = self.change(args)
        self.made = [result['message']]
        is_text = args.form == 'text'
        if is_text:
            self.say(f'dry run: {result["message"]}' if result['dry_run'] else result['message'])
        state = self._look(args.host)
        if args.wait and not result['dry_run']:
            state = self._wait(args, state)
        self.show(args, {'change': result, **state}, _lines(state, self.width))
        if args.wait and not result['dry_run'] and not state['is_empty']:
            raise Failure(
                f'host {args.host} is not empty after {args.seconds:g} s; it stays disabled: '
                f'"gantt host drain {args.host} --wait" goes on, '
                f'"gantt host undrain {args.host}" takes it back'
            )
        return Exit.PLACED

    def _look(self, host: str) -> dict[str, Any]:
        drain: dict[str, Any] = self.endpoint.get(f'/v1/hosts/{base.path_part(host)}/drain')
        return drain

    def _wait(self, args: argparse.Namespace, state: dict[str, Any]) -> dict[str, Any]:
        """Wait until the host is empty, or the time is over.

        :raises Failure: it was enabled meanwhile, or its drain cannot be read
        """
        end, failures = time.monotonic() + args.seconds, 0
        before: dict[str, Any] = {}
        while not state['is_empty']:
            if not state['is_draining']:
                raise Failure(f'host {args.host} was enabled meanwhile: it is not drained any more')
            if args.form == 'text' and state['remaining'] != before:
                self.say(_progress(state))
                self.app.stdout.flush()
            before = state['remaining']
            seconds_left = end - time.monotonic()
            if seconds_left <= 0:
                break
            time.sleep(min(args.interval, seconds_left))
            try:
                state, failures = self._look(args.host), 0
            except Failure:
                failures += 1
                if failures >= FAILURES_MAX:
                    raise
        return state


class HostUndrain(HostEnable):
    """Take a drain back: let new claims land on a host again."""


def _progress(state: dict[str, Any]) -> str:
    more = 'more than ' if state['obstacles_truncated'] else ''
    parts = ', '.join(
        f'{count} {_WORDS.get(kind, kind)}' for kind, count in state['remaining'].items() if count
    )
    claims = text.count(state['claims'], 'claim remains', 'claims remain')
    return f'{more}{claims}: {parts}'


_OBSTACLES = (
    TextColumn('CLAIM', lambda r: text.short_id(r['claim']['id'])),
    TextColumn('CONSUMER', lambda r: r['claim']['consumer'], least=8),
    TextColumn('AGE', lambda r: text.age(r['claim']['age_seconds']), right=True),
    TextColumn('WAITS FOR', text.key('remedy'), least=20),
)


def _lines(state: dict[str, Any], width: int) -> list[str]:
    name = state['host']['name']
    lines = []
    if state['is_empty']:
        lines.append(f'host {name} is empty')
    else:
        shown = state['obstacles'][:SHOWN_MAX]
        lines += [_progress(state), *text.table(_OBSTACLES, shown, width)]
        if state['claims'] > len(shown):
            lines.append(f'there are more: gantt claim list --host {name}')
    if state['foreign']:
        used = ', '.join(text.amount(kind, amount) for kind, amount in state['foreign'].items())
        lines += text.wrap(
            f'what runs there outside any claim uses {used}: no drain ends it', width
        )
    return lines
