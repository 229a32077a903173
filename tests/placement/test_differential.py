# SPDX-License-Identifier: Apache-2.0
"""Candidates equal those of the real Placement, over HTTP, where that is installed."""

from pathlib import Path

import pytest

from tests.placement import differential

PYTHON = Path(__file__).parents[2] / '.venv-placement/bin/python'


@pytest.fixture(autouse=True)
def _placement() -> None:
    if not PYTHON.exists():
        pytest.skip('NO PLACEMENT: "make venv-placement" installs it')


def differences(database: str, seeds: range) -> list[str]:
    with differential.both(PYTHON, database) as (theirs, own):
        return [text for seed in seeds for text in differential.compare(seed, theirs, own)]


def test_candidates_of_a_few_clouds_are_those_of_placement():
    assert differences('sqlite', range(4)) == []


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.timeout(10_800)
def test_candidates_of_two_thousand_clouds_are_those_of_placement():
    assert differences('postgresql', range(2000)) == []
