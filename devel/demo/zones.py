# SPDX-License-Identifier: Apache-2.0
"""``python -m devel.demo.zones``: four zones, a process each, shown at work."""

import argparse
import contextlib
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, NoReturn

from devel.demo import say, zone_scenario
from devel.demo.zone_processes import FourZones
from gantt import exceptions
from gantt.cli.endpoint import Failure
from gantt.cli.parsing import Parser

NEXT_STEPS = (
    'doc/source/admin/zones.rst         zones below one another, for operators',
    'doc/source/admin/standalone.rst    what each of these processes is',
)
#: As shells have it: ended by Ctrl-C.
INTERRUPTED = 130


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = Parser(prog='python -m devel.demo.zones', description=__doc__.splitlines()[0])
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Play everything; return 0 where every promise was kept."""
    _arguments(sys.argv[1:] if argv is None else argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix='gantt-demo-zones-') as folder:
            return _play(pathlib.Path(folder))
    except KeyboardInterrupt:
        print('demo: interrupted; its processes have ended', file=sys.stderr)
        return INTERRUPTED
    except (exceptions.GanttError, Failure, OSError, RuntimeError, subprocess.TimeoutExpired) as e:
        print(f'demo: {e}', file=sys.stderr)
        return 1


def _interrupt(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def _play(folder: pathlib.Path) -> int:
    began = time.monotonic()
    say.heading('Gantt: four zones, for each a process, a SQLite database and no broker')
    tree = FourZones(folder, zone_scenario.SHAPES)
    with contextlib.ExitStack() as stack:
        stack.callback(_end, tree)
        tree.start()
        say.line(f'four processes of gantt-standalone run, after {time.monotonic() - began:.0f} s')
        say.heading('1. Zones are put below one another, by their URLs')
        zone_scenario.register_zones(tree)
        say.heading('2. A request for a trait that only hosts two levels down have')
        request = zone_scenario.place_two_levels_down(tree)
        say.heading('3. East is filled; cloud is the last resort')
        promises = [zone_scenario.fill_east(tree)]
        say.heading('4. A zone is killed, and comes back')
        promises.append(zone_scenario.kill_zone(tree, request))
        say.heading('5. The audit of all four zones')
        promises.append(zone_scenario.audit(tree))
        say.line(f'all of it took {time.monotonic() - began:.0f} s')
        say.heading('Next')
        say.block(NEXT_STEPS)
    return 0 if all(promises) else 1


def _end(tree: FourZones) -> None:
    # Whoever presses Ctrl-C twice would leave processes behind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    tree.stop()


if __name__ == '__main__':
    sys.exit(main())
