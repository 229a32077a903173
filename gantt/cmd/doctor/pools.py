# SPDX-License-Identifier: Apache-2.0
"""Pools that hosts take from, and that share with no host any more."""

from collections.abc import Iterator

import sqlalchemy as sa

from gantt.cmd.doctor.finding import Finding, Severity, found
from gantt.core.resources.shared_pool import SHARES
from gantt.db.hosts.providers import SHOWN_NAME, is_host
from gantt.db.hosts.trees import ROOT_ID
from gantt.db.schema import models

#: Pools that are named.
POOLS_MAX = 20

_p = models.providers
_c = models.claims
_a = models.allocations
_t = models.provider_traits
_host = _p.alias('host')
_shares = (
    sa.select(_t.c.provider_id)
    .join(models.traits, models.traits.c.id == _t.c.trait_id)
    .where(models.traits.c.name == SHARES)
)
_in_aggregates = sa.select(models.provider_aggregates.c.provider_id)
_counted = (
    sa.select(
        _a.c.provider_id,
        sa.func.count().label('claims'),
        sa.func.count(_c.c.provider_id.distinct()).label('hosts'),
    )
    .select_from(
        _a.join(_c, _c.c.id == _a.c.claim_id)
        .join(_host, _host.c.id == _c.c.provider_id)
        .join(_p, _p.c.id == _a.c.provider_id)
    )
    # What is in the tree of a host is its own.
    .where(_c.c.live == 1, _host.c.kind == 'host', ~is_host, _host.c.id != ROOT_ID)
    .group_by(_a.c.provider_id)
    .subquery('counted')
)
DETACHED = (
    sa.select(
        SHOWN_NAME,
        _p.c.uuid,
        _counted.c.claims,
        _counted.c.hosts,
        sa.case((_p.c.id.in_(_shares), 1), else_=0).label('shares'),
    )
    .join(_counted, _counted.c.provider_id == _p.c.id)
    .where(sa.or_(_p.c.id.not_in(_shares), _p.c.id.not_in(_in_aggregates)))
    .order_by(_p.c.id)
    .limit(POOLS_MAX)
)


def detached(connection: sa.Connection) -> Iterator[Finding]:
    """Yield a note for each pool that live claims of hosts take from, and that serves no host."""
    for row in connection.execute(DETACHED):
        lacks = 'is in no aggregate' if row.shares else f'has no trait {SHARES}'
        yield found(
            Severity.NOTE,
            f'pool {row.name}',
            lacks,
            f'{row.claims} live claims on {row.hosts} hosts take from it, and it serves no host: '
            'nothing new that needs it is placed there, and a move of these finds it nowhere',
            'Where that was not meant let it share again: gantt provider set '
            f'{row.uuid} {"--aggregate UUID" if row.shares else f"--trait {SHARES}"}',
        )
