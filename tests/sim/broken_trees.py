# SPDX-License-Identifier: Apache-2.0
"""Rules of placing over zones, each with a way to break it in the real code."""

import msgspec

from gantt.db.claims.requests import SqlRequests
from gantt.db.claims.transitions import SqlClaims
from gantt.scheduler.ports.requests import ClaimResult
from gantt.zones.service.follow import ZoneFollower
from gantt.zones.service.offers import evaluate
from gantt.zones.sql import records


def who_has_not_seen_a_key_notes_nothing(patch):
    """No tombstone: a copy on its way claims after it was given back."""
    cancel = SqlRequests.cancel_request

    def careless(self, request_id, reason=''):
        if self.load_request(request_id) is None:
            return ClaimResult(outcomes=[], hosts=[])
        return cancel(self, request_id, reason)

    patch.setattr(SqlRequests, 'cancel_request', careless)


def leases_never_end(patch):
    patch.setattr(SqlClaims, 'sweep', lambda self, *limit: ClaimResult(outcomes=[], hosts=[]))


def claims_below_are_not_followed(patch):
    patch.setattr(ZoneFollower, 'follow', lambda self, zone: True)


def a_consumer_is_not_noted(patch):
    patch.setattr(records, '_note_consumers', lambda tx, request: '')


def who_is_silent_has_no_room(patch):
    together = evaluate._combined_result

    def sure(*args):
        answer = together(*args)
        outcome = answer.outcome
        if outcome is evaluate.Outcome.UNKNOWN:
            outcome = evaluate.Outcome.NO_VALID_HOST
        return msgspec.structs.replace(answer, complete=True, outcome=outcome)

    patch.setattr(evaluate, '_combined_result', sure)
