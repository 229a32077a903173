# SPDX-License-Identifier: Apache-2.0
"""``gantt request``: show, cancel."""

import argparse
from typing import Any

from gantt.cli import base, text
from gantt.cli.claims import COLUMNS


class RequestShow(base.Base):
    """Show a request: its state and its claims."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which."""
        parser.add_argument('request', help='its id, or a unique prefix of it')

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Fetch and print."""
        path = f'/v1/requests/{base.path_part(parsed_args.request)}'
        request = self.endpoint.get(path)
        return self.show(parsed_args.form, request, _lines(request, self.width))


def _lines(request: dict[str, Any], width: int) -> list[str]:
    lines = [f'request {request["request_id"]} is {request["state"]}']
    if request['claims']:
        lines += ['', *text.table(COLUMNS, request['claims'], width)]
    else:
        lines.append('it has no claims')
    answer = request['answer']
    if answer and answer['decision_id']:
        lines += ['', f'why: gantt explain {answer["decision_id"]}']
    return lines


class RequestCancel(base.Write):
    """Take a request back: its reserved claims are released, it stays cancelled."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Which, why."""
        parser.add_argument('request', help='its id')
        parser.add_argument('--reason', default='', help='why')

    def change(self, args: argparse.Namespace) -> dict[str, Any]:
        """DELETE it."""
        path = f'/v1/requests/{base.path_part(args.request)}'
        return self.endpoint.delete(path, reason=args.reason or None, dry_run=args.dry_run)
