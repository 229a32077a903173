# SPDX-License-Identifier: Apache-2.0
"""Take-over of places of plans in the one round trip of a batch, see ``one_trip``; PostgreSQL only.

Behind the locks of the hosts one statement takes all places, and guards the facts that the
portable path reads and judges: each place is stored, no create has taken it, its host is open, and
no consumer has another live claim.  Where a guard fails the transaction is rolled back.
"""

from collections.abc import Collection, Sequence
from typing import Any

from gantt.core.claims.commit import RequestDraft
from gantt.db.claims import commit_postgresql as careful
from gantt.db.engine.arrays import numbers, texts
from gantt.db.engine.unnest import array, sql, unnest

#: Columns of the consumer that gets a place.
_NEW = (
    *(('request_id', 'text'), ('attempt', 'int'), ('member', 'int'), ('consumer', 'text')),
    *(('project_id', 'text'), ('user_id', 'text'), ('consumer_type', 'text')),
    *(('image', 'text'), ('flavor', 'text')),
)
_TAKEN = (
    *(('id', 'text'), ('group_uuid', 'text'), ('member_name', 'text'), ('provider_id', 'bigint')),
    *(('lease', 'float8'), *_NEW),
)
#: Values before, as ``core.claims.claim.PlannedFor`` is written.
_OLD = ', '.join(f"'{name}', c.{name}" for name in ('lease_until', *(name for name, _ in _NEW)))
TAKE = sql(f"""
    WITH n AS (SELECT {careful.NOW} AS now
    ), m AS (
        UPDATE claims c
           SET planned = json_build_object({_OLD})::text,
               {', '.join(f'{name} = t.{name}' for name, _ in _NEW)},
               lease_until = n.now + t.lease, expires_at = n.now + t.lease, sole = t.consumer,
               reason = '', updated_at = n.now
          FROM {unnest(_TAKEN, 't')}, n
         WHERE c.id = t.id AND c.group_uuid = t.group_uuid AND c.member_name = t.member_name
           AND c.provider_id = t.provider_id AND c.state = 'reserved' AND c.lifecycle = 'plan'
           AND c.planned IS NULL
        RETURNING c.id
    ), v AS (
        UPDATE providers SET version = version + 1, claims_stamp = %b
         WHERE id = ANY(%s::bigint[])
        RETURNING id
    ), x AS (
        INSERT INTO changes (kind, ref)
        SELECT 'host', t.id::text FROM unnest(%s::bigint[]) AS t (id)
    )
    SELECT n.now,
           1 / (CASE WHEN (SELECT count(*) FROM m) = %b AND (SELECT count(*) FROM v) = %b
                 AND (SELECT count(*) FROM provider_facts WHERE provider_id = ANY(%s::bigint[])
                         AND disabled IS NULL AND service_disabled IS NULL) = %b
                 AND NOT EXISTS (SELECT 1 FROM claims s WHERE s.consumer = ANY(%s::text[])
                                    AND s.live <> 0)
                THEN 1 ELSE 0 END)
      FROM n
""")  # noqa: S608 - names of columns only


class TakenPlaces:
    """The places that the drafts of a batch take over, as columns.

    :ivar hosts: hosts of the places, ascending
    :ivar consumers: consumers that get the places
    """

    def __init__(self, batch: Sequence[RequestDraft]) -> None:
        pairs = sorted(
            ((place, draft) for draft in batch for place in draft.takes_places),
            key=lambda pair: pair[0].consumer,
        )
        self.count = len(pairs)
        self._columns: list[Any] = []
        self.hosts = sorted({place.provider_ids[0] for place, _ in pairs})
        self.consumers = [place.consumer for place, _ in pairs]
        if not pairs:
            return
        rows = [
            (
                *(place.claim_id, place.group, place.member_name, place.provider_ids[0]),
                *(draft.lease_seconds, draft.id, draft.attempt, place.member, place.consumer),
                *(place.project_id, place.user_id, place.consumer_type, place.image, place.flavor),
            )
            for place, draft in pairs
        ]
        self._columns = [
            array(kind, list(column_values))
            for (_, kind), column_values in zip(_TAKEN, zip(*rows, strict=True), strict=True)
        ]

    def __bool__(self) -> bool:
        return bool(self.count)

    def is_apart(self, hosts: Collection[int]) -> bool:
        """Return whether none of the places is on one of these hosts."""
        return not self.count or set(self.hosts).isdisjoint(hosts)

    def values(self, stamp: int) -> list[Any]:
        """Return the parameters of ``TAKE``."""
        hosts, host_count = numbers(self.hosts), len(self.hosts)
        return [
            *self._columns,
            stamp,
            *(hosts, hosts, self.count, host_count, hosts, host_count),
            texts(self.consumers),
        ]


def is_taking(draft: RequestDraft) -> bool:
    """Return whether a draft takes places of one provider each, and nothing else."""
    return (
        bool(draft.takes_places)
        and not draft.claims
        and not (draft.continues or draft.lets_go or draft.groups)
        and draft.takes_over is None
        and draft.group is None
        and draft.plan is None
        and draft.only_project is None
        and all(len(place.provider_ids) == 1 for place in draft.takes_places)
    )
