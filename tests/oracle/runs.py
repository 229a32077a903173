# SPDX-License-Identifier: Apache-2.0
"""Seeds, one cloud with several requests each, asked of both sides."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from tests.oracle import compare, features, named, shrink
from tests.oracle.clouds import Dice, a_cloud
from tests.oracle.deviations import Seen
from tests.oracle.nova import Oracle
from tests.oracle.wishes import a_wish

#: Requests of one seed.
REQUESTS = 5

Names = tuple[list[str], list[str]]


class Report:
    """What came of some seeds.

    :ivar cases: requests compared
    :ivar refused: those that Nova's API would not have let through
    :ivar mixed: by filter, requests that it let pass on some hosts and not on others
    :ivar met: by name, differences that are meant
    :ivar failures: (seed, number of the request, difference) of those that are not
    """

    def __init__(self) -> None:
        self.cases = self.refused = 0
        self.mixed: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        self.failures: list[tuple[int, int, Seen]] = []


def test_of(seed: int) -> dict[str, Any]:
    """The cloud of a seed and its requests."""
    dice, more = Dice(seed), Dice(f'{seed} and more')
    cloud, names = a_cloud(dice), Dice(f'{seed} and names')
    named.services(names, cloud)
    named.options(names, cloud)
    requests = [a_wish(dice, cloud) for _ in range(REQUESTS)]
    cloud['options']['scheduler'] = features.options(more)
    features.metrics(more, cloud['options']['metrics'])
    features.aggregates(more, cloud['aggregates'])
    for wish in requests:
        features.add(more, cloud, wish)
        named.add(names, cloud, wish)
    features.processors(Dice(f'{seed} and threads'), cloud, requests)
    return {'cloud': cloud, 'requests': requests}


def run(oracle: Oracle, names: Names, seeds: Iterable[int]) -> Report:
    """Compare both sides on these seeds."""
    report, seeds = Report(), list(seeds)
    questions = [test_of(seed) for seed in seeds]
    answers = oracle.ask_all(questions)
    for seed, asked, answer in zip(seeds, questions, answers, strict=True):
        differing = compare.differences(asked['cloud'], asked['requests'], answer, names)
        for number, seen in enumerate(differing):
            _note(report, seed, number, seen)
        for nova_answer in answer['answers']:
            report.cases += 1
            report.refused += 'refused' in nova_answer
            for name, verdicts in nova_answer.get('filters', {}).items():
                report.mixed[name] += 'p' in verdicts and 'r' in verdicts
    return report


def _note(report: Report, seed: int, number: int, differing: list[Seen]) -> None:
    for difference in differing:
        deviation = compare.explanation(difference)
        if deviation is None:
            report.failures.append((seed, number, difference))
        else:
            report.met[deviation.name] += 1


def smallest(oracle: Oracle, names: Names, seen: Seen) -> dict[str, Any]:
    """A small case with a difference of the same kind."""

    def still_differs(case: dict[str, Any]) -> bool:
        differing = one_case(oracle, names, case)
        return any(
            _kind(difference) == _kind(seen) for difference in compare.unexplained(differing)
        )

    return shrink.shrink({'cloud': seen.cloud, 'request': seen.request}, still_differs)


def one_case(oracle: Oracle, names: Names, case: dict[str, Any]) -> list[Seen]:
    """What differs in one case; nothing where a side cannot make anything of it."""
    answer = oracle.answer({'cloud': case['cloud'], 'requests': [case['request']]})
    if answer is None:
        return []
    return compare.differences(case['cloud'], [case['request']], answer, names)[0]


def _kind(seen: Seen) -> tuple[str, ...]:
    if isinstance(seen.nova, str) and not seen.plugin.startswith('Placement'):
        return seen.plugin, seen.nova, seen.gantt[:1]
    return seen.plugin, type(seen.nova).__name__


def told(seed: int, number: int, seen: Seen, case: dict[str, Any]) -> str:
    """A failure for people."""
    plain = {key: value for key, value in case['cloud'].items() if key != 'groups'}
    return '\n'.join(
        (
            f'{seen.plugin} on host {seen.host["host"]}: Nova says {seen.nova!r} {seen.raised}, '
            f'Gantt says {seen.gantt!r}',
            f'the smallest such case: {json.dumps({**plain, "request": case["request"]})}',
            f'again: .venv/bin/python -m tests.oracle {seed}:{number}',
        )
    )
