# SPDX-License-Identifier: Apache-2.0
"""``gantt group plan`` and its kin: a group placed as a whole, changed, healed, released."""

import abc
import argparse
import contextlib
import uuid
from collections.abc import Sequence
from typing import Any

from gantt.cli import base, plan_lines, text
from gantt.cli.endpoint import Endpoint, Exit, Failure, InDoubt, load_body
from gantt.cli.text import TextColumn

#: Seconds to wait for a plan, and for the transfer of its answer.
BUDGET_SECONDS, GRACE_SECONDS = 60, 15
_NOT_FOUND = 'gantt.not_found'
_FILE = 'the description of the group as JSON or YAML, "-" for standard input'
_EXAMPLE = '{name: web, count: 3, spec: {resources: {VCPU: 2}}}'
_INSTEAD = (
    f'name the file that describes the group; the least that it has is "members: [{_EXAMPLE}]"'
)
_GROUP = base.arg('group', help='uuid of the group')
#: Fields of a request beside its group.
_FIELDS = ('request_id', 'budget_ms', 'plan_ms', 'lease_seconds', 'dry_run', 'what_if')
_LEASE = base.whole_number(5, 604_800)


class _Plans(base.Base):
    """A command that plans a group and prints the places of its members.

    Exit codes: 0 placed, 2 not all that have to be placed can be, 3 gave up after conflicts.
    """

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare those of the command, then limits of time and the lease."""
        super().arguments(parser)
        parser.add_argument(
            '--dry-run', action='store_true', help='claim nothing, only say what would be planned'
        )
        parser.add_argument(
            '--what-if',
            action='store_true',
            help='with --dry-run: plan it without each of its policies too, and say what it costs',
        )
        parser.add_argument(
            '--budget',
            '--wait',
            dest='budget',
            type=base.whole_number(1, 600),
            metavar='SECONDS',
            help=f'wait for so long, queueing included (default: {BUDGET_SECONDS})',
        )
        parser.add_argument(
            '--improve',
            type=base.number(0.001, 120),
            metavar='SECONDS',
            help='improve the plan for so long (default: as configured)',
        )
        parser.add_argument(
            '--lease',
            type=_LEASE,
            metavar='SECONDS',
            help='hold the places so long (default: as configured)',
        )
        parser.add_argument(
            '--request-id',
            metavar='UUID',
            help='repeat a request under its id: it has the effect of one',
        )

    @abc.abstractmethod
    def wanted(self, args: argparse.Namespace) -> tuple[str, str, dict[str, Any]]:
        """Return the method, path and body of the request."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Request a plan and print the places of the members."""
        method, path, body = self.wanted(parsed_args)
        body |= _timing(parsed_args)
        body.setdefault('request_id', str(uuid.uuid4()))
        is_dry = bool(body.get('dry_run'))
        if body.get('what_if') and not is_dry:
            raise Failure(
                '--what-if: expected with --dry-run, as it plans the group once more without each '
                'of its policies, and places nobody; add --dry-run, or leave --what-if out',
                Exit.USAGE,
            )
        if not is_dry:
            again = f'--request-id {body["request_id"]}'
            self.made = [f'it may have been planned; repeat it with {again} to find out']
        try:
            answer = self.endpoint.call(method, path, {}, body, _seconds(body) + GRACE_SECONDS)
        except InDoubt as e:
            e.notes.extend(self.made)
            raise
        except Failure as e:
            details = e.error.get('details') or {}
            e.notes.extend(plan_lines.would_do(details.get('relaxations') or ()))
            raise
        self.show(parsed_args, answer, plan_lines.answered(answer, self.width))
        missing = bool(answer['plan'] and answer['plan']['missing'])
        if missing and answer.get('zones_not_queried'):
            return Exit.TROUBLE
        return Exit.NO_VALID_HOST if missing else Exit.PLACED


class GroupPlanCreate(_Plans):
    """Plan a group as a whole, and hold a place for each of its members.

    Exit codes: 0 placed, 2 not all that have to be placed can be, 3 gave up after conflicts.
    """

    takes = (
        base.arg('file', metavar='FILE', help=_FILE),
        base.arg('--uuid', help='of the server group (default: that of the file, or a new one)'),
        base.arg('--project', help='the project that the members belong to'),
    )

    def wanted(self, args: argparse.Namespace) -> tuple[str, str, dict[str, Any]]:
        body = _described(args.file)
        if args.uuid:
            body['group']['uuid'] = args.uuid
        if args.project:
            body['project_id'] = args.project
        return 'POST', '/v1/group-plans', body


class GroupChange(_Plans):
    """Have a group be as a file describes it now; members that are placed stay where they are.

    Exit codes: 0 placed, 2 not all that have to be placed can be, 3 gave up after conflicts.
    """

    takes: Sequence[base.Argument] = (
        base.arg('file', metavar='FILE', help=f'{_FILE}; all of it as it is to be'),
        base.arg('--uuid', help='of the group, where the file does not say it'),
        base.arg(
            '--revision',
            type=base.whole_number(1, 2**31),
            metavar='N',
            help='change it only if its plan is still of this revision',
        ),
        base.arg('--heal', action='store_true', help='place those anew whose hosts are down'),
        base.arg(
            '--replace',
            action='append',
            default=[],
            metavar='MEMBER',
            help='place this member anew, wherever it is; may be repeated',
        ),
    )

    def wanted(self, args: argparse.Namespace) -> tuple[str, str, dict[str, Any]]:
        body = _described(args.file)
        group = body['group']
        group['uuid'] = args.uuid or group.get('uuid')
        if not group['uuid']:
            raise Failure(
                f'{args.file}: uuid: which group is to be changed? Write it there, or name it '
                'with --uuid',
                Exit.USAGE,
            )
        body |= {'heal': args.heal or bool(body.get('heal'))}
        if args.replace:
            body['replace'] = args.replace
        if args.revision:
            body['revision'] = args.revision
        return 'PUT', _path(str(group['uuid'])), body


class GroupHeal(_Plans):
    """Place those members anew whose hosts are down; the others stay where they are.

    Exit codes: 0 placed, 2 not all that have to be placed can be, 3 gave up after conflicts.
    """

    takes = (
        _GROUP,
        base.arg(
            '--replace',
            action='append',
            default=[],
            metavar='MEMBER',
            help='place this member anew as well, wherever it is; may be repeated',
        ),
    )

    def wanted(self, args: argparse.Namespace) -> tuple[str, str, dict[str, Any]]:
        path = _path(args.group)
        plan = self.endpoint.get(path)
        if plan.get('problem'):
            raise Failure(plan['problem'])
        body = {
            'group': plan['description'],
            'revision': plan['revision'],
            'heal': True,
            'replace': args.replace,
        }
        return 'PUT', path, body


class GroupPlanList(base.Lister):
    """List the plans of groups, with what has become of their members."""

    may_watch = True
    path = '/v1/group-plans'
    member = 'group_plans'
    nothing = 'no group has a plan'
    columns = (
        TextColumn('GROUP', text.key('group')),
        TextColumn('MEMBERS', lambda r: plan_lines.states(r.get('states') or {}), least=12),
        TextColumn('AGE', lambda r: text.age(r['age_seconds']), right=True, by='age_seconds'),
        TextColumn('HELD', lambda r: held(r['lease_seconds']), right=True, by='lease_seconds'),
    )

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        """Request the states of members."""
        return {'states': True}


class GroupExtend(base.Write):
    """Hold the places of a plan that no create has for so long from now on, never shorter."""

    takes = (
        _GROUP,
        base.arg('--lease', type=_LEASE, required=True, metavar='SECONDS', help='for how long'),
    )
    path = '/v1/group-plans/{group}/lease'

    def body(self, args: argparse.Namespace) -> Any:
        return {'seconds': args.lease}


class GroupRelease(base.Write):
    """Give the places of a plan back that no create has; who was created is not touched."""

    takes = (_GROUP, base.arg('--reason', default='', help='why; it is kept with the claims'))
    method = 'DELETE'
    path = '/v1/group-plans/{group}'

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        return {'reason': args.reason or None}


class GroupShow(base.Base):
    """Show one server group: its policies, its plan, its members with their state and places."""

    may_watch = True
    takes = (
        base.arg('group', help='its uuid'),
        base.arg(
            '--check',
            action='store_true',
            help='look whether the members that stand meet the policies as it is now',
        ),
        base.arg(
            '--state',
            action='append',
            default=[],
            choices=plan_lines.STATES,
            help='of its members only those that are so; may be repeated',
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """GET the group and its plan, and print both."""
        args = parsed_args
        group = self.endpoint.get(self.path_of(args.group))
        plan = self._plan(args)
        if plan is not None and args.state:
            plan['members'] = [
                member for member in plan['members'] if member['state'] in args.state
            ]
        lines = plan_lines.of_group(group)
        if plan is None:
            lines += plan_lines.consumers(group['members'])
            if args.check:
                lines.append(plan_lines.NOT_CHECKED)
        else:
            lines += plan_lines.of_plan(plan, self.width)
        return self.show(args, {**group, 'plan': plan}, lines)

    @staticmethod
    def path_of(group: str) -> str:
        """Return the path of a server group."""
        return f'/v1/server-groups/{base.path_part(group)}'

    def _plan(self, args: argparse.Namespace) -> Any:
        """Return the plan; None: the group has none, or the server has no plans."""
        try:
            return self.endpoint.get(_path(args.group), check=args.check)
        except Failure as e:
            if e.error.get('code') == _NOT_FOUND:
                return None
            raise


def plan_of(endpoint: Endpoint, wanted: str, *, check: bool = False) -> Any:
    """Return the plan of a group, or the plan that a request changed last; None: no plan.

    :param wanted: uuid of a group, or id of a request
    """
    with contextlib.suppress(ValueError):
        wanted = str(uuid.UUID(wanted))
        try:
            return endpoint.get(_path(wanted), check=check)
        except Failure as e:
            if e.error.get('code') != _NOT_FOUND:
                raise
    try:
        request = endpoint.get(f'/v1/requests/{base.path_part(wanted)}')
    except Failure:
        return None
    groups = {claim['group'] for claim in request['claims'] if claim['group']}
    plans = [plan_of(endpoint, group, check=check) for group in groups if group != wanted]
    latest = [entry for entry in plans if entry and entry['request_id'] == request['request_id']]
    return latest[0] if latest else None


def held(seconds: float) -> str:
    """Return the remaining lease of places as text."""
    return text.age(seconds) if seconds > 0 else 'over'


def _path(group: str) -> str:
    return f'/v1/group-plans/{base.path_part(group)}'


def _described(file: str) -> dict[str, Any]:
    """Return a request with its group, from a file that has either.

    :raises Failure: the file has another form
    """
    request = load_body(file, _INSTEAD)
    if not isinstance(request, dict):
        raise Failure(f'{file}: expected one object, the description of a group', Exit.USAGE)
    if 'group' not in request:
        request = {'group': request}
    if not isinstance(request['group'], dict):
        raise Failure(f'{file}: group: expected an object', Exit.USAGE)
    if not request['group'].get('members'):
        keys = ', '.join(map(str, request['group'])) or 'nothing'
        raise Failure(
            f'{file}: members: who is to be placed? It has {keys}; expected a list of members, '
            f'each with its name and its spec, such as {_EXAMPLE}',
            Exit.USAGE,
        )
    return request


def _timing(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the request that arguments set."""
    given = (
        args.request_id,
        None if args.budget is None else args.budget * 1000,
        None if args.improve is None else max(1, round(args.improve * 1000)),
        args.lease,
        args.dry_run or None,
        args.what_if or None,
    )
    return {name: value for name, value in zip(_FIELDS, given, strict=True) if value is not None}


def _seconds(body: dict[str, Any]) -> float:
    """Return the seconds of the budget; an invalid one is left for the server to refuse."""
    budget_ms = body.get('budget_ms')
    if isinstance(budget_ms, int) and 0 < budget_ms <= 600_000:
        return budget_ms / 1000
    return float(BUDGET_SECONDS)
