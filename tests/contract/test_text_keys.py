# SPDX-License-Identifier: Apache-2.0
"""Names that are alike and not the same: two things, in every store."""

import pytest

from tests.builders import a_host

#: Case, an accent in one piece and in two, width, and spaces at the end.
ALIKE = ['fast', 'Fast', 'fást', 'fa\u0301st', 'ｆａｓｔ', 'fast ', 'fast  ', 'fast\u00a0']


def test_hosts_with_names_alike_are_hosts_of_their_own(store):
    hosts = [a_host(name).with_room(vcpu=n).on(store) for n, name in enumerate(ALIKE, 1)]
    assert len({host.id for host in hosts}) == len(ALIKE)
    totals = {
        change.row.name: change.row.facts.inventories
        for change in store.feed.load_everything().hosts
    }
    assert {name: inventories['VCPU'].total for name, inventories in totals.items()} == {
        name: number for number, name in enumerate(ALIKE, 1)
    }


@pytest.mark.parametrize('names', [ALIKE, ALIKE[::-1]], ids=['plain first', 'plain last'])
def test_no_word_of_one_host_for_a_trait_bars_another_host(store, names):
    for number, name in enumerate(names):
        a_host(f'cmp-{number}').having(traits=[name]).on(store)
    a_host('all').having(traits=sorted(names)).on(store)
    traits = {
        change.row.name: set(change.row.facts.traits)
        for change in store.feed.load_everything().hosts
    }
    assert traits == {f'cmp-{n}': {name} for n, name in enumerate(names)} | {'all': set(names)}


def test_aggregates_with_names_alike_are_aggregates_of_their_own(store):
    for number, name in enumerate(ALIKE):
        store.declarations.save_aggregate(name, {name: str(number)}, [name])
    now = {
        aggregate.name: (aggregate.metadata, list(aggregate.hosts))
        for aggregate in store.feed.load_everything().aggregates
    }
    assert now == {name: ({name: str(n)}, [name]) for n, name in enumerate(ALIKE)}
    together = {name: name for name in ALIKE}
    store.declarations.save_aggregate('keys', together, ALIKE)
    aggregate = next(
        aggregate
        for aggregate in store.feed.load_everything().aggregates
        if aggregate.name == 'keys'
    )
    assert (aggregate.metadata, sorted(aggregate.hosts)) == (together, sorted(ALIKE))
