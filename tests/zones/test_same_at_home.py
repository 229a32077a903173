# SPDX-License-Identifier: Apache-2.0
"""What is placed on hosts of a zone is placed there as if no zone were below."""

import random

import msgspec
import pytest

from gantt.core.messages.policy_set import GroupPolicyKind, LevelPolicy, PolicySet
from gantt.core.messages.request import GroupRef, Policy, Purpose
from gantt.core.records.decision import Outcome
from gantt.scheduler.request import loop
from tests.builders import uuid_of
from tests.world import a_request, hosts_of

SIZES = (8, 8, 12, 16, 16, 24, 40)
GROUPS = tuple(uuid_of(f'group {n}') for n in range(6))
#: At levels above hosts.
RACKS = PolicySet(policies=[LevelPolicy(policy=GroupPolicyKind.ANTI_AFFINITY, level='rack')])
RULES = ('drop 1: free.VCPU >= 9', 'free.VCPU >= 5', 'drop 2: free.MEMORY_MB >= 40000')


@pytest.fixture
def sites(zone):
    """A zone with none below, and its twin above three: one is empty, one disabled, one full."""

    def make(**pipeline):
        plain, top = zone('plain', pipeline=pipeline), zone('top', pipeline=pipeline)
        for site in (plain, top):
            for n, vcpu in enumerate(SIZES):
                traits = ['CUSTOM_A'][n % 2 :]
                site.host(f'host-{n}', vcpu, location=f'site.rack-{n % 4}', traits=traits)
            site.store.declarations.save_aggregate(
                'heavy', {'ram_weight_multiplier': '-3.0'}, [f'host-{n}' for n in (1, 4)]
            )
        empty, disabled, full = zone('empty'), zone('disabled').hosts(3, 64), zone('full')
        full.hosts(1, 1)
        top.above(empty, full)
        top.above(disabled, enabled=False)
        return plain, top

    return make


def test_members_are_spread_and_soft_rules_hold_whatever_is_below(sites):
    plain, top = sites()
    for policy in (None, Policy.SOFT_ANTI_AFFINITY, Policy.SOFT_AFFINITY):
        group = None if policy is None else GroupRef(uuid=uuid_of(policy.value), policy=policy)
        request = a_request(6, vcpu=1, group=group)
        dry = msgspec.structs.replace(request, dry_run=True)
        usual, above = hosts_of(plain.select(dry)), hosts_of(top.select(dry))
        assert above == usual
        # An API has a table of its own, which knows what hosts have reported.
        answered = [
            site.post('/v1/requests', msgspec.to_builtins(dry)).json() for site in (plain, top)
        ]
        assert answered[0]['answer']['selections'] == answered[1]['answer']['selections']
        assert hosts_of(top.select(request)) == hosts_of(plain.select(request)) == usual
        assert policy is not Policy.SOFT_ANTI_AFFINITY or len({*usual}) > 3


def requests_of(dice, alive):
    """300 of any kind, and who is cancelled before each."""
    for number in range(300):
        gone = [alive.pop(dice.randrange(len(alive)))] if len(alive) > 12 else []
        fields = {'project_id': dice.choice(('red', 'blue'))}
        group, count = None, dice.choice((1, 1, 1, 2, 3, 6))
        kind = dice.choice(('plain', 'plain', 'nova', 'racks', 'rules', 'move'))
        if kind == 'nova':
            index = dice.randrange(4)
            group = GroupRef(uuid=GROUPS[index], policy=list(Policy)[index])
        elif kind == 'racks':
            group, count = GroupRef(uuid=GROUPS[4], policies=RACKS), 1
        elif kind == 'rules':
            fields['hints'] = {'rules': [dice.choice(RULES)]}
        elif kind == 'move' and alive:
            before, count = dice.choice(alive), 1
            fields |= {'purpose': Purpose.MIGRATE, 'ignore_hosts': hosts_of(before)[:1]}
            fields |= {'consumers': [before.selections[0][0].consumer]}
            fields['move_id'] = uuid_of(f'move {number}')
        if dice.random() < 0.2:
            fields['required_traits'] = ['CUSTOM_A']
        fields.setdefault('consumers', [uuid_of(f'guest {number}.{n}') for n in range(count)])
        yield (
            gone,
            a_request(
                count,
                vcpu=dice.choice((2, 2, 3, 5)),
                ram=dice.choice((512, 4096, 12_000)),
                group=group,
                request_id=uuid_of(f'request {number}'),
                alternates=dice.choice((0, 2)),
                **fields,
            ),
        )


def test_places_at_home_are_the_same_whatever_is_below(sites, monkeypatch):
    # Where a busy machine cuts a request in slices, each is picked by a seed of its own.
    monkeypatch.setattr(loop, 'MEMBER_SLICE_SECONDS', 60.0)
    plain, top = sites(subset_size=2)
    for site in (plain, top):
        site.store.quotas.set_quotas('red', {'class:VCPU': 60})
        site.scheduler.quotas.read()
    dice, alive, outcomes = random.Random(31), [], []
    for gone, request in requests_of(dice, alive):
        for cancelled in gone:
            for site in (plain, top):
                site.cancel(cancelled.request_id)
        usual, above = plain.select(request), top.select(request)
        case = (len(outcomes), request, usual.reason, above.reason)
        assert (above.outcome is Outcome.PLACED) is (usual.outcome is Outcome.PLACED), case
        selections = [
            [
                [msgspec.structs.replace(place, claim_id=None) for place in places]
                for places in answer.selections
            ]
            for answer in (usual, above)
        ]
        assert selections[0] == selections[1], case
        outcomes.append(above.outcome)
        if usual.outcome is Outcome.PLACED:
            alive.append(above)
    assert {Outcome.PLACED, Outcome.NO_VALID_HOST, Outcome.REFUSED} <= {*outcomes}
    for site in (plain, top):
        assert not any(site.store.claims.audit().values())


def test_members_that_go_down_are_spread_there_as_well(zone):
    top, east, flat = zone('top'), zone('east').hosts(6), zone('flat').hosts(6)
    top.above(east)
    answer, usual = top.select(a_request(6, vcpu=2)), flat.select(a_request(6, vcpu=2))
    hosts = [east.store.claims.load_claim(chosen.claim_id).host for chosen, *_ in answer.selections]
    assert len({*hosts}) == len({*hosts_of(usual)}) == 6
