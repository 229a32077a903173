# SPDX-License-Identifier: Apache-2.0
"""A hard skew, member by member and planned: each domain is judged by itself."""

from collections import Counter

import msgspec

from gantt import exceptions
from gantt.core.messages.policy_set import POLICIES_POLICY, GroupPolicyKind, LevelPolicy
from gantt.core.messages.request import GroupRef
from gantt.core.messages.resource_classes import Inventory
from gantt.core.records.decision import Outcome
from gantt.core.resources.host import Group
from gantt.groups.model.group_description import GroupDescription
from gantt.groups.model.violations import PresentMember, find_violations
from gantt.groups.solver.cp_sat import CpSat
from tests import planner as plans
from tests.world import Host, World, a_request, hosts_of, new_uuid, sqlite_store

SKEW = LevelPolicy(policy=GroupPolicyKind.SPREAD, level='zone', max_skew=1)


class Site(World):
    """A host in each of zones A, B and C, and a group."""

    def __init__(self, *vcpus):
        super().__init__(store=sqlite_store)
        for zone, vcpu in zip('ABC', vcpus or (16, 64, 16), strict=True):
            inventories = {'VCPU': Inventory(total=vcpu)}
            inventories |= dict.fromkeys(('MEMORY_MB', 'DISK_GB'), Inventory(total=65_536))
            self.hosts[zone] = Host(self, zone, zone=zone, inventories=inventories)
            self.hosts[zone].report()
        self.uuid = new_uuid()
        self.store.groups.save_group(Group(uuid=self.uuid, policy=POLICIES_POLICY, policies=[SKEW]))
        self.turn()

    def member(self, count=1):
        """The zones of members of one request; [] where it is refused."""
        request = a_request(count, group=GroupRef(uuid=self.uuid), ram=1)
        answer = self.select(request)
        return hosts_of(answer) if answer.outcome is Outcome.PLACED else []

    def members(self, many):
        """Where so many are that are placed one by one."""
        return Counter(zone for _ in range(many) for zone in self.member())

    def disable(self, **reasons):
        for name, reason in reasons.items():
            self.hosts[name].report(disabled=reason)
        self.turn()


class Plan:
    """A group that is planned as a whole, and grows."""

    def __init__(self, site):
        self.site, self.by = site, plans.a_planner(site, CpSat(), plan_seconds=5.0)
        self.uuid = None

    def of(self, count):
        """Where so many are, none of those who were there before moved; None: refused."""
        group = plans.a_description(plans.a_member('web', count), policies=[SKEW])
        if self.uuid is not None:
            group['uuid'] = self.uuid
        ask = plans.a_change if self.uuid else plans.a_plan_request
        try:
            answer = plans.place(self.by, ask(group))
        except exceptions.NoValidHost:
            return None
        self.uuid = answer.group
        self.site.turn()
        self.by.cache.fetch()
        return Counter(claim.host for claim in plans.places(self.site, answer.group).values())


def test_a_domain_that_is_beyond_the_skew_lets_no_other_go_there():
    site = Site()
    site.disable(B='new', C='new')
    assert site.members(3) == {'A': 3}
    site.disable(B=None, C=None)
    there = Counter(A=3, B=0, C=0)
    for _ in range(9):
        [zone] = site.member()
        there[zone] += 1
        assert there[zone] - min(there.values()) <= 1
    assert there == {'A': 4, 'B': 4, 'C': 4}


def test_members_of_one_request_and_a_plan_that_grows_are_judged_so_as_well():
    site = Site()
    plan = Plan(site)
    site.disable(B='new', C='new')
    assert len(site.member(3)) == 3
    assert plan.of(3) == {'A': 3}
    site.disable(B=None, C=None)
    plan.by.cache.fetch()
    assert sorted(Counter(site.member(3)).values()) == [1, 2]
    counts = plan.of(6)
    assert counts['A'] == 3
    assert sorted((counts['B'], counts['C'])) == [1, 2]


def test_a_domain_that_members_have_filled_counts_for_all_doors():
    one_by_one = Site(1, 16, 16).members(7)
    assert one_by_one == {'A': 1, 'B': 2, 'C': 2}
    assert Site(1, 16, 16).member(6) == []
    assert Counter(Site(1, 16, 16).member(5)) == one_by_one
    assert Plan(Site(1, 16, 16)).of(6) is None
    plan = Plan(Site(1, 16, 16))
    assert plan.of(5) == one_by_one
    assert plan.of(6) is None


def test_a_domain_that_nobody_can_come_to_does_not_count():
    site = Site(1, 16, 16)
    other = a_request(1, ram=1, force_hosts=['A'])
    assert hosts_of(site.select(other)) == ['A']
    assert site.members(4) == {'B': 2, 'C': 2}
    plan = Plan(site)
    assert plan.of(4) == {'B': 2, 'C': 2}
    site.disable(B='leaves')
    plan.by.cache.fetch()
    assert site.members(2) == {'C': 2}
    assert plan.of(6) == {'B': 2, 'C': 4}


def test_a_closed_domain_is_no_violation_of_members_that_stand():
    site = Site()
    plan = Plan(site)
    site.disable(C='leaves')
    plan.by.cache.fetch()
    assert plan.of(4) == {'A': 2, 'B': 2}
    assert violations(site, plan) == []
    site.disable(C=None)
    assert violations(site, plan) == [2.0]
    site.disable(B='new')
    assert violations(site, plan) == [1.0]


def violations(site, plan):
    """By how much members break the policy where they are."""
    table = site.scheduler.cache.working
    places = plans.places(site, plan.uuid)
    members = [
        PresentMember(name, 'web', claim.consumer, claim.provider_id)
        for name, claim in places.items()
    ]
    body = plans.a_description(plans.a_member('web', 4), policies=[SKEW], uuid=plan.uuid)
    description = msgspec.convert(body, GroupDescription)
    return [violation.amount for violation in find_violations(table, description, members)]
