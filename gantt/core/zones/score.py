# SPDX-License-Identifier: Apache-2.0
"""Scores that may be compared between zones.

Every weigher is on its absolute scale, so that its share of a host is the same whichever other
hosts there are.  Weighers whose multiplier is a veto (a hundred thousand or more) would drown the
others in a sum: they are a tier of their own, looked at first.  The rest is the weighted mean of
the shares, from 0 for a host that is the worst for each weigher to 1 for the best.

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

#: A multiplier from which on a weigher rules out where there is any other choice.
VETO_FROM = 100_000.0


class ZoneScore(NamedTuple):
    """How good a host is: the level first, then the tier, then the score; see ``order``.

    :ivar level: of the ladder of rules; less is better
    :ivar tier: sum of the vetoes; more is better
    :ivar score: 0 to 1; more is better
    """

    level: int
    tier: float
    score: float

    @property
    def order(self) -> tuple[int, float, float]:
        """Ascending, best first."""
        return self.level, -self.tier, -self.score


class ScoreSet:
    """What the scores of a pipeline are made of.

    :ivar digest: the same for the same weighers, multipliers and settings
    """

    def __init__(self, weighers: Sequence[Weigher]) -> None:
        self._weighers = list(weighers)
        multipliers = [weigher.multiplier for weigher in weighers]
        self._is_veto = [abs(one) >= VETO_FROM for one in multipliers]
        #: The best tier that a host may be in.
        self.tier_most = sum(
            m for m, veto in zip(multipliers, self._is_veto, strict=True) if veto and m > 0
        )
        shared = [m for m, veto in zip(multipliers, self._is_veto, strict=True) if not veto]
        self._low = sum(m for m in shared if m < 0)
        self._length = sum(m for m in shared if m > 0) - self._low
        parts = [(w.name, w.multiplier, _settings(w)) for w in weighers]
        self.digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()

    @staticmethod
    @functools.lru_cache(maxsize=8)
    def of(pipeline: Pipeline) -> 'ScoreSet':
        """Of a pipeline with comparable scores; made once for each."""
        return ScoreSet(pipeline.weighers)

    def of_finalists(
        self,
        table: HostTable,
        spec: RequestSpec,
        names: Sequence[str],
        finalists: Sequence[Finalist],
    ) -> list[ZoneScore]:
        """Of hosts, by what the weighers said of them when they were ranked.

        :param names: of the weighers that ranked them, by whatever normalization and multipliers
        """
        rows = np.array([one.row for one in finalists], np.int64)
        weighted = np.zeros((len(finalists), len(self._weighers)))
        for used in {tuple(one.used) for one in finalists}:
            at = [n for n, one in enumerate(finalists) if tuple(one.used) == used]
            raw = np.array([finalists[n].raw for n in at])
            columns = {names[place]: column for column, place in enumerate(used)}
            for k, weigher in enumerate(self._weighers):
                column = columns.get(weigher.name)
                if column is not None:
                    scale = ranking.make('absolute', weigher, table, spec, rows[at])
                    shares = scale.whole(raw[:, column])
                    if shares is not None:
                        weighted[at, k] = shares * weigher.multiplier
        lines = zip(finalists, weighted.tolist(), strict=True)
        return [self.score(one.level, line) for one, line in lines]

    def score(self, level: int, weighted: Sequence[float]) -> ZoneScore:
        """Of one host.

        :param weighted: share times multiplier, by weigher
        """
        pairs = list(zip(weighted, self._is_veto, strict=True))
        tier = sum(part for part, veto in pairs if veto)
        rest = sum(part for part, veto in pairs if not veto)
        share = (rest - self._low) / self._length if self._length else 0.0
        return ZoneScore(level, tier, min(max(share, 0.0), 1.0))


def _settings(weigher: Weigher) -> list[tuple[str, object]]:
    """What else its shares follow from: all but its own normalization, which does not count."""
    return sorted(
        (name, value)
        for name, value in weigher.settings().items()
        if name not in (weigher.normalization_option, weigher.multiplier_option)
    )
