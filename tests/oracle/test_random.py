# SPDX-License-Identifier: Apache-2.0
"""Random clouds and requests: our filters and weighers say what Nova's say, or mean to differ."""

import pytest

from tests.oracle import compare, runs

#: Seeds of one test: so many times ``runs.REQUESTS`` cases.
SEEDS = 200
#: Of so many cases, those in which each filter has to remove some hosts and not all.
MIXED_LEAST = 2

#: Nova's filters and weighers that are not here yet.
NOT_YET: frozenset[str] = frozenset()


def test_every_filter_and_weigher_of_nova_is_here(about):
    ours = compare.both_have(about)
    theirs = {*about['filters'], *about['weighers']}
    assert theirs - {*ours[0], *ours[1]} == NOT_YET


def _compare(oracle, about, first, count):
    names = compare.both_have(about)
    report = runs.run(oracle, names, range(first, first + count))
    if report.failures:
        seed, number, seen = report.failures[0]
        small = runs.smallest(oracle, names, seen)
        more = f'{len(report.failures)} differences in {report.cases} cases; the first:\n'
        pytest.fail(more + runs.told(seed, number, seen, small), pytrace=False)
    return report


@pytest.mark.timeout(600)
@pytest.mark.parametrize('part', range(5))
def test_random_cases(oracle, about, part):
    report = _compare(oracle, about, part * SEEDS, SEEDS)
    assert report.refused < report.cases / 10
    scarce = {n: report.mixed[n] for n in about['filters'] if report.mixed[n] < MIXED_LEAST}
    assert scarce.keys() <= {'AllHostsFilter'}, f'mixed verdicts in {report.cases} cases: {scarce}'


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize('part', range(20))
def test_many_random_cases(oracle, about, part):
    _compare(oracle, about, 1_000_000 + part * 1000, 1000)
