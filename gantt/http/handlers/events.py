# SPDX-License-Identifier: Apache-2.0
"""What happens to hosts and their claims, for who follows it."""

from gantt.http.queries import EventsQuery
from gantt.http.world import Caller, World
from gantt.insights.views import EventEntry, EventPage


def list_events(world: World, caller: Caller, query: EventsQuery) -> EventPage:
    """List what happened to hosts and their claims after a cursor, oldest first.

    Without ``after`` there are no events, only a cursor.  With ``wait`` and nothing to tell, the
    answer comes when something happened, or after so many seconds.  A quarter of the threads may
    be here; one more is refused with 503.  An event may come twice and none is left out: what is
    not remembered any more is 410, and then lists are to be read anew.  A change that is overtaken
    by another one within a moment may be only the other one.
    """

    def wanted(one: EventEntry) -> bool:
        return query.host in (None, one.host) and query.kind in (None, one.kind)

    with world.gates.waits.passing(caller):
        return world.insights.events.wait(query.after, query.limit, query.wait, wanted)
