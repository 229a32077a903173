# SPDX-License-Identifier: Apache-2.0
"""Duration of ``gantt explain``, ``gantt what-if`` and ``gantt replay``, as commands.

Every command is a process of its own, from its start to its exit, against a real
``gantt-api`` beside a real scheduler.  The value is the slower of the medians of
explain (of a refusal and of a placement) and what-if; those with more to do are
stated beside it.  The yardstick is ``gantt --version``: what starting costs.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import functools
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from bench import Result, callers, conditions
from bench.rig import Rig, rig
from gantt import exceptions
from gantt.core.messages.base import derived_id
from gantt.core.messages.report import HostReport, RegisterHost
from gantt.stores import stores_for_url

#: Requests: flavors that fit, and one that no host has room for.
FITS = ('--resource', 'VCPU=4', '--resource', 'MEMORY_MB=8192')
TOO_MUCH = ('--resource', 'VCPU=200000', '--resource', 'MEMORY_MB=8192')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--hosts', type=int, default=10_000)
    parser.add_argument('--repeats', type=int, default=7)


def fill(made: Rig, hosts: int) -> None:
    """Write hosts straight into the database, each registered and reported once.

    Their memory use beside claims differs, so that scores do.
    """
    store = stores_for_url(made.database)

    def part(numbers: range) -> None:
        reports = []
        messages = [RegisterHost(name=f'cmp-{n:05}', boot_nonce='bench') for n in numbers]
        outcomes = store.reports.register_hosts(messages)
        for number, outcome in zip(numbers, outcomes, strict=True):
            if isinstance(outcome, exceptions.GanttError):
                raise outcome
            registered, _ = outcome
            report = HostReport(
                name=registered.name,
                epoch=registered.epoch,
                sequence=1,
                full=True,
                running=[],
                pending=[],
                inventories=callers.AMPLE,
                foreign={'MEMORY_MB': 1024 * (number % 97)},
                traits=[f'CUSTOM_{number % 7}'],
                zone=f'az{number % 3}',
            )
            reports.append(report)
        store.reports.apply_reports(reports)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(part, [range(i, min(i + 64, hosts)) for i in range(0, hosts, 64)]))
    store.database.close()


def command(endpoint: str, *words: str, code: int = 0) -> tuple[float, str]:
    """Run ``gantt`` to its end; return the seconds, and its output.

    :raises RuntimeError: another exit code than ``code``
    """
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, '-m', 'gantt.cli.main', '--endpoint', endpoint, *words],
        capture_output=True,
        text=True,
        timeout=120,
    )
    spent = time.perf_counter() - began
    if done.returncode != code:
        raise RuntimeError(f'gantt {" ".join(words)}: {done.returncode}: {done.stderr}')
    return spent, done.stdout


def _cases(hosts: list[str], placed: str, refused: str) -> dict[str, tuple[int, tuple[str, ...]]]:
    edits = ('--remove-host', hosts[1], '--change-host', f'{hosts[2]},empty=yes')
    more = (*edits, '--add-host', f'new,like={hosts[0]},count=20,VCPU=300000')
    return {
        'explain_placed': (0, ('explain', placed)),
        'explain_refused': (0, ('explain', refused)),
        'explain_host': (0, ('explain', refused, '--host', hosts[0])),
        'what_if': (0, ('what-if', *TOO_MUCH, *more)),
        'what_if_many': (0, ('what-if', *FITS, '--count', '50', *more)),
        'replay': (0, ('replay', placed)),
        'replay_otherwise': (0, ('replay', placed, '--set', 'ram_weight_multiplier=-1')),
    }


def run(args: argparse.Namespace) -> Result:
    """Run each command in turn with the yardstick, so many times."""
    port = callers.free_port()
    endpoint = f'http://127.0.0.1:{port}'
    options = callers.options(api={'host': '127.0.0.1', 'port': port})
    with rig(options) as testbed:
        fill(testbed, args.hosts)
        testbed.start('scheduler', 'gantt-scheduler')
        testbed.wait_for('scheduler', 'is ready')
        testbed.start('api', 'gantt-api')
        testbed.wait_for('api', 'is ready')
        look = functools.partial(command, endpoint)
        listed = json.loads(look('host', 'list', '--limit', '3', '-f', 'json')[1])
        names = [host['name'] for host in listed]
        placed, refused = derived_id('bench explain', 1), derived_id('bench explain', 2)
        look('select', *FITS, '--request-id', placed, '--count', '5')
        look('select', *TOO_MUCH, '--request-id', refused, code=2)
        _until_kept(look, (placed, refused))
        times: dict[str, list[float]] = {}
        stick: list[float] = []
        problems = _wrong(look, placed, args.hosts)
        for _ in range(args.repeats):
            for name, (code, words) in _cases(names, placed, refused).items():
                times.setdefault(name, []).append(look(*words, code=code)[0])
                stick.append(look('--version')[0])
        rss = round(testbed.rss_mb('api'), 1)
        stated = callers.servers(testbed)
        callers.end(testbed)
    return _result(args, times, stick, problems, {**stated, 'api_rss_mb': rss})


def _until_kept(look: functools.partial, decisions: tuple[str, ...], seconds: float = 60) -> None:
    """Wait until the decisions, and the log that a replay needs, are in the database."""
    end = time.monotonic() + seconds
    for decision in decisions:
        while True:
            try:
                look('replay', decision)
                break
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)


def _wrong(look: functools.partial, placed: str, hosts: int) -> list[str]:
    """Check that the answers are right as well as quick; return the errors."""
    wrong = []
    replayed = json.loads(look('replay', placed, '-f', 'json')[1])
    if not replayed['same']:
        wrong.append(f'the replay differs: {replayed["differences"][:3]}')
    if replayed['then']['hosts'] != hosts:
        wrong.append(f'{replayed["then"]["hosts"]} hosts, not {hosts}')
    return wrong


def _result(
    args: argparse.Namespace,
    times: dict[str, list[float]],
    stick: list[float],
    problems: list[str],
    stated: dict[str, object],
) -> Result:
    medians = {name: round(statistics.median(seconds), 3) for name, seconds in times.items()}
    rated = ('explain_placed', 'explain_refused', 'what_if')
    value = max(medians[name] for name in rated)
    yardstick = statistics.median(stick)
    return Result(
        bench='explain',
        value=value,
        unit='s',
        yardstick={'name': 'gantt --version', 'value': round(yardstick, 3)},
        ratio=round(value / yardstick, 3),
        conditions={
            **conditions.here(),
            **stated,
            'hosts': args.hosts,
            'repeats': args.repeats,
            'medians_s': medians,
            'minimum': min(min(times[name]) for name in rated),
            'maximum': max(max(times[name]) for name in rated),
            'problems': problems,
        },
        audit=len(problems),
    )
