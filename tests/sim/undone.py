# SPDX-License-Identifier: Apache-2.0
"""What the simulator has found so far, each with a way to undo its fix."""

import contextlib

import msgspec

from devel.memory_store import commit as memory_commit
from gantt.compute.agent import agent, running_guests
from gantt.core.claims import commit, reconcile, registration, reservation_commit
from gantt.core.placement import older_claims
from gantt.core.table.usage import UsageColumns

_replace = msgspec.structs.replace


def a_repeat_takes_its_own_place_away(patch):
    """It planned on the host where its claim was, and giving the pick back took the claim."""
    remove_pick = UsageColumns.remove_pick

    def forgetful(self, columns, i, row, claim_id):
        pick = remove_pick(self, columns, i, row, claim_id)
        return pick and _replace(pick, was_there=False)

    patch.setattr(UsageColumns, 'remove_pick', forgetful)


def a_batch_is_planned_beside_who_gives_way(patch):
    """The member that a later request of the batch joined had left by an earlier one."""

    def judge(live, requests, owners):
        alone = [_replace(request, group=None) for request in requests]
        return commit.resolve_rivals(live, alone, owners)

    patch.setattr(memory_commit, 'resolve_rivals', judge)


def members_are_placed_beside_where_they_were(patch):
    """Of three members placed anew, two moved, and one stayed with their old claims."""
    patch.setattr(older_claims, 'without_older_claims', lambda *_: contextlib.nullcontext())


def late_news_takes_a_claim_away(patch):
    """A report older than the commit was folded after it."""

    committed = UsageColumns.committed_row

    def forgetful(self, known, row, claims):
        changed = committed(self, known, row, claims)
        if changed is not row:
            # Its claims do not stay laid over the host until news at its version come.
            self.laid.pop(row.id, None)
            return _replace(row, version=known.version)
        return changed

    patch.setattr(UsageColumns, 'committed_row', forgetful)


def recovery_gives_back_what_is_being_built(patch):
    """The journal was put straight while the new agent built already."""
    settle = running_guests.resume_after_boot
    patch.setattr(
        running_guests,
        'resume_after_boot',
        lambda driver, journal, starting: settle(driver, journal),
    )


def a_late_build_starts_what_is_being_stopped(patch):
    """The journal was lost, so that nothing said that the claim was known."""
    tombstone = agent.Agent._tombstone

    def late(self, consumer, claim_id, state='finished'):
        if state == 'finished':
            tombstone(self, consumer, claim_id)

    patch.setattr(agent.Agent, '_tombstone', late)


def a_late_registration_of_the_dead_counts(patch):
    """It was on its way when its process was killed, and fenced the next one of the same host."""
    register = registration.register
    patch.setattr(
        registration,
        'register',
        lambda row, said, **how: register(row, _replace(said, journal=None), **how),
    )


def a_change_gives_back_what_a_create_has(patch):
    """It was told of a place as given back that a create had taken, or had taken and left."""
    patch.setattr(reservation_commit, '_why_not_ended', lambda *_: '')


def a_free_place_is_confirmed_by_a_guest(patch):
    """The guest had taken it over in a database that was put back since."""
    patch.setattr(reconcile, 'guests_of_reservations', lambda live: {})
