# SPDX-License-Identifier: Apache-2.0
"""``gantt request``: show, confirm, release, cancel."""

import argparse
from typing import Any

from gantt.cli import base, text
from gantt.cli.claims import COLUMNS


class RequestShow(base.Show):
    """Show a request: its state and its claims."""

    takes = (base.arg('request', help='its id, or a unique prefix of it'),)

    path = '/v1/requests/{request}'

    def lines(self, request: dict[str, Any]) -> list[str]:
        lines = [f'request {request["request_id"]} is {request["state"]}']
        if request['claims']:
            lines += ['', *text.table(COLUMNS, request['claims'], self.width)]
        else:
            lines.append('it has no claims')
        answer = request['answer']
        if answer and answer['decision_id']:
            lines += ['', f'why: gantt explain {answer["decision_id"]}']
        return lines


class _OfConsumers(base.Write):
    """A change to the claims of a request on pools."""

    takes: tuple[Any, ...] = (
        base.arg('request', help='its id'),
        base.arg(
            '--consumer',
            action='append',
            default=[],
            metavar='UUID',
            help='whose claims are meant (default: all of the request)',
        ),
    )

    def body(self, args: argparse.Namespace) -> dict[str, Any]:
        return {'consumers': args.consumer}


class RequestConfirm(_OfConsumers):
    """Say that what a request has of pools is in use: it stays until it is released."""

    path = '/v1/requests/{request}/confirmation'


class RequestRelease(_OfConsumers):
    """Say that what a request has of pools is used no more: its claims end."""

    takes = (*_OfConsumers.takes, base.arg('--reason', default='', help='why'))
    method = 'POST'
    path = '/v1/requests/{request}/release'

    def body(self, args: argparse.Namespace) -> dict[str, Any]:
        return {**super().body(args), 'reason': args.reason}


class RequestCancel(base.Write):
    """Take a request back: its reserved claims are released, it stays cancelled."""

    takes = (
        base.arg('request', help='its id'),
        base.arg('--reason', default='', help='why'),
    )

    method = 'DELETE'
    path = '/v1/requests/{request}'

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        return {'reason': args.reason or None}
