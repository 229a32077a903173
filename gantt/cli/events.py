# SPDX-License-Identifier: Apache-2.0
"""``gantt events``: changes of hosts and their claims, as they happen."""

import argparse
import time
from collections.abc import Sequence
from typing import Any

from gantt.cli import base, choosing, parsing
from gantt.cli.endpoint import Exit, Failure

#: Seconds that one call waits, and the pause after a failed call.
WAIT_SECONDS, PAUSE_SECONDS = 20, 2.0
#: Keys of an event.
KEYS = ('host', 'kind', 'message', 'actor', 'claim_id', 'at')
#: Calls in a row that may fail.
FAILURES_MAX = 5


class Events(base.Base):
    """Follow what happens to hosts and their claims from now on, until Ctrl-C or --for."""

    formats = ('text', 'json', 'yaml', 'csv', 'value')

    arguments = (
        base.arg('--host', help='of this host only'),
        base.arg('--kind', help='of this kind only, such as claimed or disabled'),
        base.arg(
            '--for',
            dest='seconds',
            metavar='SECONDS',
            type=parsing.number(0, 604_800),
            default=3600.0,
            help='end after so long (default: 3600)',
        ),
        base.arg(
            '--count', type=parsing.whole_number(1, 1_000_000), help='end after so many events'
        ),
    )

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Add columns and filters; what is not over has no order but that of time."""
        parser = super().get_parser(prog_name)
        choosing.column_argument(parser, 'columns, in this order: keys')
        choosing.filter_argument(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Poll for events, and print a line for each; with json an object for each."""
        args, end = parsed_args, time.monotonic() + parsed_args.seconds
        # Before there is an event, as a column may not be there.
        fields = choosing.columns_of(args.columns, KEYS)
        for row_filter in args.filter:
            choosing.find_field('--filter', row_filter.name, (), [dict.fromkeys(KEYS)])
        if args.form == 'text' and args.columns:
            args.form = 'value'
        if args.form == 'csv':
            self.show_rows(args, [], fields)
            self.app.stdout.flush()
        events_left, failures = args.count or float('inf'), 0
        cursor = self._fetch_events(args, None, 0)['cursor']
        while events_left > 0 and (seconds := end - time.monotonic()) > 0:
            try:
                page = self._fetch_events(args, cursor, min(WAIT_SECONDS, seconds))
            except Failure as e:
                if e.error.get('code') == 'gantt.events_gone':
                    cursor = self._fetch_events(args, None, 0)['cursor']
                    self._warn('some events are missing here: the API does not remember them')
                    continue
                failures += 1
                if e.exit_code != Exit.TROUBLE or failures >= FAILURES_MAX:
                    raise
                time.sleep(min(PAUSE_SECONDS, max(0.0, end - time.monotonic())))
                continue
            cursor, failures = page['cursor'], 0
            shown = choosing.matching(args.filter, (), page['events'])
            shown = shown[: int(min(events_left, 1000))]
            self._print_events(args, shown, fields)
            events_left -= len(shown)
            self.app.stdout.flush()
        return Exit.PLACED

    def _fetch_events(self, args: argparse.Namespace, cursor: str | None, wait: float) -> Any:
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

    def _print_events(
        self,
        args: argparse.Namespace,
        shown: list[dict[str, Any]],
        fields: Sequence[choosing.Field],
    ) -> None:
        if args.form == 'json':
            for event in shown:
                self._print_json({field.name: field.value(event) for field in fields})
        elif args.form == 'text':
            for event in shown:
                self._print_event(event)
        elif shown:
            self.show_rows(args, shown, fields, header=False)

    def _print_event(self, event: dict[str, Any]) -> None:
        by = f' by {event["actor"]}' if event['actor'] else ''
        claim = f' ({event["claim_id"]})' if event['claim_id'] else ''
        self.print_lines(
            f'{event["at"]} {event["host"]} {event["kind"]}{by}: {event["message"]}{claim}'
        )
