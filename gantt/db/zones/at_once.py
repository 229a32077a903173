# SPDX-License-Identifier: Apache-2.0
"""Requests that may go to child zones, on PostgreSQL: opened and finished in one statement each.

Each statement is a transaction of its own, and one round trip.  Without conflicts it does all of
the work of the separate statements, else little or nothing: these continue from the rows that it
left of a new request.
"""

import sqlalchemy as sa

from gantt.db.engine.session import CLOCK
from gantt.db.engine.unnest import columns_of, names
from gantt.db.schema import models

_NOW = CLOCK['postgresql']
#: Columns of a claim below that are given; the others are of its request.
BELOW = columns_of(models.claims_below, 'request_id', 'created_at', 'updated_at', 'read_back')
_ARRAYS = ', '.join(f'CAST(:{name} AS {kind}[])' for name, kind in BELOW)

#: A new request with its consumers: the numbers of rows inserted, whether hosts here have claims
#: for one of them, the order of the opening, and the stored rule of its group.
OPEN_AT_ONCE = sa.text(f"""
    WITH n AS (
        SELECT {_NOW} AS now, CAST(floor({_NOW} * 1000000) AS bigint) AS "order"),
    made AS (
        INSERT INTO requests (id, fingerprint, state, owner, attempt, deadline, token, created_at,
                              updated_at, claims)
        SELECT :id, :fingerprint, 'open', :owner, CAST(:attempt AS int), n.now + :seconds, :token,
               n.now, n.now, 0
          FROM n
            ON CONFLICT (id) DO NOTHING
        RETURNING id),
    noted AS (
        INSERT INTO consumers_on_their_way (consumer, purpose, request_id, order_no)
        SELECT c, :purpose, made.id, n."order"
          FROM made, n, unnest(CAST(:consumers AS text[])) c ORDER BY c
            ON CONFLICT (consumer, purpose) DO NOTHING
        RETURNING consumer)
    SELECT (SELECT count(*) FROM made), (SELECT count(*) FROM noted),
           EXISTS (SELECT 1 FROM claims
                    WHERE consumer = ANY(CAST(:consumers AS text[])) AND live = 1),
           (SELECT "order" FROM n),
           g.policy, g.max_per_host, g.generation, g.policies, g.rule_generation
      FROM n LEFT JOIN group_rules g ON g.uuid = CAST(:group AS text)
""")  # noqa: S608 - the clock's expression is a constant
#: The answer of an open request, with its claims below: 1, or 0 if it is not open, or a zone was
#: removed meanwhile, or the rule of its group is not the one that it was placed under.  A zone that
#: is locked here is removed only after it, and not while claims live there.
FINISH_AT_ONCE = sa.text(f"""
    WITH held AS (
        SELECT uuid FROM child_zones WHERE uuid = ANY(CAST(:child AS text[]))
         ORDER BY uuid FOR KEY SHARE),
    ruled AS (
        SELECT uuid FROM group_rules
         WHERE uuid = CAST(:group AS text) AND policy = CAST(:policy AS text)
           AND (policy <> 'anti-affinity' OR max_per_host = CAST(:max_per_host AS int))
           AND policies IS NOT DISTINCT FROM CAST(:policies AS text)
           FOR SHARE),
    done AS (
        UPDATE requests
           SET state = 'placed', answer = :answer, token = :token, claims = 0, updated_at = {_NOW}
         WHERE id = :id AND state = 'open' AND owner = :owner AND attempt = :attempt
           AND NOT EXISTS (SELECT 1 FROM unnest(CAST(:child AS text[])) c
                            WHERE c NOT IN (SELECT uuid FROM held))
           AND (CAST(:group AS text) IS NULL OR EXISTS (SELECT 1 FROM ruled))
        RETURNING id, updated_at),
    noted AS (
        INSERT INTO claims_below (request_id, created_at, updated_at, {names(BELOW)})
        SELECT done.id, done.updated_at, done.updated_at, b.*
          FROM done, unnest({_ARRAYS}) AS b
            ON CONFLICT (claim_id, child) DO NOTHING)
    SELECT count(*) FROM done
""")  # noqa: S608 - names of columns only
