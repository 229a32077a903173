# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage placement``: everything from a server that speaks Placement, or to it."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gantt import exceptions, stores
from gantt.cli import endpoint, parsing
from gantt.cli.endpoint import NO_AUTH_TOKEN, Failure
from gantt.cmd import console
from gantt.placement_api.transfer import copying, differences
from gantt.placement_api.transfer.own import OwnSide
from gantt.placement_api.transfer.server import PlacementServer
from gantt.placement_api.transfer.side import PlacementSide
from gantt.stores import AllStores

_TIMEOUT_SECONDS_MAX = 3600.0


def add_commands(add: Any, group: Any) -> None:
    """Add the commands of ``gantt-manage placement``."""
    placement = group('placement', 'All that Placement has, into Gantt and out of it.')
    for name, run, writes in (
        ('import', copy_in, True),
        ('compare', compare, False),
        ('export', copy_out, True),
    ):
        parser = add(placement, name, run, json_too=True, writes=writes)
        parser.add_argument(
            'url',
            metavar='URL',
            help='where /resource_providers is below of, e.g. http://controller:8778/placement',
        )
        credentials = parser.add_mutually_exclusive_group()
        credentials.add_argument(
            '--token',
            help='is sent as it is; without keystone: admin (default, where no cloud is named)',
        )
        credentials.add_argument(
            '--os-cloud',
            metavar='NAME',
            help='the cloud of clouds.yaml to log in to (environment: OS_CLOUD, or OS_AUTH_URL '
            'and its kin)',
        )
        parser.add_argument(
            '--timeout',
            type=parsing.number(0, _TIMEOUT_SECONDS_MAX, exclusive=True),
            default=60.0,
            metavar='SECONDS',
            help='how long one request may take (60)',
        )
        if writes:
            parser.add_argument(
                '--delete',
                action='store_true',
                help='also delete what is there and the other side does not have',
            )


@contextlib.contextmanager
def _open_sides(conf: Any) -> Iterator[tuple[AllStores, PlacementServer]]:
    """Open Gantt and the server."""
    connected = stores.connect(conf)
    try:
        server = server_of(conf.command)
        try:
            yield connected, server
        finally:
            server.close()
    finally:
        connected.database.close()


def server_of(command: Any) -> PlacementServer:
    """Return the server that a command line names, with the credentials that it names.

    :raises Misconfigured: the credentials cannot be used
    """
    is_cloud = command.os_cloud or any(os.environ.get(name) for name in endpoint.LOGIN_VARIABLES)
    if command.token or not is_cloud:
        token = command.token or NO_AUTH_TOKEN
        return PlacementServer(command.url, lambda: token, timeout=command.timeout)
    try:
        session = endpoint.Login(command.os_cloud)
        return PlacementServer(
            command.url,
            _token_text(session.token),
            _token_text(session.token),
            command.timeout,
            session.verify,
        )
    except Failure as e:
        raise _unusable_server_error(e) from None


def _token_text(token: Callable[[], str]) -> Callable[[], str]:
    def call() -> str:
        try:
            return token()
        except Failure as e:
            raise _unusable_server_error(e) from None

    return call


def _unusable_server_error(error: Failure) -> exceptions.Misconfigured:
    return exceptions.Misconfigured(
        option='--os-cloud, OS_CLOUD or OS_AUTH_URL and its kin',
        problem=error.message,
        fix='Or give a token with --token',
    )


def _print_progress(line: str) -> None:
    console.print_lines(line, file=sys.stderr)
    sys.stderr.flush()


def copy_in(conf: Any) -> int:
    """Take all that a server has into Gantt; started again it goes on.

    Only what differs is written. Hosts that report for themselves, and claims of schedulers and
    hosts, stay as they are. 1 where something could not be taken over, which is named.
    """
    with _open_sides(conf) as (connected, server):
        return _copy(conf, server, OwnSide(connected))


def copy_out(conf: Any) -> int:
    """Write all that Gantt has to a server; started again it goes on.

    Only what differs is written. 1 where something was refused, which is named.
    """
    with _open_sides(conf) as (connected, server):
        return _copy(conf, OwnSide(connected), server)


def _copy(conf: Any, source: PlacementSide, target: PlacementSide) -> int:
    report = copying.copy(source, target, _print_progress, conf.command.delete)
    counts = ', '.join(f'{count} {kind}' for kind, count in report.written.items())
    lines = [f'from {source.name} to {target.name}: {counts} written']
    lines += [f'stays as it is here: {line}' for line in report.reported]
    lines += [f'left: {line}' for line in report.left]
    lines += [f'changed until the end, run it again: {line}' for line in report.changing]
    console.show(conf, report, lines)
    return 1 if report.left or report.changing else 0


def compare(conf: Any) -> int:
    """Name each difference between Gantt and a server; 0 only without any."""
    with _open_sides(conf) as (connected, server):
        gantt = OwnSide(connected)
        differing, state, _ = differences.compare(gantt, server, _print_progress)
        lines = [difference.line(gantt.name, server.name) for difference in differing]
        compared = (
            f'{len(state.outlines)} providers, {len(state.consumers)} consumers in {gantt.name}'
        )
        count = f'{len(differing)} differences' if len(differing) > 1 else '1 difference'
        lines.append(f'{count if differing else "no difference"}: {compared}')
        body = {'differences': differing, 'url': server.name}
        console.show(conf, body, lines)
    return 1 if differing else 0
