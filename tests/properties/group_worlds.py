# SPDX-License-Identifier: Apache-2.0
"""Small groups on small clouds, and a reference that tries every assignment there is.

The reference knows nothing of the engine: it reads the description and the cloud as they were
drawn, and counts with dictionaries.
"""

import itertools
import random
from collections import Counter

from gantt import plugin_loader
from gantt.core.messages.resource_classes import Inventory
from gantt.core.resources.host import HostFacts, HostRow, Placed, ReportedMetric
from gantt.core.table.host_table import HostTable
from gantt.core.table.metrics import DeclaredMetric
from gantt.groups.model import group_description
from tests.core.builders import NOW, a_change, an_id

GROUP, OTHER = an_id(1, 70), an_id(2, 70)
COST_MAX = 1000.0
KINDS = ['affinity', 'anti-affinity', 'spread', 'exclusive', 'near']
PRICES = [{'level': 'rack', 'price': 0.2}, {'level': 'room', 'price': 0.6}]


def most_of(member):
    """How many there may be of a member."""
    count = member['count']
    return count if isinstance(count, int) else count[1]


class SmallWorld:
    """A cloud and a group, drawn from a seed.

    :ivar body: of the description
    :ivar hosts: of each its room, location and cost
    :ivar guests: (host, group, member) of what stands
    """

    def __init__(self, seed):
        rng = self.rng = random.Random(seed)
        self.steady = rng.random() < 0.75
        self.hosts = [
            {
                'vcpu': rng.choice([1, 2, 2, 3, 4]),
                'location': rng.choice(['s1.r1.k1', 's1.r1.k2', 's1.r2.k1', 's1.r2.k1', 's1', '']),
                'cost': rng.randrange(0, 1000),
                'ssd': rng.random() < 0.6,
            }
            for _ in range(rng.randint(2, 4))
        ]
        self.body = self._group(rng)
        names = [member['name'] for member in self.body['members']]
        self.guests = [
            (rng.randrange(len(self.hosts)), rng.choice([GROUP, GROUP, OTHER]), rng.choice(names))
            for _ in range(rng.choice([0, 0, 1, 2]))
        ]

    def _group(self, rng):
        members, total = [], 0
        for number in range(rng.randint(1, 3)):
            most = rng.randint(1, 4 - total) if total < 4 else 0
            if not most:
                break
            total += most
            count = most if rng.random() < 0.8 else [rng.randint(0, most - 1), most]
            member = {'name': f'm{number}', 'count': count, 'spec': self._spec(rng)}
            if rng.random() < 0.15:
                member['alternatives'] = [self._spec(rng)]
            members.append(member)
        names = [member['name'] for member in members]
        subgroups = {'part': rng.sample(names, rng.randint(1, len(names)))}
        policies = [self._policy(rng, members, subgroups) for _ in range(rng.choice([0, 1, 2, 3]))]
        return {
            'uuid': GROUP,
            'members': members,
            'subgroups': subgroups,
            'policies': [policy for policy in policies if policy],
        }

    def _spec(self, rng):
        spec = {'resources': {'VCPU': rng.choice([1, 1, 2])}}
        rule = rng.random()
        if rule < 0.15:
            spec['required_traits'] = ['STORAGE_DISK_SSD']
        elif rule < 0.3:
            order = rng.choice([1, 2])
            spec['hints'] = {'rules': [f'drop {order}: traits contains "STORAGE_DISK_SSD"']}
        return spec

    def _policy(self, rng, members, subgroups):
        about = rng.choice([None, 'part', members[0]['name']])
        inside = self.members_of(about, members, subgroups)
        level = rng.choice(['host', 'rack', 'room'])
        policy = {
            'policy': rng.choice(['affinity', 'anti-affinity', 'spread', 'exclusive', 'near'])
        }
        policy['level'] = level
        if about:
            policy['of'] = about
        outside = [member['name'] for member in members if member['name'] not in inside]
        if policy['policy'] == 'anti-affinity':
            if outside and rng.random() < 0.4:
                policy['target'] = {'of': rng.choice(outside)}
            else:
                policy['max_per_domain'] = rng.choice([1, 1, 2])
        if policy['policy'] == 'spread':
            most = sum(
                member['count'] if isinstance(member['count'], int) else member['count'][1]
                for member in members
                if member['name'] in inside
            )
            form = rng.choice(['max_per_domain', 'min_domains', 'max_skew'])
            policy[form] = (
                rng.choice([0, 1]) if form == 'max_skew' else rng.randint(1, min(2, most))
            )
        if policy['policy'] == 'near':
            target = rng.choice(['of', 'host', 'group'])
            if target == 'of' and not outside:
                target = 'host'
            value = {'host': 'cmp-0', 'group': OTHER}.get(target) or rng.choice(outside)
            policy['target'] = {target: value}
        kind = rng.random()
        if kind < 0.3:
            policy['soft'] = rng.choice([0.5, 1.0, 2.0])
            if policy['policy'] == 'near' and rng.random() < 0.5:
                policy['prices'] = [
                    {'level': 'rack', 'price': 0.2},
                    {'level': 'room', 'price': 0.6},
                ]
        elif kind < 0.5:
            policy['drop'] = rng.choice([1, 2])
        return policy

    @staticmethod
    def members_of(about, members, subgroups):
        if about is None:
            return [member['name'] for member in members]
        return subgroups.get(about, [about])

    # -- as the engine has it -----------------------------------------------------------------

    @property
    def description(self):
        return group_description.read(self.body)

    @property
    def present_members(self):
        """Consumer -> member, of what stands of the group."""
        return {
            an_id(i, 72): name for i, (_, group, name) in enumerate(self.guests) if group == GROUP
        }

    def table(self):
        changes = []
        for number, host in enumerate(self.hosts):
            row = HostRow(
                id=number + 1,
                uuid=an_id(number, 1),
                name=f'cmp-{number}',
                version=1,
                reported_at=NOW - 10,
                facts=HostFacts(
                    inventories={'VCPU': Inventory(total=host['vcpu'])},
                    location=host['location'] or None,
                    traits=['STORAGE_DISK_SSD'] if host['ssd'] else [],
                    metrics={'cost': ReportedMetric(value=float(host['cost']))},
                ),
            )
            placed = [
                Placed(an_id(i, 71), an_id(i, 72), number + 1, group)
                for i, (at, group, _) in enumerate(self.guests)
                if at == number
            ]
            changes.append(a_change(row, *placed))
        declared = [DeclaredMetric(name='cost', lower=0.0, upper=COST_MAX)]
        return HostTable.build(changes, [], {}, ['VCPU'], NOW, metrics=declared)

    def pipeline(self):
        if self.steady:
            options = {'metrics_weight_setting': 'cost=1.0', 'metrics_weight_multiplier': -1.0}
            return plugin_loader.load_pipeline(weighers=['MetricsWeigher'], options=options)
        return plugin_loader.load_pipeline(weighers=['CPUWeigher'])

    # -- the reference -----------------------------------------------------------------------------

    def units(self, only=None):
        """(name, description, must be placed) of each member; ``only``: name -> how many."""
        units = []
        for member in self.body['members']:
            count = member['count']
            least, most = (count, count) if isinstance(count, int) else count
            for number in range(most):
                name = member['name'] if most == 1 else f'{member["name"]}-{number + 1}'
                units.append((name, member, number < least))
        if only is None:
            return units
        unstarted = dict(only)
        some = []
        for unit in units:
            if unit[2] and unstarted.get(unit[1]['name'], 0):
                unstarted[unit[1]['name']] -= 1
                some.append(unit)
        return some

    def assignments(self, units, must=False):
        """Every way to place units that has room: unit name -> (host, choice)."""
        places = []
        for _, member, _ in units:
            specs = [member['spec'], *member.get('alternatives', [])]
            mine = [
                (host, choice)
                for choice, spec in enumerate(specs)
                for host in range(len(self.hosts))
                if 'required_traits' not in spec or self.hosts[host]['ssd']
            ]
            places.append(mine if must else [*mine, None])
        for chosen in itertools.product(*places):
            plan = {
                name: (place, member)
                for (name, member, _), place in zip(units, chosen, strict=True)
                if place is not None
            }
            if self.has_room(plan):
                yield plan

    def spec_of(self, place, member):
        return [member['spec'], *member.get('alternatives', [])][place[1]]

    def has_room(self, plan):
        used = Counter()
        for place, member in plan.values():
            used[place[0]] += self.spec_of(place, member)['resources']['VCPU']
        return all(used[host] <= self.hosts[host]['vcpu'] for host in used)

    def domain(self, host, level):
        """Name of a domain, None where it is not known."""
        if level == 'host':
            return str(host)
        parts = self.hosts[host]['location'].split('.') if self.hosts[host]['location'] else []
        depth = {'site': 1, 'room': 2, 'rack': 3}[level]
        return '.'.join(parts[:depth]) if len(parts) >= depth else None

    def forms(self):
        """(index, policy, what it says) for each thing that a policy says."""
        for index, policy in enumerate(self.body['policies']):
            if policy['policy'] == 'spread':
                for form in ('max_per_domain', 'min_domains', 'max_skew'):
                    if form in policy:
                        yield index, policy, form
            else:
                yield index, policy, policy['policy']

    def violation(self, policy, form, plan):
        """How much a plan violates one thing that a policy says."""
        level = policy['level']
        inside = self.members_of(policy.get('of'), self.body['members'], self.body['subgroups'])
        mine = [
            self.domain(place[0], level)
            for place, member in plan.values()
            if member['name'] in inside
        ]
        lost = mine.count(None)
        here = Counter(d for d in mine if d is not None)
        stands = Counter(
            self.domain(host, level)
            for host, group, name in self.guests
            if group == GROUP and ('of' not in policy or name in inside)
        )
        stands.pop(None, None)
        if form == 'affinity':
            if stands:
                return sum(1 for d in mine if d is None or not stands[d])
            return len(mine) - max(here.values(), default=0)
        if form in ('anti-affinity', 'max_per_domain') and 'target' not in policy:
            most = policy.get('max_per_domain', 1)
            return lost + sum(max(0, n + stands[d] - max(most, stands[d])) for d, n in here.items())
        if form == 'min_domains':
            needed = min(policy['min_domains'], len(mine) + sum(stands.values()))
            return lost + max(0, needed - len(set(here) | set(stands)))
        if form == 'max_skew':
            if not mine:
                return 0
            total = here + stands
            eligible = self.eligible(inside, level)
            least = min((total[d] for d in eligible), default=0)
            beyond = {d: total[d] - max(stands[d], least + policy['max_skew']) for d in eligible}
            return lost + sum(n for n in beyond.values() if n > 0)
        if form == 'near':
            return sum(
                self.price(policy, place[0], plan)
                for place, member in plan.values()
                if member['name'] in inside
            )
        return lost + self.together(policy, form, plan, inside, here, stands)

    def together(self, policy, form, plan, inside, here, stands):
        level = policy['level']
        if form == 'exclusive':
            others = {member['name'] for member in self.body['members']} - set(inside)
            strangers = [
                host
                for host, group, name in self.guests
                if group != GROUP or ('of' in policy and name not in inside)
            ]
        else:
            others = {policy['target']['of']}
            strangers = [
                host for host, group, name in self.guests if group == GROUP and name in others
            ]
        theirs = [
            self.domain(place[0], level)
            for place, member in plan.values()
            if member['name'] in others
        ]
        lost = theirs.count(None) if form != 'exclusive' else 0
        taken = {self.domain(host, level) for host in strangers} | set(theirs)
        mixed = sum(n for d, n in here.items() if d in taken)
        return mixed + sum(1 for d in theirs if d is not None and stands[d]) + lost

    def stands(self, names):
        """Hosts on which members of these names stand."""
        return [host for host, group, name in self.guests if group == GROUP and name in names]

    def price(self, policy, host, plan):
        target = policy['target']
        if 'host' in target:
            rows = [0]
        elif 'group' in target:
            rows = [at for at, group, _ in self.guests if group == OTHER]
        else:
            rows = [
                at for at, group, name in self.guests if group == GROUP and name == target['of']
            ]
            rows += [place[0] for place, member in plan.values() if member['name'] == target['of']]
        levels = policy.get('prices') or [{'level': policy['level'], 'price': 0.0}]
        for entry in levels:
            mine = self.domain(host, entry['level'])
            if mine is not None and mine in {self.domain(row, entry['level']) for row in rows}:
                return entry['price']
        return 1.0

    def eligible(self, inside, level):
        """Domains that have a host for one of these members, all others away."""
        domains = set()
        for member in self.body['members']:
            for spec in (
                [member['spec'], *member.get('alternatives', [])]
                if member['name'] in inside
                else ()
            ):
                for host, of in enumerate(self.hosts):
                    fits = spec['resources']['VCPU'] <= of['vcpu']
                    if fits and ('required_traits' not in spec or of['ssd']):
                        domains.add(self.domain(host, level))
        return domains - {None}

    def is_sound(self, plan, only=None):
        """Whether no hard policy is violated; ``only``: of those with these indices."""
        return not any(
            self.violation(policy, form, plan)
            for index, policy, form in self.forms()
            if 'soft' not in policy and 'drop' not in policy and (only is None or index in only)
        )

    def goals(self, plan):
        """What the engine is to make small, in its order."""
        units = self.units()
        missing = sum(1 for name, _, must in units if must and name not in plan)
        optional = sum(1 for name, _, must in units if not must and name not in plan)
        steps = Counter()
        for place, member in plan.values():
            for text in self.spec_of(place, member).get('hints', {}).get('rules', []):
                steps[int(text[5])] += not self.hosts[place[0]]['ssd']
        weight = 0
        for _, policy, form in self.forms():
            if 'drop' in policy:
                steps[policy['drop']] += self.violation(policy, form, plan)
            elif 'soft' in policy:
                weight += round(1000 * policy['soft'] * self.violation(policy, form, plan))
        orders = sorted(self.orders(), reverse=True)
        far = sum(place[1] for place, _ in plan.values())
        return (missing, optional, *(steps[o] for o in orders), far, weight)

    def orders(self):
        """Orders in which anything may be given up."""
        orders = {policy['drop'] for policy in self.body['policies'] if 'drop' in policy}
        for member in self.body['members']:
            for spec in [member['spec'], *member.get('alternatives', [])]:
                orders |= {int(text[5]) for text in spec.get('hints', {}).get('rules', [])}
        return orders

    def score(self, plan):
        """Of all members, on the cloud with them on it."""
        if self.steady:
            return -sum(self.hosts[place[0]]['cost'] / COST_MAX for place, _ in plan.values())
        used = Counter()
        for place, member in plan.values():
            used[place[0]] += self.spec_of(place, member)['resources']['VCPU']
        return sum(1 - used[place[0]] / self.hosts[place[0]]['vcpu'] for place, _ in plan.values())

    def best(self):
        """The least goals, with the score turned, of all plans."""
        return min(
            (*self.goals(plan), -self.score(plan))
            for plan in self.assignments(self.units())
            if self.is_sound(plan)
        )

    def is_far_from_all(self, policy, units):
        """Whether it is about being near to members that are not looked at, and none stands.

        They are somewhere, and who is looked at may be there too.
        """
        to = policy.get('target', {}).get('of') if policy['policy'] == 'near' else None
        if to is None:
            return False
        names = self.members_of(to, self.body['members'], self.body['subgroups'])
        to_be = any(must and member['name'] in names for _, member, must in self.units())
        return (
            to_be
            and not any(member['name'] in names for _, member, _ in units)
            and not any(group == GROUP and name in names for _, group, name in self.guests)
        )

    def is_possible(self, policies=None, members=None):
        """Whether members can be placed under hard policies of these indices."""
        units = self.units(members) if members is not None else [u for u in self.units() if u[2]]
        hard = range(len(self.body['policies'])) if policies is None else policies
        policies = [k for k in hard if not self.is_far_from_all(self.body['policies'][k], units)]
        return any(self.is_sound(plan, policies) for plan in self.assignments(units, must=True))
