# SPDX-License-Identifier: Apache-2.0
"""Picks that are committed and that no report of their host can contain yet.

A host counts the guests that it is building only in its next report.  Until
then each of our picks counts as one, so that picks of successive batches do
not find a host idle that is about to be busy.
"""

from collections.abc import Collection, Iterable, Mapping

from gantt.core.messages.report import IO_WORKLOAD
from gantt.core.messages.resource_classes import AMOUNT_MAX
from gantt.core.resources.host import HostRow


class FreshPicks:
    """Provider id -> claim id -> when the host had reported last, as of the commit."""

    def __init__(self, of: Mapping[int, Mapping[str, float]] | None = None) -> None:
        self._of = {host: dict(picks) for host, picks in (of or {}).items() if picks}
        #: No pick on a host is from before this report of it.
        self._oldest = {host: min(picks.values()) for host, picks in self._of.items()}

    def copy(self) -> 'FreshPicks':
        return FreshPicks(self._of)

    def as_dict(self) -> dict[int, dict[str, float]]:
        """All of it, as another one may be made from."""
        return {host: dict(picks) for host, picks in self._of.items()}

    def note(self, provider_id: int, claims: Iterable[str], reported_at: float) -> None:
        """These claims are committed on a host that had reported at that time."""
        picks = dict.fromkeys(claims, reported_at)
        if picks:
            self._of.setdefault(provider_id, {}).update(picks)
            self._oldest[provider_id] = min(reported_at, self._oldest.get(provider_id, reported_at))

    def drop(self, provider_id: int, claim_id: str) -> bool:
        """The claim is gone from there; whether it was one of these."""
        picks = self._of.get(provider_id)
        if picks is None or picks.pop(claim_id, None) is None:
            return False
        if not picks:
            del self._of[provider_id]
            del self._oldest[provider_id]
        return True

    def keep(self, provider_id: int, claims: Collection[str]) -> None:
        """No claims but these are on the host."""
        for claim_id in [c for c in self._of.get(provider_id, ()) if c not in claims]:
            self.drop(provider_id, claim_id)

    def operations(self, row: HostRow, pending: Collection[str]) -> int:
        """Guests being built or moved: as the host said last, and picks of ours beside them.

        :param pending: claim ids of picks that are not committed
        """
        said = row.facts.metrics.get(IO_WORKLOAD)
        known = int(said.value) if said is not None and 0 < said.value <= AMOUNT_MAX else 0
        picks = self._of.get(row.id)
        if picks is None:
            return known + len(pending)
        if self._oldest[row.id] < row.reported_at:
            self._follow(row.id, row.reported_at, picks)
        # Asked for each pick: not all those on the host are looked at.
        return known + len(pending) + len(picks) - sum(c in picks for c in pending)

    def _follow(self, provider_id: int, reported_at: float, picks: dict[str, float]) -> None:
        """Forget what a report of that time contains."""
        for claim_id in [c for c, at in picks.items() if at < reported_at]:
            self.drop(provider_id, claim_id)
        if picks:
            self._oldest[provider_id] = min(picks.values())
