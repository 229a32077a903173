# SPDX-License-Identifier: Apache-2.0
"""A request's spec from arguments or a file, shared by ``select`` and ``capacity``."""

import argparse
from typing import Any

from gantt.cli import parsing
from gantt.cli.endpoint import Exit, Failure, load_body
from gantt.cli.groups import POLICIES

KINDS = ('host', 'pool')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that make a spec."""
    many: dict[str, Any] = {'action': 'append', 'default': []}
    parser.add_argument(
        '--resource',
        type=parsing.resource,
        metavar='CLASS=AMOUNT',
        **many,
        help='what each member needs, e.g. VCPU=2, MEMORY_MB=4096, DISK_GB=20',
    )
    parser.add_argument(
        '--kind',
        choices=KINDS,
        help='what it is placed on; pools are providers that are no hosts (default: host)',
    )
    parser.add_argument(
        '--max-resource',
        type=parsing.resource,
        metavar='CLASS=AMOUNT',
        **many,
        help='of a class where as much as there is will do: at most so much',
    )
    parser.add_argument(
        '--devices',
        type=parsing.devices,
        metavar='CLASS=AMOUNT[xCOUNT]',
        **many,
        help='so many devices of the host, each with the amount free, e.g. VGPU=500x2; '
        'CLASS=whole takes all that a device has',
    )
    parser.add_argument('--zone', help='the availability zone')
    parser.add_argument('--trait', metavar='TRAIT', **many, help='a trait the host must have')
    parser.add_argument(
        '--forbid-trait', metavar='TRAIT', **many, help='a trait the host must not have'
    )
    parser.add_argument(
        '--member-of', metavar='AGGREGATE', **many, help='an aggregate the host must be in'
    )
    parser.add_argument('--group', metavar='UUID', help='the server group the members belong to')
    parser.add_argument(
        '--member',
        metavar='NAME',
        help='the member of the planned --group whose place it takes, such as web or web-2',
    )
    parser.add_argument(
        '--group-policy',
        choices=POLICIES,
        help='its policy, where Gantt does not know the group yet',
    )
    parser.add_argument('--host', help='ask for this host; it is filtered like any other')
    parser.add_argument('--ignore-host', metavar='HOST', **many, help='a host not to be taken')
    parser.add_argument(
        '--rule',
        metavar='RULE',
        **many,
        help='a rule for the hosts, e.g. \'drop 1: location in "site1.room2"\'',
    )
    parser.add_argument(
        '--hint',
        type=parsing.hint,
        metavar='NAME=VALUE',
        **many,
        help='a hint for filters; one with several values is given several times',
    )
    parser.add_argument('--flavor', metavar='NAME', help='the name of the flavor, for the record')
    parser.add_argument('--project', help='the project of the consumers')
    parser.add_argument(
        '--request-file',
        metavar='FILE',
        help='the request as JSON or YAML, "-" for standard input; arguments go before it',
    )


def body(args: argparse.Namespace) -> dict[str, Any]:
    """Return a request body with its spec: the file's, overlaid with the arguments.

    :raises Failure: nothing to place, or a file of another form
    """
    request: dict[str, Any] = {}
    _check_group(args)
    if args.request_file:
        request = load_body(args.request_file)
        if not isinstance(request, dict):
            raise Failure(f'{args.request_file}: expected one object', Exit.USAGE)
        if 'spec' not in request:
            request = {'spec': request}
        if not isinstance(request['spec'], dict):
            raise Failure(f'{args.request_file}: spec: expected an object', Exit.USAGE)
    spec = request.setdefault('spec', {})
    given = _given_fields(args)
    if 'tree' in given and isinstance(spec.get('tree'), dict):
        given['tree'] = spec['tree'] | given['tree']
    spec.update(given)
    hints = _hints_of_arguments(args)
    if hints:
        file_hints = spec.setdefault('hints', {})
        if not isinstance(file_hints, dict):
            raise Failure(f'{args.request_file}: spec.hints: expected an object', Exit.USAGE)
        file_hints.update(hints)
    if not spec.get('resources'):
        present_keys = ', '.join(map(str, spec)) or 'nothing'
        prefix = f'{args.request_file}: its spec has {present_keys}, and no resources; '
        raise Failure(
            f'{prefix if args.request_file else ""}what is to be placed? Name it with --resource, '
            'e.g. --resource VCPU=2 --resource MEMORY_MB=4096, or as resources of the spec in a '
            '--request-file',
            Exit.USAGE,
        )
    return request


def _check_group(args: argparse.Namespace) -> None:
    """Check that --group-policy and --member come with --group.  :raises Failure: they do not"""
    if args.group_policy and not args.group:
        raise Failure('--group-policy needs --group, which is not given', Exit.USAGE)
    if args.member and not args.group:
        raise Failure('--member needs --group, which is not given', Exit.USAGE)


def _hints_of_arguments(args: argparse.Namespace) -> dict[str, list[str]]:
    hints: dict[str, list[str]] = {}
    for name, value in (*args.hint, *(('rules', rule) for rule in args.rule)):
        hints.setdefault(name, []).append(value)
    return hints


def _given_fields(args: argparse.Namespace) -> dict[str, Any]:
    group = {'uuid': args.group, 'policy': args.group_policy} if args.group else None
    if group is not None and args.member:
        group['member'] = args.member
    requested = {
        'resources': dict(args.resource),
        'kind': args.kind,
        'max_resources': dict(args.max_resource),
        'tree': args.devices and {'devices': args.devices},
        'availability_zone': args.zone,
        'required_traits': args.trait,
        'forbidden_traits': args.forbid_trait,
        'member_of': [[name] for name in args.member_of],
        'destination': args.host and {'host': args.host},
        'ignore_hosts': args.ignore_host,
        'flavor': args.flavor and {'name': args.flavor},
        'project_id': args.project,
        'group': group,
    }
    return {name: value for name, value in requested.items() if value}
