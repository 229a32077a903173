# SPDX-License-Identifier: Apache-2.0
"""A claim in a zone below that was forgotten here, as it is stored again.

The request that made it is not known any more, nor its caller.  It gets a request of its own, whose
id is the key that the zone has for it: by that it can be cancelled.
"""

from collections.abc import Sequence

from gantt.core.messages.base import derived_id
from gantt.core.records.decision import Answer, Outcome, Selection
from gantt.core.records.members import pack
from gantt.core.zones.messages import ClaimBelow, ZoneRecord
from gantt.scheduler.ports.zones import StoredBelow
from gantt.scheduler.zones.receipts import Receipt


def row_of(zone: ZoneRecord, claim: ClaimBelow, receipt: Receipt, place: str) -> StoredBelow:
    """As it is stored: what it is comes from the receipt, what has become of it from the zone.

    :param place: sealed by the zone; '': it did not say
    """
    return StoredBelow(
        claim_id=claim.claim_id,
        child=zone.uuid,
        request_id=claim.key,
        key=claim.key,
        consumer=claim.consumer,
        purpose=receipt.purpose,
        project_id=receipt.project_id,
        state=claim.state,
        place=place,
        group=receipt.group,
        read_back=True,
        resources=receipt.resources,
        user_id=receipt.user_id,
        consumer_type=receipt.consumer_type,
    )


def answer_of(zone: ZoneRecord, key: str, rows: Sequence[StoredBelow]) -> bytes:
    """The answer of the request that it gets, as it is stored."""
    selections = [
        [
            Selection(
                host='',
                node='',
                uuid='',
                provider_id=0,
                consumer=one.consumer,
                claim_id=one.claim_id,
                child=zone.name,
                place=one.place,
            )
        ]
        for one in rows
    ]
    answer = Answer(
        request_id=key,
        decision_id=derived_id('read back', key),
        outcome=Outcome.PLACED,
        selections=selections,
    )
    return pack(answer)
