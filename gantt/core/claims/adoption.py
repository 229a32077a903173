# SPDX-License-Identifier: Apache-2.0
"""Adoption of running guests that an operator lists: judged one by one, pure.

A guest that runs is adopted even where it does not fit.  The host is then
flagged, nothing new lands there, and the outcome of the guest reports it.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from gantt.core.claims.acceptance import is_over_committed
from gantt.core.claims.claim import Claim, State, guest_of
from gantt.core.messages import resource_classes as resources
from gantt.core.messages.base import Message, Name, Positive, Text, Uuid, derived_id
from gantt.core.messages.request import Flavor, Lifecycle, name_of
from gantt.core.resources.amounts import add_amounts
from gantt.core.resources.host import HostRow

#: Largest number of guests of one host in one transaction.
GUESTS_MAX = 5000


class GuestToAdopt(Message, frozen=True, kw_only=True):
    """One guest and where it runs: a line of the file.

    :ivar resources: what it takes, by class
    :ivar group: uuid of its server group
    """

    host: Name
    consumer: Uuid
    resources: Annotated[dict[Name, Positive], msgspec.Meta(min_length=1, max_length=256)]
    flavor: Text | None = None
    group: Uuid | None = None
    project_id: Text | None = None
    user_id: Text | None = None
    consumer_type: Name = 'INSTANCE'


class AdoptionStatus(enum.StrEnum):
    """Outcome of one guest."""

    ADOPTED = 'adopted'
    OVER_FULL = 'over_full'  # adopted, and the host has more use than capacity now
    KNOWN = 'known'  # it has a live claim there
    ELSEWHERE = 'elsewhere'  # it has a live claim on another host, or below: nothing is done
    UNKNOWN_HOST = 'unknown_host'  # nothing is done


class GuestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one guest; ``note``: further information for the operator."""

    host: str
    consumer: str
    outcome: AdoptionStatus
    claim_id: str = ''
    note: str = ''


class Adoption:
    """Batch of guests, while it is judged.

    :ivar new_claims: the claims to create, in the order listed
    """

    def __init__(
        self,
        rows: Mapping[str, HostRow],
        live: Iterable[Claim],
        below: Mapping[str, str],
        now: float,
    ) -> None:
        """Create a batch.

        :param rows: the hosts that are known, by name
        :param live: the live claims of the guests, wherever they are
        :param below: guest that lives, or may live, in a child zone -> name of that zone
        :param now: the database's clock
        """
        self._zone_of_guest = below
        self.new_claims: list[Claim] = []
        self._host_rows = dict(rows)
        self._now = now
        self._live_claims: dict[str, list[Claim]] = {}
        for claim in live:
            self._live_claims.setdefault(guest_of(claim), []).append(claim)

    def check(self, guest: GuestToAdopt) -> GuestOutcome:
        """Return the outcome of one guest; the next one finds its claim."""
        row = self._host_rows.get(guest.host)
        if row is None:
            return _outcome(
                guest, AdoptionStatus.UNKNOWN_HOST, note='it must register before its guests come'
            )
        guest_claims = self._live_claims.get(guest.consumer, [])
        here = next((claim for claim in guest_claims if claim.provider_id == row.id), None)
        if here is not None:
            return _outcome(guest, AdoptionStatus.KNOWN, here.id)
        if guest_claims:
            return _outcome(
                guest,
                AdoptionStatus.ELSEWHERE,
                guest_claims[0].id,
                f'it has a live claim on {guest_claims[0].host}',
            )
        if guest.consumer in self._zone_of_guest:
            return _outcome(
                guest,
                AdoptionStatus.ELSEWHERE,
                note=f'it has a live claim in child zone {self._zone_of_guest[guest.consumer]}',
            )
        claim = self._new_claim(row, guest)
        self.new_claims.append(claim)
        self._live_claims[guest.consumer] = [claim]
        used = dict(row.used)
        add_amounts(used, guest.resources)
        full = msgspec.structs.replace(row, used=used)
        self._host_rows[guest.host] = full
        if is_over_committed(full):
            return _outcome(guest, AdoptionStatus.OVER_FULL, claim.id, _over_full_text(full))
        return _outcome(guest, AdoptionStatus.ADOPTED, claim.id)

    def _new_claim(self, row: HostRow, guest: GuestToAdopt) -> Claim:
        # The generation has grown since any claim was created there: listed again after its
        # end, a guest gets another claim.
        return Claim(
            id=derived_id('told', row.uuid, row.generation, guest.consumer),
            request_id=None,
            consumer=guest.consumer,
            provider_id=row.id,
            host=row.name,
            state=State.CONFIRMED,
            lifecycle=Lifecycle.HOST,
            allocations={row.id: dict(guest.resources)},
            group=guest.group,
            project_id=guest.project_id,
            user_id=guest.user_id,
            consumer_type=guest.consumer_type,
            flavor=name_of(Flavor(name=guest.flavor or '')),
            adopted=True,
            reason='told to run there',
            created_at=self._now,
            updated_at=self._now,
        )


def unknown_class(guest: GuestToAdopt, declared: frozenset[str]) -> str | None:
    """Return a resource class of a guest that is neither standard nor declared."""
    standard = resources.STANDARD_CLASSES
    return next(
        (name for name in sorted(guest.resources) if name not in standard and name not in declared),
        None,
    )


def _outcome(
    guest: GuestToAdopt, outcome: AdoptionStatus, claim_id: str = '', note: str = ''
) -> GuestOutcome:
    return GuestOutcome(
        host=guest.host, consumer=guest.consumer, outcome=outcome, claim_id=claim_id, note=note
    )


def _over_full_text(row: HostRow) -> str:
    return ', '.join(
        f'{name} {row.cap(name) - row.free(name)} of {row.cap(name)}'
        for name in sorted({*row.used, *row.foreign})
        if row.free(name) < 0
    )
