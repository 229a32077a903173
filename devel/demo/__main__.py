# SPDX-License-Identifier: Apache-2.0
"""``python -m devel.demo``: the whole service in one process, shown at work."""

import argparse
import contextlib
import logging
import pathlib
import socket
import sys
import tempfile
import time
from collections.abc import Callable

from devel.demo import say, scenario
from devel.demo.environment import Stage
from devel.demo.groups import GroupDemo
from gantt import exceptions
from gantt.cli import parsing
from gantt.cmd.process_signals import ProcessSignals

NEXT_STEPS = (
    'make demo ARGS=--serve       the same, and it stays up: dashboard and commands to try',
    'doc/source/install/          a service on RabbitMQ and PostgreSQL or MariaDB',
    'doc/source/contributor/write-a-filter.rst    a rule of your own, in minutes',
    'make demo-zones              four zones below one another, and one of them is killed',
)


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = parsing.Parser(prog='python -m devel.demo', description=__doc__.splitlines()[0])
    parser.add_argument(
        '--hosts', type=parsing.whole_number(20, 100_000), default=200, help='fake hosts (200)'
    )
    parser.add_argument(
        '--requests', type=parsing.whole_number(10, 1_000_000), default=1000, help='requests (1000)'
    )
    parser.add_argument(
        '--seed',
        type=parsing.whole_number(0, parsing.SEED_MAX),
        default=1,
        help='of hosts, requests and trouble',
    )
    parser.add_argument('--serve', action='store_true', help='stay up, with the HTTP interface')
    parser.add_argument(
        '--port',
        type=parsing.whole_number(1, 65_535),
        default=8790,
        help='of the HTTP interface (8790)',
    )
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Play everything; return 0 where every promise was kept."""
    options = _arguments(sys.argv[1:] if argv is None else argv)
    with tempfile.TemporaryDirectory(prefix='gantt-demo-') as folder:
        try:
            return _play(options, pathlib.Path(folder))
        except (exceptions.GanttError, RuntimeError) as e:
            print(f'demo: {e}', file=sys.stderr)
            return 1


def _play(given: argparse.Namespace, folder: pathlib.Path) -> int:
    began = time.monotonic()
    say.heading('Gantt: one process, a SQLite database, an in-process broker')
    stage = Stage(folder, given.hosts, given.seed, socket.gethostname())
    logging.getLogger('oslo_messaging').setLevel(logging.ERROR)
    with contextlib.ExitStack() as stack:
        stack.callback(stage.close)
        stage.open()
        say.heading('1. Hosts register and report')
        scenario.register_hosts(stage, given.hosts)
        say.heading('2. An unmodified Nova asks')
        scenario.send_nova_calls(stage)
        say.heading(f'3. A conductor asks {given.requests} times, and hosts are killed')
        tally = scenario.send_requests(stage, given.requests, given.seed)
        say.heading('4. What was placed where')
        scenario.show_placements(tally, stage)
        say.heading('5. Why')
        scenario.explain_decisions(stage, tally)
        say.heading('6. Volumes and addresses: places that are not on hosts')
        pools_hold = played(lambda: scenario.request_pools(stage))
        leased = time.monotonic()
        say.heading('7. A cluster that is placed as a whole')
        cluster_holds = played(GroupDemo(stage, given.seed).play)
        say.heading('8. The audit')
        promises_hold = scenario.audit(stage, leased) and pools_hold and cluster_holds
        say.line(f'all of it took {time.monotonic() - began:.0f} s')
        if given.serve:
            _serve(stage, given.port)
        else:
            say.heading('Next')
            say.block(NEXT_STEPS)
    return 0 if promises_hold else 1


def played(part: Callable[[], bool | None]) -> bool:
    """Play a part; return whether it came to its end, and as it should."""
    try:
        return part() is not False
    except (exceptions.GanttError, RuntimeError) as e:
        say.paragraph(f'this part ends here: {e}')
        return False


def _serve(stage: Stage, port: int) -> None:
    url = stage.serve(port)
    say.heading(f'Serving on {url}; Ctrl-C ends it')
    say.line(f'The dashboard: open {url}/ in a browser. In another terminal, try:')
    say.block(
        [
            '.venv/bin/gantt status',
            '.venv/bin/gantt host list',
            '.venv/bin/gantt select --resource VCPU=4 --resource MEMORY_MB=8192',
            '.venv/bin/gantt capacity --resource VCPU=16 --resource MEMORY_MB=65536',
            '.venv/bin/gantt group plans',
            '.venv/bin/gantt decision list --outcome no_valid_host',
            '.venv/bin/gantt explain <an id from that list>',
            '.venv/bin/gantt host disable fake-00001 --reason "fan swap"',
            f'curl -s {url}/metrics | grep ^gantt_',
        ]
    )
    for _ in ProcessSignals().handle_signals().requests_until_stop():
        say.line('Ctrl-C ends it')


if __name__ == '__main__':
    sys.exit(main())
