# SPDX-License-Identifier: Apache-2.0
"""Rules that are a set of policies: stored, told to followers, and compared at the commit."""

import msgspec
import pytest

from gantt import exceptions
from gantt.core.claims.commit import CommitStatus, GroupPrecondition
from gantt.core.messages.policy_set import (
    POLICIES_POLICY,
    GroupPolicyKind,
    LevelPolicy,
    Policy,
    PolicySet,
)
from tests.builders import (
    CLEAN,
    a_draft,
    a_group,
    commit,
    generation_of,
    new_uuid,
    report_outcome,
)

RACK = LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY, level='rack', of='front')
SET = {'policies': [RACK, Policy.SOFT_AFFINITY], 'subgroups': {'front': ['web', 'db']}}
TEXT = PolicySet(**SET).text


def a_set(**fields):
    """A group with a set of policies."""
    return a_group(POLICIES_POLICY, **SET, **fields)


def a_precondition(uuid, generation=0, text=TEXT, **fields):
    return GroupPrecondition(uuid, generation, POLICIES_POLICY, policies=text, **fields)


def test_a_set_of_policies_is_stored_as_it_was_given(store):
    group = a_set(name='web', member_names=['web', 'db', 'queue'])
    saved = store.groups.save_group(group)
    assert saved == store.groups.load_group(group.uuid)
    assert (saved.policy, saved.policies, saved.subgroups) == (
        POLICIES_POLICY,
        SET['policies'],
        {'front': ['db', 'web']},
    )
    assert saved.member_names == ['db', 'queue', 'web']
    assert store.groups.save_group(group) == saved


@pytest.mark.parametrize(
    'other',
    [
        {'policies': [Policy.AFFINITY]},
        {'subgroups': {'front': ['web']}},
        {'policies': [*SET['policies'], Policy.AFFINITY]},
    ],
)
def test_a_group_keeps_its_set(store, other):
    group = store.groups.save_group(a_set())
    with pytest.raises(exceptions.Refused, match='policies anti-affinity of front at rack'):
        store.groups.save_group(a_group(POLICIES_POLICY, **{'uuid': group.uuid, **SET, **other}))
    with pytest.raises(exceptions.Refused, match="and policy 'affinity' was asked for"):
        store.groups.save_group(a_group('affinity', uuid=group.uuid))
    assert store.groups.load_group(group.uuid) == group


def test_followers_are_told_of_it(store, host):
    before = store.feed.load_everything().position
    group = store.groups.save_group(a_set())
    everything = store.feed.load_everything()
    assert everything.rules[group.uuid].policies == TEXT
    news = store.feed.poll(before, {})
    assert news.rules[group.uuid].policies == TEXT
    rules, _ = store.feed.read_groups([group.uuid])
    assert rules[group.uuid] == everything.rules[group.uuid]


def test_a_request_makes_a_group_with_the_set_that_it_names(store, host):
    uuid = new_uuid()
    assert report_outcome(
        store, a_draft(group=a_precondition(uuid)).taking(host, group=uuid)
    ).outcome is (CommitStatus.PLACED)
    loaded = store.groups.load_group(uuid)
    assert (loaded.rule.policies, loaded.subgroups) == (TEXT, {'front': ['db', 'web']})
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize(
    'precondition',
    [
        {'policies': '{"policies":["affinity"]}'},
        {'policy': 'anti-affinity', 'policies': None},
        {'policies': TEXT.replace('web', 'wob')},
    ],
)
@pytest.mark.parametrize('guarded', [True, False])
def test_what_was_planned_under_another_set_is_not_committed(store, host, precondition, guarded):
    group = store.groups.save_group(a_set())
    generation = group.generation if guarded else None
    planned = msgspec.structs.replace(
        a_precondition(group.uuid, generation, makes=False), **precondition
    )
    draft = a_draft(group=planned).taking(host, group=group.uuid)
    assert report_outcome(store, draft).outcome is CommitStatus.GROUP_CHANGED
    assert store.groups.load_group(group.uuid).members == []
    draft = a_draft(group=a_precondition(group.uuid, generation)).taking(host, group=group.uuid)
    assert report_outcome(store, draft).outcome is CommitStatus.PLACED


def test_what_was_planned_with_older_members_is_not_committed(store, host):
    group = store.groups.save_group(a_set())
    precondition = a_precondition(group.uuid, group.generation)
    first, second = (a_draft(group=precondition).taking(host, group=group.uuid) for _ in range(2))
    assert report_outcome(store, first).outcome is CommitStatus.PLACED
    assert generation_of(store, group.uuid) == group.generation + 1
    assert report_outcome(store, second).outcome is CommitStatus.GROUP_CHANGED


def test_another_group_that_a_policy_is_about_is_compared_as_well(store, host):
    group, other = (
        store.groups.save_group(a_set()),
        store.groups.save_group(a_group('anti-affinity')),
    )
    about = GroupPrecondition(other.uuid, other.generation, 'anti-affinity', makes=False)
    precondition = a_precondition(group.uuid, group.generation)
    theirs = a_draft(group=about).taking(host, group=other.uuid)
    ours = a_draft(group=precondition, groups=(about,)).taking(host, group=group.uuid)
    result = commit(store, theirs, ours)
    assert [outcome.outcome for outcome in result.outcomes][0] is CommitStatus.PLACED
    again = a_draft(group=precondition, groups=(about,)).taking(host, group=group.uuid)
    assert report_outcome(store, again).outcome is CommitStatus.GROUP_CHANGED
    fresh = msgspec.structs.replace(about, generation=generation_of(store, other.uuid))
    precondition = a_precondition(group.uuid, generation_of(store, group.uuid))
    draft = a_draft(group=precondition, groups=(fresh,)).taking(host, group=group.uuid)
    assert report_outcome(store, draft).outcome is CommitStatus.PLACED
    assert store.claims.audit() == CLEAN


def test_a_claim_says_of_which_member_it_is(store, host):
    group = store.groups.save_group(a_set())
    draft = a_draft(group=a_precondition(group.uuid, group.generation)).taking(
        host, group=group.uuid
    )
    [drafted] = draft.fields['claims']
    drafted = msgspec.structs.replace(
        drafted, claim=msgspec.structs.replace(drafted.claim, member_name='web-2')
    )
    assert report_outcome(store, draft.having(claims=[drafted])).outcome is CommitStatus.PLACED
    [claim] = store.claims.list_claims()
    assert claim.member_name == 'web-2'
    [change] = [change for change in store.feed.load_everything().hosts if change.placed]
    assert [placed.member for placed in change.placed] == ['web-2']
