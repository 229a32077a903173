# SPDX-License-Identifier: Apache-2.0
"""Scores that are comparable between zones.

Every weigher is on its absolute scale, so that its share of a host does not depend on other
hosts.  Weighers whose multiplier is a veto (a hundred thousand or more) would dominate a sum:
they form a separate tier, compared first.  The rest is the weighted mean of the shares, from 0
for a host that is the worst for each weigher to 1 for the best.

Zones with the same weighers, multipliers and settings have the same score set.
"""

import functools
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gantt.core.messages.request import RequestSpec
from gantt.core.placement import ranking
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.members import Finalist
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import Weigher

#: Multiplier from which on a weigher acts as a veto if there is any other choice.
VETO_FROM = 100_000.0


class ZoneScore(NamedTuple):
    """Score of a host: the level counts first, then the tier, then the score; see ``order``.

    :ivar level: of the ladder of rules; less is better
    :ivar tier: sum of the vetoes; more is better
    :ivar score: 0 to 1; more is better
    """

    level: int
    tier: float
    score: float

    @property
    def order(self) -> tuple[int, float, float]:
        """Sort key, best first."""
        return self.level, -self.tier, -self.score


class ScoreSet:
    """The weighers, multipliers and settings that determine a pipeline's scores.

    :ivar digest: equal for equal weighers, multipliers and settings
    """

    def __init__(self, weighers: Sequence[Weigher]) -> None:
        self._weighers = list(weighers)
        multipliers = [weigher.multiplier for weigher in weighers]
        self._is_veto = [abs(multiplier) >= VETO_FROM for multiplier in multipliers]
        #: The best tier that a host may be in.
        self.tier_most = sum(
            m for m, veto in zip(multipliers, self._is_veto, strict=True) if veto and m > 0
        )
        non_vetoes = [m for m, veto in zip(multipliers, self._is_veto, strict=True) if not veto]
        self._low = sum(m for m in non_vetoes if m < 0)
        self._length = sum(m for m in non_vetoes if m > 0) - self._low
        parts = [(w.name, w.multiplier, _settings(w)) for w in weighers]
        self.digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()

    @staticmethod
    @functools.lru_cache(maxsize=8)
    def of(pipeline: Pipeline) -> 'ScoreSet':
        """Return the score set of a pipeline with comparable scores; cached by pipeline."""
        return ScoreSet(pipeline.weighers)

    def of_finalists(
        self,
        table: HostTable,
        spec: RequestSpec,
        names: Sequence[str],
        finalists: Sequence[Finalist],
    ) -> list[ZoneScore]:
        """Return the scores of hosts, by the raw values of the weighers when they were ranked.

        :param names: names of the weighers that ranked them, with any normalization and multipliers
        """
        rows = np.array([finalist.row for finalist in finalists], np.int64)
        weighted = np.zeros((len(finalists), len(self._weighers)))
        for used in {tuple(finalist.used) for finalist in finalists}:
            positions = [n for n, finalist in enumerate(finalists) if tuple(finalist.used) == used]
            raw = np.array([finalists[n].raw for n in positions])
            columns = {names[place]: column for column, place in enumerate(used)}
            for k, weigher in enumerate(self._weighers):
                column = columns.get(weigher.name)
                if column is not None:
                    scale = ranking.make('absolute', weigher, table, spec, rows[positions])
                    shares = scale.whole(raw[:, column])
                    if shares is not None:
                        weighted[positions, k] = shares * weigher.multiplier
        lines = zip(finalists, weighted.tolist(), strict=True)
        return [self.score(finalist.level, line) for finalist, line in lines]

    def score(self, level: int, weighted: Sequence[float]) -> ZoneScore:
        """Return the score of one host.

        :param weighted: share times multiplier, by weigher
        """
        pairs = list(zip(weighted, self._is_veto, strict=True))
        tier = sum(part for part, veto in pairs if veto)
        rest = sum(part for part, veto in pairs if not veto)
        share = (rest - self._low) / self._length if self._length else 0.0
        return ZoneScore(level, tier, min(max(share, 0.0), 1.0))


def _settings(weigher: Weigher) -> list[tuple[str, object]]:
    """Return the settings that its shares follow from: all but normalization and multiplier."""
    return sorted(
        (name, value)
        for name, value in weigher.settings().items()
        if name not in (weigher.normalization_option, weigher.multiplier_option)
    )
