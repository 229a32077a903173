# SPDX-License-Identifier: Apache-2.0
"""The processes of the site: what they noted of themselves, and sources by what they report."""

import collections
from collections.abc import Iterable

from gantt.core.records.process import Service
from gantt.core.table.host_table import HostTable
from gantt.insights.views import ServiceView, view_of


def listed(found: Iterable[Service], table: HostTable, stale_after: float) -> list[ServiceView]:
    """Schedulers and APIs by kind, host and name, then the sources.

    A source has no access to the database: it is known by the hosts that it reports for.

    :param stale_after: seconds of silence after which a source is silent
    """
    notes = list(found)
    usual = _usual(notes)
    views = [
        view_of(
            ServiceView,
            one,
            differs=not one.is_silent and one.configuration != usual,
            up_seconds=round(one.up_seconds, 1),
            configured_seconds=round(one.configured_seconds, 1),
            seen_seconds=round(one.seen_seconds, 1),
        )
        for one in notes
    ]
    order = {'scheduler': 0, 'api': 1}
    views.sort(key=lambda one: (order.get(one.kind, 2), one.host, one.name))
    return [*views, *_sources(table, stale_after)]


def _usual(notes: list[Service]) -> str:
    """The configuration of most that are alive; of several, that which was read last."""
    alive = [one for one in notes if not one.is_silent]
    counts = collections.Counter(one.configuration for one in alive)
    latest: dict[str, float] = {}
    for one in alive:
        age = latest.get(one.configuration, one.configured_seconds)
        latest[one.configuration] = min(age, one.configured_seconds)
    return max(counts, key=lambda digest: (counts[digest], -latest[digest]), default='')


def _sources(table: HostTable, stale_after: float) -> list[ServiceView]:
    """What speaks for hosts of Nova, as one: which process it is, its reports do not say."""
    reported = [host.reported_at for host in table.hosts if host.speaks_for == 'nova']
    if not any(reported):
        return []
    age = max(0.0, table.now - max(reported))
    return [
        ServiceView(
            name='nova',
            kind='source',
            host='',
            version='',
            is_silent=age > stale_after,
            configuration='',
            differs=False,
            problem='',
            alarm='',
            up_seconds=None,
            configured_seconds=None,
            seen_seconds=round(age, 1),
        )
    ]
