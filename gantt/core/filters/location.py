# SPDX-License-Identifier: Apache-2.0
"""LocationFilter: the hint ``location``, a place in the topology to be at or below."""

import numpy as np

from gantt.core.filters.base import Filter
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.rules.facts import Places, places_of
from gantt.core.rules.tree import LIST_MAX, LITERAL_MAX
from gantt.core.table.columns import BoolArray
from gantt.core.table.host_table import HostTable
from gantt.exceptions import InvalidMessage

HINT = 'location'
EITHER, SITE_FIRST, SITE_LAST = 'either', 'site first', 'site last'


class LocationFilter(Filter):
    """Is at or below one of the places of the hint ``location``, at any level of the tree."""

    public_reason = 'the hint location'
    reason = 'not in {spec.hints[location]}'
    columns = ('location',)
    options = (
        Option(
            'location_order',
            str,
            EITHER,
            'How places in the hint are written: "site first" (site1.room2.rack3, as hosts '
            'report them), "site last" (rack3.room2.site1), or "either": site first, and the '
            'other way round where no host is there.',
            choices=(EITHER, SITE_FIRST, SITE_LAST),
        ),
    )
    location_order: str

    def check_request(self, spec: RequestSpec) -> None:
        requested = spec.hints.get(HINT, [])
        if len(requested) > LIST_MAX:
            raise InvalidMessage(
                field=f'request.spec.hints.{HINT}',
                problem=f'expected at most {LIST_MAX} places, got {len(requested)}',
            )
        for number, place in enumerate(requested):
            if len(place) > LITERAL_MAX or not all(place.split('.')):
                raise InvalidMessage(
                    field=f'request.spec.hints.{HINT}[{number}]',
                    problem='expected a place: names separated by single dots, such as '
                    f'site1.room2.rack3, of at most {LITERAL_MAX} characters; got {place[:80]!r}',
                )

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        requested = spec.hints.get(HINT)
        if not requested:
            return None
        places = places_of(hosts.locations)
        mask = np.zeros(len(hosts), np.bool_)
        for place in requested:
            mask |= self._below(places, place, hosts)
        return mask

    def _below(self, places: Places, place: str, hosts: HostTable) -> BoolArray:
        turned = '.'.join(reversed(place.split('.')))
        if self.location_order == SITE_LAST:
            return places.below(turned, hosts.location)
        below = places.below(place, hosts.location)
        if self.location_order == EITHER and not below.any():
            return places.below(turned, hosts.location)
        return below
