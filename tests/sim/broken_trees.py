# SPDX-License-Identifier: Apache-2.0
"""Rules of placing over zones, each with a way to break it in the real code."""

import msgspec

from gantt.core.messages.base import derived_id
from gantt.db.claims.requests import SqlRequests
from gantt.db.claims.transitions import SqlClaims
from gantt.db.zones import records
from gantt.db.zones.changes import SqlZoneClaims
from gantt.db.zones.orders import SqlAllocationOrders
from gantt.db.zones.records import SqlZoneRequests
from gantt.scheduler.ports import ClaimResult
from gantt.scheduler.ports.zones import UnknownClaims
from gantt.scheduler.zones.follow import ZoneFollower
from gantt.scheduler.zones.offers import evaluate
from gantt.scheduler.zones.release_outbox import ReleaseOutbox


def what_is_to_be_given_back_is_forgotten(patch):
    patch.setattr(ReleaseOutbox, 'add', lambda self, pairs: None)
    patch.setattr(ReleaseOutbox, '_is_acknowledged', lambda self, zone, key, seconds: True)


def who_has_not_seen_a_key_notes_nothing(patch):
    """No tombstone: a copy on its way claims after it was given back."""
    cancel = SqlRequests.cancel_request

    def careless(self, request_id, reason=''):
        if self.load_request(request_id) is None:
            return ClaimResult(outcomes=[], hosts=[])
        return cancel(self, request_id, reason)

    patch.setattr(SqlRequests, 'cancel_request', careless)


def a_key_is_used_again(patch):
    """Whoever opens the row of a request, the keys below are the same."""
    opened = SqlZoneRequests.open_request

    def same(self, request):
        answer = opened(self, request)
        return msgspec.structs.replace(answer, lock_token=derived_id('opening', request.id))

    patch.setattr(SqlZoneRequests, 'open_request', same)


def leases_never_end(patch):
    patch.setattr(SqlClaims, 'sweep', lambda self, *limit: ClaimResult(outcomes=[], hosts=[]))


def claims_below_are_not_followed(patch):
    patch.setattr(ZoneFollower, 'follow', lambda self, zone: True)


def a_consumer_is_not_noted(patch):
    patch.setattr(records, '_note_consumers', lambda tx, request: '')


def a_request_is_finished_by_whoever_comes(patch):
    """Also by one whose time was over, while another has taken it over."""
    finish = SqlZoneRequests.finish_request

    def careless(self, request_id, owner, attempt, answer, *claimed):
        row = SqlRequests.load_request(self, request_id)
        if row is not None:
            owner, attempt = row.owner, row.attempt
        return finish(self, request_id, owner, attempt, answer, *claimed)

    patch.setattr(SqlZoneRequests, 'finish_request', careless)


def who_is_silent_has_no_room(patch):
    together = evaluate._together

    def sure(*args):
        answer = together(*args)
        outcome = answer.outcome
        if outcome is evaluate.Outcome.UNKNOWN:
            outcome = evaluate.Outcome.NO_VALID_HOST
        return msgspec.structs.replace(answer, complete=True, outcome=outcome)

    patch.setattr(evaluate, '_together', sure)


def an_allocation_that_comes_late_is_taken(patch):
    """It ends what a later one has claimed for its consumer, though that is answered."""
    patch.setattr(SqlAllocationOrders, 'note_allocation', lambda self, *given: [])


def what_was_forgotten_above_is_not_read_back(patch):
    patch.setattr(
        SqlZoneClaims, 'unknown_below', lambda self, child, claims: UnknownClaims([], set())
    )
