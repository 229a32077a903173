# SPDX-License-Identifier: Apache-2.0
"""Small clouds with a group and its policies, and what these say by plain counting.

Nothing here is an array: guests are counted one after the other, by the text of the domain that
the host of each is in.
"""

from collections import Counter

from hypothesis import strategies as st

from gantt.core.messages.policy_set import (
    GroupPolicyKind,
    LevelPolicy,
    LevelPrice,
    PolicySet,
    PolicyTarget,
)
from gantt.core.messages.request import GroupRef, RequestSpec
from gantt.core.resources.host import Placed
from tests.core.builders import a_change, a_host, a_table, an_id

GROUP, OTHER = an_id(1, 8), an_id(2, 8)
LOCATIONS = ('s1.r1.k1', 's1.r1.k2', 's1.r2.k1', 's2.r1.k1', 's1.r1', '')
LEVELS = ('rack', 'host', 'site', 'room', 'zone')
MEMBERS = ('web', 'db', 'queue')
SUBGROUPS = {'front': ['web'], 'back': ['db', 'queue']}


class Guest:
    """One who stands, of a group or of none."""

    def __init__(self, number, host, group, member):
        self.consumer, self.host = an_id(number, 3), host
        self.group, self.member = group, member
        self.placed = Placed(an_id(number, 2), self.consumer, host, group, member=member)


@st.composite
def policies(draw):
    """One policy of any kind, hard, soft or given up in order."""
    kind = draw(st.sampled_from([*GroupPolicyKind, GroupPolicyKind.NEAR]))
    fields = {'policy': kind, 'level': draw(st.sampled_from(LEVELS))}
    is_near = kind is GroupPolicyKind.NEAR
    subjects = ('web', 'front', None) if is_near else (None, 'web', 'front', 'back', ['web', 'db'])
    fields['of'] = draw(st.sampled_from(subjects))
    strength = draw(st.sampled_from(('hard', 'hard', 'soft', 'drop')))
    if strength != 'hard':
        fields[strength] = draw(st.sampled_from((1, 2)))
    if kind is GroupPolicyKind.SPREAD:
        of = draw(st.sampled_from(('max_per_domain', 'min_domains', 'max_skew')))
        fields[of] = draw(st.integers(0 if of == 'max_skew' else 1, 3))
    others = [
        {'group': OTHER},
        {'host': draw(st.sampled_from(('cmp-1', 'cmp-99')))},
        {'domain': draw(st.sampled_from(('s1', 's1.r1.k1', 'nova', 'nowhere')))},
    ]
    if is_near or (kind is GroupPolicyKind.ANTI_AFFINITY and draw(st.booleans())):
        if fields['of'] in ('web', 'front'):
            others = [{'of': 'back'}, {'of': 'db'}, *others]
        fields['target'] = PolicyTarget(**draw(st.sampled_from(others)))
    elif kind is GroupPolicyKind.ANTI_AFFINITY:
        fields['max_per_domain'] = draw(st.sampled_from((None, 1, 2)))
    if is_near and strength == 'soft' and draw(st.booleans()):
        fields['prices'] = [
            LevelPrice(level='rack', price=0.0),
            LevelPrice(level='site', price=0.5),
        ]
    return LevelPolicy(**fields)


@st.composite
def worlds(draw):
    """Hosts, guests, a set of policies, and a member to be placed."""
    return PolicyWorld(
        places=draw(st.lists(st.sampled_from(LOCATIONS), min_size=2, max_size=6)),
        zones=[draw(st.sampled_from((None, 'east'))) for _ in range(6)],
        policies=draw(st.lists(policies(), min_size=2, max_size=6)),
        guests=draw(
            st.lists(
                st.tuples(
                    st.integers(0, 5),
                    st.sampled_from((GROUP, GROUP, GROUP, OTHER, None)),
                    st.sampled_from((None, *MEMBERS, 'web-2')),
                ),
                min_size=1,
                max_size=8,
            )
        ),
        member=draw(st.sampled_from(('web', 'web-7', 'db', 'queue', None, 'stranger'))),
        is_there=draw(st.booleans()),
    )


class PolicyWorld:
    """See the module docstring.

    :ivar consumer: who is placed; where it is there already that does not count
    """

    def __init__(self, places, zones, policies, guests, member, is_there):
        self.places, self.member = places, member
        self.zones = zones[: len(places)]
        self.policies = PolicySet(policies=policies, subgroups=SUBGROUPS)
        self.guests = [
            Guest(i, 1 + host % len(places), group, name)
            for i, (host, group, name) in enumerate(guests)
        ]
        mine = [guest for guest in self.guests if guest.group == GROUP]
        self.consumer = mine[0].consumer if is_there and mine else an_id(0, 5)

    def __repr__(self):
        guests = [(g.host, (g.group or '')[-2:], g.member) for g in self.guests]
        return f'{self.places} {self.zones} {self.policies.policies} {guests} {self.member}'

    def table(self):
        hosts = [
            a_change(
                a_host(number, location=place, zone=zone),
                *(guest.placed for guest in self.guests if guest.host == number),
            )
            for number, (place, zone) in enumerate(zip(self.places, self.zones, strict=True), 1)
        ]
        return a_table(*hosts)

    def spec(self):
        group = GroupRef(uuid=GROUP, policies=self.policies, member=self.member)
        return RequestSpec(resources={'VCPU': 1}, group=group)

    # -- by definition -------------------------------------------------------------------

    def domain(self, host, level):
        """The domain of a host, None where it is not known."""
        if level == 'host':
            return f'cmp-{host}'
        if level == 'zone':
            return self.zones[host - 1] or 'nova'
        parts = self.places[host - 1].split('.') if self.places[host - 1] else []
        depth = ('site', 'room', 'rack').index(level) + 1
        return '.'.join(parts[:depth]) if len(parts) >= depth else None

    def of_group(self):
        return [g for g in self.guests if g.group == GROUP and g.consumer != self.consumer]

    @staticmethod
    def plain(member):
        """The member that one is, as ``web`` for ``web-2``."""
        return 'web' if member is not None and member.startswith('web-') else member

    def members(self, subject):
        return None if subject is None else SUBGROUPS.get(subject, [subject])

    def is_of(self, member, subject):
        names = self.members(subject)
        return names is None or self.plain(member) in names

    def present_members(self, subject):
        return [guest.host for guest in self.of_group() if self.is_of(guest.member, subject)]

    def counts(self, hosts, level):
        return Counter(d for host in hosts if (d := self.domain(host, level)) is not None)

    def target(self, policy):
        """Hosts of what it is to be near to, or apart from."""
        target = policy.target
        if target.of is not None:
            return self.present_members(target.of)
        if target.group is not None:
            return [guest.host for guest in self.guests if guest.group == OTHER]
        everybody = range(1, len(self.places) + 1)
        if target.host is not None:
            return [host for host in everybody if f'cmp-{host}' == target.host]
        return [host for host in everybody if self.domain(host, policy.level) == target.domain]

    def costs(self, strength, could=None):
        """(policy, cost by host) of each policy of a strength and each of its subjects."""
        return [(subject, cost) for subject, _, cost in self.costs_by_subject(strength, could)]

    def costs_by_subject(self, strength, could=None):
        """(policy, subject, cost by host), as ``costs``."""
        everybody = range(1, len(self.places) + 1)
        for policy in self.policies.full_policies:
            if policy.strength != strength:
                continue
            for subject in policy.subjects:
                is_of = self.is_of(self.member, subject)
                is_target = (
                    policy.target is not None
                    and policy.target.of is not None
                    and self.is_of(self.member, policy.target.of)
                    and self.member is not None
                )
                if policy.policy is GroupPolicyKind.EXCLUSIVE:
                    is_target = not is_of
                if is_of or is_target:
                    by_host = [self.cost(policy, subject, is_of, h, could) for h in everybody]
                    yield policy, subject, by_host

    def cost(self, policy, subject, is_of, host, could):
        here = self.domain(host, policy.level)
        mine = self.present_members(subject)
        kind = policy.policy
        if kind is GroupPolicyKind.NEAR:
            return self.near(policy, mine, is_of, host)
        if kind is GroupPolicyKind.ANTI_AFFINITY and policy.target is not None:
            others = self.target(policy) if is_of else mine
            there = self.counts(others, policy.level)
            return float(here is None or there[here] > 0)
        if kind is GroupPolicyKind.EXCLUSIVE:
            if not is_of:
                return float(here is not None and self.counts(mine, policy.level)[here] > 0)
            others = [
                g.host
                for g in self.guests
                if g.consumer != self.consumer
                and not (g.group == GROUP and self.is_of(g.member, subject))
            ]
            return float(here is None or self.counts(others, policy.level)[here] > 0)
        if here is None:
            return 1.0
        counts = self.counts(mine, policy.level)
        if kind is GroupPolicyKind.AFFINITY:
            return float(bool(counts) and not counts[here])
        if kind is GroupPolicyKind.ANTI_AFFINITY:
            return float(counts[here] >= (policy.max_per_domain or 1))
        if policy.max_per_domain is not None:
            return float(counts[here] >= policy.max_per_domain)
        if policy.min_domains is not None:
            return float(len(counts) < policy.min_domains and counts[here] > 0)
        return self.skew(policy, counts, here, could)

    def skew(self, policy, counts, here, could):
        hosts = range(1, len(self.places) + 1) if could is None else could
        eligible = {d for h in hosts if (d := self.domain(h, policy.level)) is not None}
        after = counts + Counter([here])
        least = min((after[d] for d in eligible), default=after[here])
        return float(after[here] - least > policy.max_skew)

    def price(self, policy, host, target):
        priced = [(p.level, p.price) for p in policy.prices] or [(policy.level, 0.0)]
        for level, price in priced:
            here = self.domain(host, level)
            if here is not None and self.counts(target, level)[here]:
                return price
        return policy.beyond

    def near(self, policy, mine, is_of, host):
        target = self.target(policy)
        if is_of:
            waits = policy.target.of is not None and not target
            return 0.0 if waits else self.price(policy, host, target)
        # What stands and is not near yet wants this one near: where most of it is, nothing is lost.
        level, least = ('rack', 0.0) if policy.prices else (policy.level, 0.0)
        worth = Counter()
        for member_host in mine:
            if (there := self.domain(member_host, level)) is not None:
                worth[there] += self.price(policy, member_host, target) - least
        best = max(worth.values(), default=0)
        here = self.domain(host, level)
        return max(best - (worth[here] if here is not None else 0), 0)
