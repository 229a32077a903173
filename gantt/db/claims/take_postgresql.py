# SPDX-License-Identifier: Apache-2.0
"""Places of plans taken over in the one round trip of a batch, see ``one_trip``; PostgreSQL only.

Behind the locks of the hosts one statement takes all of them, and guards what the portable way
reads and judges: each place is there, nobody has it, its host is open, and no consumer has another
live claim.  Where one does not hold the transaction is gone.
"""

from collections.abc import Collection, Sequence
from typing import Any

from gantt.core.claims.commit import RequestDraft
from gantt.db.claims import commit_postgresql as careful
from gantt.db.engine.arrays import numbers, texts
from gantt.db.engine.unnest import array, sql, unnest

#: Whose a place becomes.
_NEW = (
    *(('request_id', 'text'), ('attempt', 'int'), ('member', 'int'), ('consumer', 'text')),
    *(('project_id', 'text'), ('user_id', 'text'), ('consumer_type', 'text')),
    *(('image', 'text'), ('flavor', 'text')),
)
_TAKEN = (
    *(('id', 'text'), ('group_uuid', 'text'), ('member_name', 'text'), ('provider_id', 'bigint')),
    *(('lease', 'float8'), *_NEW),
)
#: What it was, as ``core.claims.claim.PlannedFor`` is written.
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

    :ivar hosts: that they are on, ascending
    :ivar consumers: who gets them
    """

    def __init__(self, batch: Sequence[RequestDraft]) -> None:
        found = sorted(
            ((by, draft) for draft in batch for by in draft.takes_places),
            key=lambda pair: pair[0].consumer,
        )
        self.count = len(found)
        self._columns: list[Any] = []
        self.hosts = sorted({by.provider_ids[0] for by, _ in found})
        self.consumers = [by.consumer for by, _ in found]
        if not found:
            return
        rows = [
            (
                *(by.claim_id, by.group, by.member_name, by.provider_ids[0]),
                *(draft.lease_seconds, draft.id, draft.attempt, by.member, by.consumer),
                *(by.project_id, by.user_id, by.consumer_type, by.image, by.flavor),
            )
            for by, draft in found
        ]
        self._columns = [
            array(kind, list(of))
            for (_, kind), of in zip(_TAKEN, zip(*rows, strict=True), strict=True)
        ]

    def __bool__(self) -> bool:
        return bool(self.count)

    def is_apart(self, hosts: Collection[int]) -> bool:
        """Whether none of the places is on one of these hosts."""
        return not self.count or set(self.hosts).isdisjoint(hosts)

    def values(self, stamp: int) -> list[Any]:
        """For ``TAKE``."""
        hosts, many = numbers(self.hosts), len(self.hosts)
        return [
            *self._columns,
            stamp,
            *(hosts, hosts, self.count, many, hosts, many),
            texts(self.consumers),
        ]


def is_taking(draft: RequestDraft) -> bool:
    """Whether a draft asks for places of one provider each, and for nothing else."""
    return (
        bool(draft.takes_places)
        and not draft.claims
        and not (draft.continues or draft.lets_go or draft.groups)
        and draft.takes_over is None
        and draft.group is None
        and draft.plan is None
        and draft.only_project is None
        and all(len(by.provider_ids) == 1 for by in draft.takes_places)
    )
