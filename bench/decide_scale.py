# SPDX-License-Identifier: Apache-2.0
"""Time of a decision by number of hosts, warm and cold, against the bare NumPy loop; with a plot.

As ``bench decide``, on tables of several sizes in one run.  Cold is a decision of which nothing
is cached.
"""

import argparse
import math
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from xml.sax.saxutils import escape

from bench import Result, conditions, decide
from bench.every_filter import Every

HOSTS = '1000,3000,10000,30000,100000'
WIDTH, HEIGHT, MARGIN = 640, 400, 60
#: Colours that are told apart on white and on black, and by people who see no red.
COLOURS = {'warm': '#0072b2', 'cold': '#d55e00', 'bare NumPy loop': '#808080'}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this bench."""
    parser.add_argument('--hosts', type=_counts, default=_counts(HOSTS), help=HOSTS)
    parser.add_argument('--rounds', type=int, default=2, help='of 256 decisions')
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--filters', choices=('default', 'all'), default='default')
    parser.add_argument('--svg', type=pathlib.Path, metavar='FILE', help='write the plot there')


def _counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(',') if part.isdecimal() and int(part) > 9]
    if len(counts) != text.count(',') + 1 or len(counts) < 2 or counts != sorted(set(counts)):
        raise argparse.ArgumentTypeError(f'expected ascending numbers from 10 on; got {text!r}')
    return counts


def run(args: argparse.Namespace) -> Result:
    """Return how much longer a decision takes on the largest table than on the smallest."""
    times: dict[str, list[float]] = {name: [] for name in COLOURS}
    wrong = 0
    for hosts in args.hosts:
        both = decide.Both(hosts, args.seed, Every(args.filters))
        for name, microseconds in _medians(both, args.rounds).items():
            times[name].append(round(microseconds, 1))
        wrong += both.audit()
    if args.svg is not None:
        args.svg.write_text(plot(args.hosts, times))
    warm, bare = times['warm'], times['bare NumPy loop']
    return Result(
        bench='decide-scale',
        value=round(warm[-1] / warm[0], 3),
        unit='times',
        yardstick={'name': 'bare NumPy loop', 'value': round(bare[-1] / bare[0], 3)},
        ratio=round(warm[-1] / warm[0] / (bare[-1] / bare[0]), 3),
        conditions={'hosts': args.hosts, 'us': times, **conditions.here()},
        audit=wrong,
    )


def _medians(both: decide.Both, rounds: int) -> dict[str, float]:
    """Return the medians in microseconds, after a round that is not counted."""

    def median(decide_one: Callable[[int], float], numbers: range) -> float:
        return statistics.median(decide_one(number) * 1e6 for number in numbers)

    for number in range(decide.SHAPES):
        both.decide(number, count=False)
    end = (rounds + 1) * decide.SHAPES
    return {
        'warm': median(lambda n: both.decide(n, count=False), range(decide.SHAPES, end)),
        'bare NumPy loop': median(both.decide_bare, range(decide.SHAPES, end)),
        'cold': median(both.decide_cold, range(end, end + decide.COLD)),
    }


def plot(hosts: Sequence[int], times: Mapping[str, Sequence[float]]) -> str:
    """Return an SVG picture with both scales logarithmic.

    :param times: by line, microseconds at each number of hosts
    """
    every_time = [value for values in times.values() for value in values]
    across = (math.log10(hosts[0]), math.log10(hosts[-1]))
    up = (math.floor(math.log10(min(every_time))), math.ceil(math.log10(max(every_time))))

    def x(count: float) -> float:
        return _scaled(math.log10(count), across, MARGIN, WIDTH - MARGIN)

    def y(value: float) -> float:
        return _scaled(math.log10(value), up, HEIGHT - MARGIN, MARGIN // 2)

    parts = []
    for power in range(up[0], up[1] + 1):
        at = y(10**power)
        parts.append(_line([(MARGIN, at), (WIDTH - MARGIN, at)], '#80808060', 1))
        parts.append(_text(MARGIN - 6, at + 4, f'{10**power:,} us', 'end'))
    for count in hosts:
        parts.append(_text(x(count), HEIGHT - MARGIN + 20, f'{count:,}', 'middle'))
    parts.append(_text(WIDTH / 2, HEIGHT - 14, 'hosts', 'middle'))
    for name, values in times.items():
        points = [(x(count), y(value)) for count, value in zip(hosts, values, strict=True)]
        parts.append(_line(points, COLOURS[name], 2))
        parts += [
            f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{COLOURS[name]}"/>' for a, b in points
        ]
        parts.append(_text(points[0][0] + 8, points[0][1] - 8, name, 'start', COLOURS[name]))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n' + '\n'.join(parts) + '\n</svg>\n'
    )


def _scaled(value: float, ends: tuple[float, float], low: float, high: float) -> float:
    return low + (value - ends[0]) / (ends[1] - ends[0]) * (high - low)


def _line(points: Sequence[tuple[float, float]], colour: str, width: int) -> str:
    at = ' '.join(f'{a:.1f},{b:.1f}' for a, b in points)
    return f'<polyline points="{at}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _text(x: float, y: float, words: str, anchor: str, colour: str = '#808080') -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
    return f'<text {place}>{escape(words)}</text>'
