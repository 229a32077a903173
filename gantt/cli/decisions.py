# SPDX-License-Identifier: Apache-2.0
"""``gantt decision`` and ``gantt explain``."""

import argparse
from typing import Any

from gantt.cli import base, plan_lines, text
from gantt.cli.endpoint import Failure
from gantt.cli.group_plans import plan_of
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


_ID = (
    'a decision id, a request id, or a unique prefix of either; else the uuid of a server or '
    'the id of a request to Nova (req-...): of these the newest decision'
)
_ID_OR_GROUP = f'{_ID}. The uuid of a group, or of a request that planned one: its plan'


class DecisionList(base.Lister):
    """List the decisions, newest first."""

    may_watch = True
    path = '/v1/decisions'
    member = 'decisions'
    nothing = 'no stored decision matches'
    columns = (
        TextColumn('DECISION', lambda r: text.short_id(r['id'])),
        TextColumn('REQUEST', lambda r: text.short_id(r['request_id'])),
        TextColumn('OUTCOME', text.key('outcome')),
        TextColumn('AGE', lambda r: text.age(r['age_seconds']), right=True, by='age_seconds'),
        TextColumn('WHY', text.key('reason'), least=20),
    )

    takes = (
        base.arg('--outcome', choices=OUTCOMES, help='only those that ended so'),
        base.arg('--consumer', metavar='UUID', help='only those about this one, such as a server'),
    )

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        """Return the filters."""
        return {'outcome': args.outcome, 'consumer': args.consumer}


class DecisionShow(base.Show):
    """Show one decision in a few lines; "gantt explain" tells the whole story."""

    takes = (base.arg('decision', help=_ID),)

    path = '/v1/decisions/{decision}'

    def lines(self, decision: dict[str, Any]) -> list[str]:
        lines = [
            f'decision {decision["id"]}: {decision["outcome"]}',
            f'  request   {decision["request_id"]}',
            f'  made      {text.age(decision["age_seconds"])} ago by {decision["worker"] or "-"}',
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

    takes = (
        base.arg('id', help=_ID_OR_GROUP),
        base.arg('--host', help='say what became of this host as well'),
    )

    path = '/v1/decisions/{id}'

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        return {'explain': True, 'host': args.host}

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Explain the decision; where there is none of that id, the plan of a group."""
        try:
            return super().take_action(parsed_args)
        except Failure as e:
            plan = None
            if e.error.get('code') == 'gantt.not_found':
                plan = plan_of(self.endpoint, parsed_args.id)
            if plan is None:
                raise
            return self.show(parsed_args, plan, plan_lines.explained(plan, self.width))

    def lines(self, explanation: dict[str, Any]) -> list[str]:
        return list(explanation['lines'])
