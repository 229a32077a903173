# SPDX-License-Identifier: Apache-2.0
"""``gantt events``: changes of hosts and their claims, as they happen."""

import argparse
import time
from typing import Any

from gantt.cli import base
from gantt.cli.endpoint import Exit, Failure

#: Seconds that one call waits, and the pause after a failed call.
WAIT_SECONDS, PAUSE_SECONDS = 20, 2.0
#: Calls in a row that may fail.
FAILURES_MAX = 5


class Events(base.Base):
    """Follow what happens to hosts and their claims from now on, until Ctrl-C or --for."""

    forms = ('text', 'json')

    takes = (
        base.arg('--host', help='of this host only'),
        base.arg('--kind', help='of this kind only, such as claimed or disabled'),
        base.arg(
            '--for',
            dest='seconds',
            metavar='SECONDS',
            type=base.number(0, 604_800),
            default=3600.0,
            help='end after so long (default: 3600)',
        ),
        base.arg('--count', type=base.whole_number(1, 1_000_000), help='end after so many events'),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Poll for events, and print a line for each; with json an object for each."""
        args, end = parsed_args, time.monotonic() + parsed_args.seconds
        events_left, failures = args.count or float('inf'), 0
        cursor = self._ask(args, None, 0)['cursor']
        while events_left > 0 and (seconds := end - time.monotonic()) > 0:
            try:
                page = self._ask(args, cursor, min(WAIT_SECONDS, seconds))
            except Failure as e:
                if e.error.get('code') == 'gantt.events_gone':
                    cursor = self._ask(args, None, 0)['cursor']
                    self._warn('some events are missing here: the API does not remember them')
                    continue
                failures += 1
                if e.exit_code != Exit.TROUBLE or failures >= FAILURES_MAX:
                    raise
                time.sleep(min(PAUSE_SECONDS, max(0.0, end - time.monotonic())))
                continue
            cursor, failures = page['cursor'], 0
            for event in page['events'][: int(min(events_left, 1000))]:
                self._show(args.form, event)
                events_left -= 1
            self.app.stdout.flush()
        return Exit.PLACED

    def _ask(self, args: argparse.Namespace, cursor: str | None, wait: float) -> Any:
        return self.endpoint.get(
            '/v1/events',
            after=cursor,
            wait=round(wait, 1),
            limit=1000,
            host=args.host,
            kind=args.kind,
        )

    def _warn(self, sentence: str) -> None:
        self.app.stderr.write(f'gantt: {sentence}\n')

    def _show(self, form: str, event: dict[str, Any]) -> None:
        if form == 'json':
            self._say_json(event)
            return
        by = f' by {event["actor"]}' if event['actor'] else ''
        claim = f' ({event["claim_id"]})' if event['claim_id'] else ''
        self.say(f'{event["at"]} {event["host"]} {event["kind"]}{by}: {event["message"]}{claim}')
