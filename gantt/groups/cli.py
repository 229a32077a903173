# SPDX-License-Identifier: Apache-2.0
"""``gantt group plan`` and its kin: a group placed as a whole, changed, healed, explained."""

import abc
import argparse
import contextlib
import re
import uuid
from collections.abc import Sequence
from typing import Any

from gantt.cli import base, decisions, parsing, text
from gantt.cli.endpoint import Endpoint, Exit, Failure, OutcomeUnknown, load_body
from gantt.cli.text import TextColumn
from gantt.groups import plan_lines, plan_picture
from gantt.groups.model import group_description

#: Seconds to wait for a plan, and for the transfer of its answer.
BUDGET_SECONDS, GRACE_SECONDS = 60, 15
_NOT_FOUND = 'gantt.not_found'
_FILE_HELP = 'the description of the group as JSON or YAML, "-" for standard input'
_DESCRIPTION_EXAMPLE = '{name: web, count: 3, spec: {resources: {VCPU: 2}}}'
_FILE_HINT = (
    'name the file that describes the group; the least that it has is '
    f'"members: [{_DESCRIPTION_EXAMPLE}]"'
)
_GROUP_ARGUMENT = base.arg('group', help='uuid of the group, or its name in your project')
_REVISION_ARGUMENT = base.arg(
    '--revision',
    type=parsing.whole_number(1, 2**31),
    metavar='N',
    help='change it only if its plan is still of this revision',
)
#: States of members that have a place.
_HELD_STATES = ('planned', 'created', 'running')
#: Fields of a request beside its group.
_REQUEST_FIELDS = ('request_id', 'budget_ms', 'plan_ms', 'lease_seconds', 'dry_run', 'what_if')
_NUMBER = re.compile(r'([+-]?)([0-9]{1,6})(?:\.\.([0-9]{1,6}))?')
_LEASE_TYPE = parsing.whole_number(5, 604_800)


def _new_number(text: str) -> tuple[str, int | str | list[int]]:
    """Return the name of a member and its number, as of ``MEMBER=NUMBER``.

    :raises argparse.ArgumentTypeError: another form
    """
    name, _, number = text.partition('=')
    match = _NUMBER.fullmatch(number)
    if not name or match is None or (match[1] and match[3]):
        raise argparse.ArgumentTypeError(
            f'expected MEMBER=NUMBER, such as web=5, web=3..8, web=+2 or web=-1; got {text!r}'
        )
    sign, least, most = match.groups()
    if most is not None:
        return name, [int(least), int(most)]
    return name, number if sign else int(least)


class _PlanCommand(base.Base):
    """A command that plans a group and prints the places of its members.

    Exit codes: 0 placed, 2 not all that have to be placed can be, 3 gave up after conflicts.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments of the command, then those of time limits and the lease."""
        super().add_arguments(parser)
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
            type=parsing.whole_number(1, 600),
            metavar='SECONDS',
            help=f'wait for so long, queueing included (default: {BUDGET_SECONDS})',
        )
        parser.add_argument(
            '--improve',
            type=parsing.number(0.001, 120),
            metavar='SECONDS',
            help='improve the plan for so long (default: as configured)',
        )
        parser.add_argument(
            '--lease',
            type=_LEASE_TYPE,
            metavar='SECONDS',
            help='hold the places so long (default: as configured)',
        )
        parser.add_argument(
            '--request-id',
            metavar='UUID',
            help='repeat a request under its id: it has the effect of one',
        )

    @abc.abstractmethod
    def request_of(self, args: argparse.Namespace) -> tuple[str, str, dict[str, Any]]:
        """Return the method, path and body of the request."""

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Request a plan and print the places of the members."""
        method, path, body = self.request_of(parsed_args)
        body |= _timing_fields(parsed_args)
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
            self.changes_made = [f'it may have been planned; repeat it with {again} to find out']
        try:
            answer = self.endpoint.call(
                method, path, {}, body, _budget_seconds(body) + GRACE_SECONDS
            )
        except OutcomeUnknown as e:
            e.notes.extend(self.changes_made)
            raise
        except Failure as e:
            details = e.error.get('details') or {}
            if details.get('planned'):
                return self.show_planned(parsed_args, body['group'], e)
            e.notes.extend(plan_lines.relaxation_lines(details.get('relaxations') or ()))
            raise
        self.show(parsed_args, answer, plan_lines.answer_lines(answer, self.width))
        missing = bool(answer['plan'] and answer['plan']['missing'])
        if missing and answer.get('zones_not_queried'):
            return Exit.TROUBLE
        return Exit.NO_VALID_HOST if missing else Exit.PLACED

    def show_planned(
        self, args: argparse.Namespace, group: dict[str, Any], failure: Failure
    ) -> int:
        """Show the plan that a group has already, where it is of this description.

        :raises Failure: it is of another one; says how these differ
        """
        plan = self.endpoint.get(_plan_path(failure.error['details']['group']))
        if plan.get('problem'):
            raise failure
        stored = group_description.read(plan['description'])
        described = group_description.read(group | {'uuid': stored.uuid}, inside='group')
        differences = group_description.changes(stored, described)
        if differences:
            failure.notes += ['it would change:', *(f'  {line}' for line in differences)]
            failure.notes.append('"gantt group change" with this file does so')
            raise failure
        held = sum(member['state'] in _HELD_STATES for member in plan['members'])
        least = sum(member.least for member in stored.members)
        if held < least:
            failure.notes.append(
                f'it is as this file has it, but {held} of {least} members have a place: '
                '"gantt group change" with this file places them again'
            )
            raise failure
        lines = ['planned already as this file has it: nothing changes', '']
        return self.show(args, plan, [*lines, *plan_lines.plan_lines(plan, self.width)])


class GroupPlanCreate(_PlanCommand):
    """Plan a group as a whole, and reserve resources for each of its members.

    Exit codes: 0 placed, 2 not all that have to be placed can be, 3 gave up after conflicts.
    """

    arguments = (
        base.arg('file', metavar='FILE', help=_FILE_HELP),
        base.arg('--uuid', help='of the server group (default: that of the file, or a new one)'),
        base.arg('--project', help='the project that the members belong to'),
    )

    def request_of(self, args: argparse.Namespace) -> tuple[str, str, dict[str, Any]]:
        body = _request_from_file(args.file)
        if args.uuid:
            body['group']['uuid'] = args.uuid
        if args.project:
            body['project_id'] = args.project
        return 'POST', '/v1/group-plans', body


class GroupChange(_PlanCommand):
    """Change a group to the description in a file; members that are placed stay where they are.

    Exit codes: 0 placed, 2 not all that have to be placed can be, 3 gave up after conflicts.
    """

    arguments: Sequence[base.Argument] = (
        base.arg('file', metavar='FILE', help=f'{_FILE_HELP}; all of it as it is to be'),
        base.arg('--uuid', help='of the group, where the file does not say it'),
        _REVISION_ARGUMENT,
        base.arg('--heal', action='store_true', help='place those anew whose hosts are down'),
        base.arg(
            '--replace',
            action='append',
            default=[],
            metavar='MEMBER',
            help='place this member anew, wherever it is; may be repeated',
        ),
    )

    def request_of(self, args: argparse.Namespace) -> tuple[str, str, dict[str, Any]]:
        body = _request_from_file(args.file)
        group = body['group']
        group['uuid'] = args.uuid or group.get('uuid')
        if not group['uuid'] and group.get('name'):
            group['uuid'] = self.endpoint.get(_plan_path(str(group['name'])))['group']
        if not group['uuid']:
            raise Failure(
                f'{args.file}: name, uuid: which group is to be changed? Write one of them there, '
                'or name it with --uuid',
                Exit.USAGE,
            )
        body |= {'heal': args.heal or bool(body.get('heal'))}
        if args.replace:
            body['replace'] = args.replace
        if args.revision:
            body['revision'] = args.revision
        return 'PUT', _plan_path(str(group['uuid'])), body


class GroupScale(_PlanCommand):
    """Change the numbers of members of a planned group; members that are placed stay.

    Where there are to be fewer, places go that no create has used, those first without which the
    policies are violated least: --dry-run names them.
    Exit codes: 0 placed, 2 not all that have to be placed can be, 3 gave up after conflicts.
    """

    arguments = (
        _GROUP_ARGUMENT,
        base.arg(
            'members',
            nargs='+',
            metavar='MEMBER=NUMBER',
            type=_new_number,
            help='its number, LEAST..MOST, or a difference: web=5, web=3..8, web=+2, web=-1',
        ),
        _REVISION_ARGUMENT,
    )

    def request_of(self, args: argparse.Namespace) -> tuple[str, str, dict[str, Any]]:
        numbers = dict(args.members)
        if len(numbers) < len(args.members):
            raise Failure('MEMBER=NUMBER: expected each member once', Exit.USAGE)
        body: dict[str, Any] = {'members': numbers}
        if args.revision:
            body['revision'] = args.revision
        return 'POST', f'{_plan_path(args.group)}/scale', body


class GroupHeal(_PlanCommand):
    """Place the members again whose hosts are down; other members stay where they are.

    Exit codes: 0 placed, 2 not all that have to be placed can be, 3 gave up after conflicts.
    """

    arguments = (
        _GROUP_ARGUMENT,
        base.arg(
            '--replace',
            action='append',
            default=[],
            metavar='MEMBER',
            help='place this member anew as well, wherever it is; may be repeated',
        ),
    )

    def request_of(self, args: argparse.Namespace) -> tuple[str, str, dict[str, Any]]:
        path = _plan_path(args.group)
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
    list_key = 'group_plans'
    empty_message = 'no group has a plan'
    columns = (
        TextColumn('GROUP', text.value_of_key('group')),
        TextColumn('NAME', lambda r: r.get('name') or '-'),
        TextColumn(
            'MEMBERS', lambda r: plan_lines.states_text(r.get('states') or {}), min_width=12
        ),
        TextColumn(
            'AGE',
            lambda r: text.age_text(r['age_seconds']),
            align_right=True,
            sort_key='age_seconds',
        ),
        TextColumn(
            'HELD',
            lambda r: lease_text(r['lease_seconds']),
            align_right=True,
            sort_key='lease_seconds',
        ),
    )

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        """Return the query, which requests the states of members."""
        return {'states': True}


class GroupExtend(base.Write):
    """Extend the leases of a plan's reservations that no create has used; none gets shorter."""

    arguments = (
        _GROUP_ARGUMENT,
        base.arg(
            '--lease', type=_LEASE_TYPE, required=True, metavar='SECONDS', help='for how long'
        ),
    )
    path = '/v1/group-plans/{group}/lease'

    def body(self, args: argparse.Namespace) -> Any:
        return {'seconds': args.lease}


class GroupRelease(base.Write):
    """Release a plan's reservations that no create has used; created guests are not touched."""

    arguments = (
        _GROUP_ARGUMENT,
        base.arg('--reason', default='', help='why; it is kept with the claims'),
    )
    method = 'DELETE'
    path = '/v1/group-plans/{group}'

    def query(self, args: argparse.Namespace) -> dict[str, Any]:
        return {'reason': args.reason or None}


class GroupShow(base.Base):
    """Show one server group: its policies, its plan, its members with their state and places."""

    may_watch = True
    arguments = (
        base.arg('group', help='its uuid, or, of a planned one, its name in your project'),
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
        base.arg(
            '--picture',
            action='store_true',
            help='draw its plan: domains as columns, hosts as boxes, members on them',
        ),
        base.arg('--svg', action='store_true', help='print that picture as SVG, for a file'),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """GET the group and its plan, and print both, or a picture of the plan."""
        args = parsed_args
        if args.picture or args.svg:
            if args.form != 'text' or (args.picture and args.svg):
                raise Failure('--picture and --svg: expected one of them, and no -f', Exit.USAGE)
            args.check = True
        plan = self._plan(args)
        group = self.endpoint.get(self.path_of(args.group if plan is None else plan['group']))
        if plan is not None and args.state:
            plan['members'] = [
                member for member in plan['members'] if member['state'] in args.state
            ]
        lines = plan_lines.group_lines(group)
        if args.picture or args.svg:
            if plan is None:
                raise Failure(f'there is nothing to draw: group {args.group} has no plan')
            lines = (
                plan_picture.svg_lines(plan)
                if args.svg
                else [*lines, '', *plan_picture.text_lines(plan, self.width)]
            )
        elif plan is None:
            lines += plan_lines.consumer_lines(group['members'])
            if args.check:
                lines.append(plan_lines.NOT_CHECKED_TEXT)
        else:
            lines += plan_lines.plan_lines(plan, self.width)
        return self.show(args, {**group, 'plan': plan}, lines)

    @staticmethod
    def path_of(group: str) -> str:
        """Return the path of a server group."""
        return f'/v1/server-groups/{base.path_part(group)}'

    def _plan(self, args: argparse.Namespace) -> Any:
        """Return the plan; None: the group has none, or the server has no plans."""
        try:
            return self.endpoint.get(_plan_path(args.group), check=args.check)
        except Failure as e:
            if e.error.get('code') == _NOT_FOUND:
                return None
            raise


class ExplainWithPlans(decisions.Explain):
    """Explain a decision: what each filter removed, how the finalists scored, what was near."""

    arguments = (
        base.arg(
            'id',
            help=f'{decisions.ID_HELP}. The uuid of a group, or of a request that planned one: '
            'its plan',
        ),
        *decisions.Explain.arguments[1:],
    )

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Explain the decision; where there is none of that id, the plan of a group."""
        try:
            return super().take_action(parsed_args)
        except Failure as e:
            plan = _plan_of_request(self.endpoint, e, parsed_args.id)
            return self.show(parsed_args, plan, plan_lines.explanation_lines(plan, self.width))


class ReplayWithPlans(decisions.Replay):
    """Make a decision again on the hosts as they were, with other settings where given.

    Without other settings it has to come out the same, bit for bit, unless the
    configuration has changed since: then, and only then, the exit code is 1.
    Of a plan of a group it is checked whether it holds: 1 where a policy is violated.
    """

    id_help = f'{decisions.Replay.id_help}; or uuid of a group'

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Repeat the decision; where there is none of that id, check the plan of a group."""
        try:
            return super().take_action(parsed_args)
        except Failure as e:
            if self.settings(parsed_args):
                raise
            plan = _plan_of_request(self.endpoint, e, parsed_args.id, check=True)
            self.show(parsed_args, plan, plan_lines.check_lines(plan, self.width))
            return Exit.TROUBLE if plan['violated'] else Exit.PLACED


def _plan_of_request(
    endpoint: Endpoint, failure: Failure, wanted: str, *, check: bool = False
) -> Any:
    """Return the plan of a group whose id is that of no decision.

    :raises Failure: ``failure`` itself, where there is no plan either
    """
    plan = None
    if failure.error.get('code') == _NOT_FOUND:
        plan = plan_of(endpoint, wanted, check=check)
    if plan is None:
        raise failure
    return plan


def plan_of(endpoint: Endpoint, wanted: str, *, check: bool = False) -> Any:
    """Return the plan of a group, or the plan that a request changed last; None: no plan.

    :param request_of: uuid of a group, or id of a request
    """
    with contextlib.suppress(ValueError):
        wanted = str(uuid.UUID(wanted))
        try:
            return endpoint.get(_plan_path(wanted), check=check)
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


def lease_text(seconds: float) -> str:
    """Return the remaining lease of reservations as text."""
    return text.age_text(seconds) if seconds > 0 else 'over'


def _plan_path(group: str) -> str:
    return f'/v1/group-plans/{base.path_part(group)}'


def _request_from_file(file: str) -> dict[str, Any]:
    """Return a request with its group, from a file that has either.

    :raises Failure: the file has another form
    """
    request = load_body(file, _FILE_HINT)
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
            f'each with its name and its spec, such as {_DESCRIPTION_EXAMPLE}',
            Exit.USAGE,
        )
    return request


def _timing_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of the request that arguments set."""
    given = (
        args.request_id,
        None if args.budget is None else args.budget * 1000,
        None if args.improve is None else max(1, round(args.improve * 1000)),
        args.lease,
        args.dry_run or None,
        args.what_if or None,
    )
    return {
        name: value for name, value in zip(_REQUEST_FIELDS, given, strict=True) if value is not None
    }


def _budget_seconds(body: dict[str, Any]) -> float:
    """Return the seconds of the budget; an invalid one is left for the server to refuse."""
    budget_ms = body.get('budget_ms')
    if isinstance(budget_ms, int) and 0 < budget_ms <= 600_000:
        return budget_ms / 1000
    return float(BUDGET_SECONDS)
