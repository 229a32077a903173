# SPDX-License-Identifier: Apache-2.0
"""All providers as one pool: sums, the largest piece, pieces, and shapes over trees."""

import random

import pytest

from gantt.core.candidates.table import ClassInventory, ProviderEntry, ProviderTable
from gantt.insights.roll_up import (
    class_roll_up,
    classes_roll_up,
    trees_fitting,
)


def an_entry(number, root=None, **inventories):
    return ProviderEntry(
        id=number,
        uuid=f'provider {number}',
        root_id=number if root is None else root,
        parent_id=root,
        inventories=inventories,
    )


def a_table(*entries):
    table = ProviderTable()
    table.apply(entries)
    return table


def fitting(table, shape):
    roll_up = trees_fitting(table, shape)
    return roll_up.count, roll_up.places, roll_up.most


def test_sums_largest_and_pieces():
    table = a_table(
        an_entry(1, DISK_GB=ClassInventory(cap=10, used=3)),
        an_entry(2, DISK_GB=ClassInventory(cap=4)),
        an_entry(3, DISK_GB=ClassInventory(cap=5, used=9)),
    )
    roll_up = class_roll_up('DISK_GB', table.classes['DISK_GB'])
    assert (roll_up.providers, roll_up.capacity, roll_up.used) == (3, 19, 12)
    assert (roll_up.free, roll_up.largest) == (11, 7)
    assert roll_up.pieces == [11, 3 + 2, 1 + 1]


def test_pieces_go_by_units():
    inventory = ClassInventory(cap=100, min_unit=2, max_unit=4, step_size=2)
    roll_up = class_roll_up('X', a_table(an_entry(1, X=inventory)).classes['X'])
    assert (roll_up.largest, roll_up.pieces) == (4, [0, 50, 25])


def test_a_shape_fits_where_a_tree_has_all_of_it():
    table = a_table(
        an_entry(1, VCPU=ClassInventory(cap=8)),
        an_entry(2, root=1, VGPU=ClassInventory(cap=2)),
        an_entry(3, root=1, VGPU=ClassInventory(cap=3)),
        an_entry(4, VCPU=ClassInventory(cap=8)),
    )
    assert fitting(table, {'VCPU': 2, 'VGPU': 1}) == (4, 1, 4)
    assert fitting(table, {'VCPU': 2, 'VGPU': 2}) == (2, 1, 2)
    assert fitting(table, {'VCPU': 1}) == (16, 2, 8)
    assert fitting(table, {'FPGA': 1}) == (0, 0, 0)


def test_of_nothing_there_is_nothing():
    assert classes_roll_up(ProviderTable()) == []
    assert fitting(ProviderTable(), {'VCPU': 1}) == (0, 0, 0)


@pytest.mark.parametrize('seed', range(20))
def test_random_clouds_as_counted_one_by_one(seed):
    rnd = random.Random(seed)
    names = ('A', 'B', 'C')

    def some():
        chosen = rnd.sample(names, rnd.randint(1, 3))
        return {
            name: ClassInventory(
                cap=rnd.randint(1, 40),
                used=rnd.randint(0, 50),
                max_unit=rnd.randint(1, 50),
                step_size=rnd.choice((1, 1, 2)),
            )
            for name in chosen
        }

    roots = [an_entry(n, **some()) for n in range(1, 8)]
    below = [an_entry(n, root=rnd.randint(1, 7), **some()) for n in range(8, 20)]
    entries = [*roots, *below]
    table = a_table(*entries)

    def times(provider, amount):
        if provider.free < amount or not provider.min_unit <= amount <= provider.max_unit:
            return 0
        return 0 if amount % provider.step_size else provider.free // amount

    for result in classes_roll_up(table):
        those = [
            entry.inventories[result.resource_class]
            for entry in entries
            if result.resource_class in entry.inventories
        ]
        assert result.free == sum(max(inventory.free, 0) for inventory in those)
        assert result.largest == max(
            0, *(min(inventory.free, inventory.max_unit) for inventory in those), 0
        )
        assert result.pieces == [
            sum(times(inventory, 2**power) for inventory in those)
            for power in range(len(result.pieces))
        ]
    shape = {name: rnd.randint(1, 5) for name in rnd.sample(names, 2)}
    counts = []
    for root in roots:
        tree = [entry for entry in entries if entry.root_id == root.id]
        counts.append(
            min(
                sum(
                    times(entry.inventories[name], amount)
                    for entry in tree
                    if name in entry.inventories
                )
                for name, amount in shape.items()
            )
        )
    assert fitting(table, shape) == (sum(counts), sum(map(bool, counts)), max(counts))
