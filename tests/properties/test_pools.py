# SPDX-License-Identifier: Apache-2.0
"""Pools that hosts share are a plain list of pools, through any history; who asks not, pays not."""

from typing import Any

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gantt import plugin_loader
from gantt.core.filters.resources import ResourcesFilter
from gantt.core.messages.request import RequestSpec, SelectDestinations
from gantt.core.messages.resource_classes import Inventory
from gantt.core.placement import capacity
from gantt.core.placement.place import place, undo_decision
from gantt.core.records.decision import Decision
from gantt.core.resources.host import HostChange, HostRow, Placed
from gantt.core.resources.provider import PoolUsage, SharedPool
from gantt.core.table.host_table import HostTable
from tests.core.builders import NOW, a_host, a_table, an_id
from tests.thorough import examples

CLASSES = ('VCPU', 'DISK_GB', 'CUSTOM_A')
SHARED = ('DISK_GB', 'CUSTOM_A')
HOSTS, POOLS = range(1, 5), range(101, 104)
PIPELINE = plugin_loader.load_pipeline()
RULE = ResourcesFilter()

inventory = st.builds(
    Inventory,
    total=st.integers(0, 9),
    min_unit=st.sampled_from((1, 1, 2)),
    step_size=st.sampled_from((1, 1, 3)),
    max_unit=st.sampled_from((None, 4)),
)
host = st.sampled_from(HOSTS)
pool = st.sampled_from(POOLS)
wanted = st.builds(
    lambda amount, more: {'CUSTOM_A': amount} | more,
    st.integers(1, 3),
    st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 4), max_size=1),
)
has_shared = st.builds(
    lambda inventory, more: {'CUSTOM_A': inventory} | more,
    inventory,
    st.dictionaries(st.sampled_from(SHARED), inventory, max_size=1),
)
use = st.dictionaries(st.sampled_from(SHARED), st.integers(0, 3))
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just('host'),
            host,
            st.dictionaries(st.sampled_from(CLASSES), inventory),
            st.booleans(),
        ),
        st.tuples(
            st.just('pool'),
            pool,
            has_shared,
            use,
            st.frozensets(host, min_size=2),
            st.booleans(),
        ),
        st.tuples(st.just('take'), host, wanted, st.booleans()),
        st.tuples(st.just('take'), host, wanted, st.booleans()),
        st.tuples(st.just('give'), st.integers(0, 99)),
        st.tuples(st.just('known'), st.sampled_from((*HOSTS, *POOLS)), st.booleans()),
        st.tuples(st.just('known'), st.sampled_from((*HOSTS, *POOLS)), st.booleans()),
        st.tuples(st.just('remove_host'), host),
        st.tuples(st.just('remove_pool'), pool),
        st.tuples(st.just('copy')),
        st.tuples(st.just('place'), wanted, st.integers(1, 4)),
        st.tuples(st.just('count'), wanted),
    ),
    min_size=12,
    max_size=40,
)
#: Each host is in one of its own: a pool is in those of the hosts that it serves.
AGGREGATES = {number: an_id(number, 8) for number in range(1, 41)}
OF_AGGREGATE = {uuid: number for number, uuid in AGGREGATES.items()}
sizes = st.lists(st.integers(1, 9), min_size=6, max_size=6)


class Claim(msgspec.Struct):
    """A pick or a claim: where it is, what it takes of whom, and who is known with it."""

    host: int
    id: str
    placed: Placed
    of: dict[tuple[int, str], int]
    is_open: bool = True  # a pick that its host is not known with
    known: set[int] = msgspec.field(default_factory=set)  # pools


class World:
    """A table, and lists that say the same."""

    def __init__(self) -> None:
        self.table = HostTable(rows=2)
        self.table.now = NOW
        self.hosts: dict[int, HostRow] = {}
        self.pools: dict[int, SharedPool] = {}
        self.claims: list[Claim] = []
        self.serial = 0

    # -- the plain rules -----------------------------------------------------------

    def free(self, provider: int, name: str) -> int:
        provider_of = self.hosts.get(provider) or self.pools[provider]
        has = (
            provider_of.facts.inventories
            if isinstance(provider_of, HostRow)
            else provider_of.inventories
        )
        taken = sum(
            claim.of.get((provider, name), 0)
            for claim in self.claims
            if (claim.is_open if provider in self.hosts else provider not in claim.known)
        )
        cap = has[name].cap if name in has else 0
        return cap - provider_of.used.get(name, 0) - provider_of.foreign.get(name, 0) - taken

    def fits(self, provider: int, name: str, amount: int) -> bool:
        provider_of = self.hosts.get(provider) or self.pools[provider]
        has = (
            provider_of.facts.inventories
            if isinstance(provider_of, HostRow)
            else provider_of.inventories
        )
        if name not in has:
            return False
        units = has[name]
        in_units = units.min_unit <= amount <= units.largest and amount % units.step_size == 0
        return in_units and self.free(provider, name) >= amount

    def source(self, number: int, name: str, amount: int) -> int | None:
        """Who an amount comes from; None: nobody has it."""
        if self.fits(number, name, amount):
            return number
        serving = [p for p in sorted(self.pools) if AGGREGATES[number] in self.pools[p].aggregates]
        fitting = [p for p in serving if self.fits(p, name, amount)]
        return min(fitting, key=lambda p: self.free(p, name)) if fitting else None

    # -- steps ----------------------------------------------------------------------

    def host(self, number: int, has: dict[str, Inventory], all_known: bool) -> None:
        """News of a host, known with all of its picks or with none, without half its claims."""
        old = self.hosts.get(number)
        here = [claim for claim in self.claims if claim.host == number]
        stay = [claim for claim in here if claim.is_open or claim.id[-1] in '02468ace']
        for claim in stay:
            claim.is_open = claim.is_open and not all_known
        gone = [claim for claim in here if claim not in stay]
        self.claims = [claim for claim in self.claims if claim not in gone]
        used: dict[str, int] = {}
        for claim in stay:
            for (provider, name), amount in claim.of.items():
                if provider == number and not claim.is_open:
                    used[name] = used.get(name, 0) + amount
        row = a_host(
            number,
            version=old.version + 1 if old else 1,
            used=used,
            aggregates=[AGGREGATES[number]],
        )
        facts = msgspec.structs.replace(row.facts, inventories=has)
        row = self.hosts[number] = msgspec.structs.replace(row, facts=facts)
        placed = [claim.placed for claim in stay if not claim.is_open]
        assert self.table.apply(HostChange(provider_id=number, row=row, placed=placed))
        for claim in gone:  # as who made it hears that it came to nothing
            self.table.remove_pick(number, {}, claim.id)

    def pool(
        self,
        number: int,
        has: dict[str, Inventory],
        foreign: dict[str, int],
        hosts: frozenset[int],
        all_known: bool,
    ) -> None:
        """News of a pool, after a commit of the claims on it or without one."""
        old = self.pools.get(number)
        version = old.version + 1 if old else 1
        if all_known and old:
            on_it = [c for c in self.claims if any(provider == number for provider, _ in c.of)]
            for claim in on_it:
                claim.known.add(number)
            usage = PoolUsage(
                id=number,
                version=version + self.serial % 2,
                is_written=True,
                inventories=old.inventories,
                used=self.used(number),
                foreign=old.foreign,
            )
            self.table.correct_pool(usage, {claim.id for claim in on_it})
            self.pools[number] = msgspec.structs.replace(
                old, used=usage.used, version=usage.version
            )
            self.check_amounts()
            version = usage.version + 1
        pool = self.pools[number] = SharedPool(
            id=number,
            version=version,
            inventories=has,
            used=self.used(number),
            foreign=foreign,
            aggregates=sorted(AGGREGATES[host] for host in hosts),
        )
        assert self.table.set_pool(pool)
        assert not self.table.set_pool(pool)

    def used(self, number: int) -> dict[str, int]:
        """What is used of a pool by the claims that it is known with."""
        used: dict[str, int] = {}
        for claim in self.claims:
            for (provider, name), amount in claim.of.items():
                if provider == number and number in claim.known:
                    used[name] = used.get(name, 0) + amount
        return used

    def known(self, number: int, all_known: bool) -> None:
        """News in which nothing is new but whose claims there are."""
        if number in self.hosts:
            self.host(number, self.hosts[number].facts.inventories, all_known)
        elif number in self.pools:
            pool = self.pools[number]
            hosts = frozenset(OF_AGGREGATE[uuid] for uuid in pool.aggregates)
            self.pool(number, pool.inventories, pool.foreign, hosts, all_known)

    def take(self, number: int, amounts: dict[str, int], anyway: bool) -> None:
        if number not in self.hosts:
            return
        sources = {name: self.source(number, name, n) for name, n in amounts.items()}
        if None in sources.values() and not anyway:
            return
        self.serial += 1
        placed = Placed(an_id(self.serial, 2), an_id(self.serial, 3), number)
        row = self.table.row_of_id(number)
        expected = {number: {}} | {}
        for name, source in sources.items():
            expected.setdefault(source or number, {})[name] = amounts[name]
        assert self.table.providers_of(row, amounts) == expected
        self.table.add_pick(number, amounts, placed)
        of = {(sources[name] or number, name): n for name, n in amounts.items()}
        self.claims.append(Claim(number, placed.claim_id, placed, of))

    def give(self, number: int) -> None:
        picks = [claim for claim in self.claims if claim.is_open]
        if not picks:
            return
        claim = picks[number % len(picks)]
        self.table.remove_pick(claim.host, {}, claim.id)
        self.claims.remove(claim)

    def remove_host(self, number: int) -> None:
        self.table.apply(HostChange(provider_id=number, row=None))
        self.hosts.pop(number, None)
        self.claims = [claim for claim in self.claims if claim.host != number]

    def remove_pool(self, number: int) -> None:
        assert self.table.remove_pool(number) == (number in self.pools)
        if self.pools.pop(number, None):
            for claim in self.claims:
                claim.of = {key: n for key, n in claim.of.items() if key[0] != number}
                claim.known.discard(number)

    def copy(self) -> None:
        """Go on with a copy; what it was made of is written to in vain."""
        old, self.table = self.table, self.table.copy()
        for number in HOSTS:
            old.apply(HostChange(provider_id=number, row=None))
        for number in POOLS:
            old.remove_pool(number)

    def place(self, amounts: dict[str, int], members: int) -> None:
        """Each member is where it fits, and is taken back."""
        self.serial += 1
        request = SelectDestinations(
            request_id=an_id(self.serial, 5),
            spec=RequestSpec(resources=amounts),
            consumers=[an_id(self.serial * 10 + i, 6) for i in range(members)],
        )
        decision = place(self.table, request, PIPELINE, seed=1, decision_id='one')
        chosen = [member.selection.provider_id for member in decision.members if member.selection]
        for number in chosen:
            assert all(self.source(number, name, n) for name, n in amounts.items())
            self.serial += 1
            placed = Placed(an_id(self.serial, 2), an_id(self.serial, 3), number)
            of = {(self.source(number, name, n), name): n for name, n in amounts.items()}
            self.claims.append(Claim(number, placed.claim_id, placed, of))
        self.check_amounts()
        if not chosen:
            fitting = self.fitting(amounts)
            assert members > 1 or not fitting
        undo_decision(self.table, decision, request)
        self.claims = self.claims[: len(self.claims) - len(chosen)]

    def count(self, amounts: dict[str, int]) -> None:
        """As many fit as can be placed host by host."""
        rows = np.array(
            [self.table.row_of_id(number) for number in self.fitting(amounts)], np.int64
        )
        room = capacity.free_capacity(self.table, RequestSpec(resources=amounts), np.sort(rows))
        claims, counts = list(self.claims), []
        for row in room.rows:
            number, count = self.table.hosts[row].id, 0
            while all(self.source(number, name, n) for name, n in amounts.items()):
                of = {(self.source(number, name, n), name): n for name, n in amounts.items()}
                self.claims.append(Claim(number, 'x', Placed('x', 'x', number), of))
                count += 1
            counts.append(count)
        self.claims = claims
        assert int(room.counts.sum()) == room.total == sum(counts)

    # -- what is compared -------------------------------------------------------------

    def fitting(self, amounts: dict[str, int]) -> list[int]:
        return [
            number
            for number in self.hosts
            if all(self.source(number, name, n) for name, n in amounts.items())
        ]

    def check_amounts(self) -> None:
        for number in self.hosts:
            state = self.table.host_state(self.table.row_of_id(number))
            assert {n: state.free(n) for n in CLASSES} == {n: self.free(number, n) for n in CLASSES}
        for number, pool in self.pools.items():
            for name in pool.inventories:
                assert self.table.pools.free(number, name) == self.free(number, name)

    def check(self) -> None:
        self.check_amounts()
        for name in CLASSES:
            for amount in (1, 3):
                spec = RequestSpec(resources={name: amount, 'VCPU': 1})
                mask = RULE.mask(self.table, spec)
                passes = [RULE.passes(self.table, spec, row) for row in range(len(self.table))]
                assert mask.tolist() == passes
                ids = [self.table.hosts[row].id for row in np.flatnonzero(mask)]
                assert sorted(ids) == sorted(self.fitting(spec.resources))
                removed = np.flatnonzero(~mask)
                if len(removed):
                    parts = RULE.detail(self.table, spec, removed)['parts']
                    assert sum(parts.values()) == len(removed)
                    assert RULE.remedy(self.table, spec, removed)
                for row in range(len(self.table)):
                    fit = self.table.host_state(row).fit(spec.resources)
                    assert fit.ok == passes[row]


@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
@given(sizes, steps)
def test_any_history_of_pools_is_a_list_of_pools(total: list[int], history: list[Any]) -> None:
    world = World()
    for number in HOSTS[:3]:
        own = {'CUSTOM_A': Inventory(total=total[number - 1])} if number == 2 else {}
        world.host(number, {'VCPU': Inventory(total=99)} | own, False)
    for number, hosts in zip(POOLS, ((1, 2), (1, 2, 3), (3, 4)), strict=False):
        has = {'CUSTOM_A': Inventory(total=total[number - 98])}
        world.pool(number, has, {}, frozenset(hosts), False)
    for kind, *arguments in history:
        getattr(world, kind)(*arguments)
        world.check()


# -- who asks for none ------------------------------------------------------------------


def some_hosts(count: int = 40) -> HostTable:
    numbers = range(1, count + 1)
    return a_table(
        *(a_host(n, vcpu=8 + n % 5, disk=20, aggregates=[AGGREGATES[n]]) for n in numbers)
    )


def a_pool(**fields: Any) -> SharedPool:
    return SharedPool(
        id=1000,
        version=1,
        inventories={'CUSTOM_A': Inventory(total=8)},
        **({'aggregates': [AGGREGATES[host] for host in range(1, 21)]} | fields),
    )


def decided(table: HostTable, amounts: dict[str, int], members: int) -> Decision:
    request = SelectDestinations(
        request_id=an_id(1, 5),
        spec=RequestSpec(resources=amounts),
        consumers=[an_id(i, 6) for i in range(members)],
    )
    return place(table, request, PIPELINE, seed=1, decision_id='one')


def test_a_request_that_asks_for_no_class_of_a_pool_is_placed_as_without_it():
    plain, pooled = some_hosts(), some_hosts()
    pooled.set_pool(a_pool())
    without, with_it = (decided(t, {'VCPU': 1, 'DISK_GB': 1}, 20) for t in (plain, pooled))
    assert list(without.members) == list(with_it.members)
    # All members but the first go on from what was seen for it.
    assert len(with_it.members.evaluations) == len(without.members.evaluations) == 1


def test_a_request_that_asks_for_a_class_of_a_pool_gets_no_more_than_there_is():
    table = some_hosts()
    table.set_pool(a_pool())
    assert decided(table, {'VCPU': 1, 'CUSTOM_A': 1}, 9).outcome == 'no_valid_host'
    assert table.pools.free(1000, 'CUSTOM_A') == 8
    decision = decided(table, {'VCPU': 1, 'CUSTOM_A': 1}, 8)
    assert {member.selection.provider_id for member in decision.members} <= set(range(1, 21))
    assert table.pools.free(1000, 'CUSTOM_A') == 0
    assert (table.free_of(table.class_code('CUSTOM_A')) == 0).all()
    assert decided(table.snapshot().copy(), {'VCPU': 1, 'CUSTOM_A': 1}, 1).outcome != 'placed'


def test_what_a_pick_takes_of_a_pool_is_gone_for_hosts_that_were_not_picked():
    table = a_table(
        a_host(1, vcpu=99, aggregates=[AGGREGATES[1]]),
        a_host(2, vcpu=90, aggregates=[AGGREGATES[2]]),
    )
    for number, hosts in ((101, (1, 2)), (102, (1,))):
        has = {'CUSTOM_A': Inventory(total=1)}
        of = [AGGREGATES[host] for host in hosts]
        table.set_pool(SharedPool(id=number, version=1, inventories=has, aggregates=of))
    # The first member takes what the second host could have, and the first host has more.
    decision = decided(table, {'CUSTOM_A': 1, 'MEMORY_MB': 10000}, 2)
    assert [member.selection.provider_id for member in decision.members] == [1, 1]


def test_the_fullest_pool_that_fits_is_taken_from_so_that_large_pieces_stay():
    table = a_table(a_host(1, aggregates=[AGGREGATES[1]]))
    for number, total in ((101, 9), (102, 3), (103, 5)):
        has = {'CUSTOM_A': Inventory(total=total)}
        of = [AGGREGATES[1]]
        table.set_pool(SharedPool(id=number, version=1, inventories=has, aggregates=of))
    taken = []
    for amount in (2, 4, 1, 9):
        (source,) = table.providers_of(0, {'CUSTOM_A': amount}).keys() - {1}
        taken.append(source)
        claim = an_id(len(taken), 2)
        table.add_pick(1, {'CUSTOM_A': amount}, Placed(claim, claim, 1))
    assert taken == [102, 103, 102, 101]
