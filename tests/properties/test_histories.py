# SPDX-License-Identifier: Apache-2.0
"""Whatever has happened before, a decision is the one of a plain and full evaluation.

A history of news, placements and lost races is played on a table that reuses masks, arrays and
evaluations; each decision is made again on a copy of it that reuses nothing.
"""

import random
from typing import Any

import pytest

from gantt import exceptions, plugin_loader
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.placement import run
from gantt.core.placement.evaluation import FilterRun
from gantt.core.placement.pipeline import Pipeline
from gantt.core.placement.place import LastRequest, place, undo_decision
from gantt.core.records.decision import Outcome
from gantt.core.table.caches import MaskCache
from gantt.core.table.host_table import HostTable
from gantt.testing import clouds
from tests.core.builders import an_id
from tests.properties.test_columns import EVERY, a_plain_cloud, a_plain_spec, said
from tests.properties.test_kept_masks import change
from tests.thorough import stride

ALL_FILTERS = [
    plugin_loader.load_pipeline(plugin_loader.installed(plugin_loader.FILTERS), subset_size=size)
    for size in (1, 3)
]
HISTORIES, BLOCK = 20_000, 50
STEPS = 9
#: Of tables; the largest is rare.
SIZES = (1, 2, 7, 40, 200) * 8 + (2000,)


class History:
    """One table, and the same requests on it and on plain copies."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.is_plain = rng.random() < 0.5
        self.table: HostTable = (
            a_plain_cloud(rng, SIZES) if self.is_plain else clouds.a_table(*clouds.a_cloud(rng))
        )
        self.pipeline: Pipeline = rng.choice(EVERY if self.is_plain else ALL_FILTERS)
        self.specs = [a_plain_spec(rng) if self.is_plain else clouds.a_spec(rng) for _ in range(2)]
        self.last_request = LastRequest()
        self.standing: list[tuple[Any, SelectDestinations]] = []
        self.decisions = 0

    def step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let something happen: news of hosts, a lost race, or a request."""
        kind = self.rng.choice(('news', 'lost', 'request', 'request', 'request'))
        if kind == 'news':
            change(self.rng, self.table)
        elif kind == 'lost' and self.standing:
            decision, request = self.standing.pop(self.rng.randrange(len(self.standing)))
            undo_decision(self.table, decision, request)
        else:
            self.decide(self.rng.choice(self.specs), monkeypatch)

    def decide(self, spec: RequestSpec, monkeypatch: pytest.MonkeyPatch) -> None:
        """Decide a request with what is reused and without, and compare."""
        count = self.rng.choice((1, 1, 1, 2, 5, 20))
        request = SelectDestinations(
            request_id=an_id(self.decisions, 5),
            spec=spec,
            consumers=[an_id(self.decisions * 1000 + i, 6) for i in range(count)],
            alternates=self.rng.randrange(0, 3),
        )
        self.decisions += 1
        seed, plain = self.rng.randrange(2**31), self.table.copy()
        with monkeypatch.context() as patch:
            patch.setattr(run.Run, 'go_on', lambda run, members: 0)
            patch.setattr(FilterRun, 'reevaluate', lambda run, consumer: None)
            patch.setattr(MaskCache, 'get', _raise_key_error)
            expected = self._decision(plain, request, seed, None)
        decision = self._decision(self.table, request, seed, self.last_request)
        if isinstance(expected, str):
            assert decision == expected
            return
        assert said(decision) == said(expected)
        if decision.outcome is Outcome.PLACED:
            self.standing.append((decision, request))

    def _decision(
        self,
        table: HostTable,
        request: SelectDestinations,
        seed: int,
        last_request: LastRequest | None,
    ) -> Any:
        try:
            return place(
                table, request, self.pipeline, seed=seed, decision_id='x', seen=last_request
            )
        except exceptions.InvalidMessage as e:
            return e.message


def _raise_key_error(*args: object) -> None:
    raise KeyError


@pytest.mark.parametrize(
    'block', [range(n, n + BLOCK) for n in range(0, HISTORIES, BLOCK * stride(40))], ids=str
)
def test_no_history_changes_a_decision(block, monkeypatch):
    decisions = 0
    for seed in block:
        history = History(seed)
        try:
            for _ in range(STEPS):
                history.step(monkeypatch)
        except AssertionError as e:
            raise AssertionError(f'seed {seed}') from e
        assert history.pipeline.distrusted == set(), f'seed {seed}'
        decisions += history.decisions
    assert decisions > 3 * BLOCK
