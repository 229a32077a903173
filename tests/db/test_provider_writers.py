# SPDX-License-Identifier: Apache-2.0
"""Several that change one provider at once: of those with one generation one does."""

import pytest

from gantt import exceptions
from gantt.core.messages.resource_classes import Inventory
from tests.builders import uuid_of
from tests.db.conftest import SERVERS
from tests.db.test_concurrency import deadlocks, together
from tests.services import PATIENT

ROUNDS = 5


@pytest.fixture(params=SERVERS)
def stores(request, open_store):
    """Four stores on one database of a server."""
    kind = request.param
    first = open_store(kind, timeouts=PATIENT)
    more = (open_store(like=first, timeouts=PATIENT, fast=kind != 'portable') for _ in range(3))
    return [first, *more]


def test_of_writers_with_one_generation_one_writes(stores):
    uuid = stores[0].providers.create_provider('pool').uuid
    aggregate = uuid_of('aggregate')

    def tried(change):
        def run():
            try:
                change()
                return 1
            except exceptions.StaleGeneration:
                return 0

        return run

    for generation in range(ROUNDS):
        total = Inventory(total=generation + 1)

        def have(store, name, total=total, generation=generation):
            return lambda: store.providers.change_inventories(
                uuid, lambda now: {name: total}, generation
            )

        def join(store, generation=generation):
            return lambda: store.providers.save_provider_aggregates(uuid, [aggregate], generation)

        changes = [
            *map(have, stores[:3], ('VCPU', 'FPGA', 'VGPU')),
            join(stores[3]),
        ]
        assert sum(together(*map(tried, changes))) == 1
        assert stores[0].providers.load_provider(uuid).generation == generation + 1
    assert not deadlocks(stores[0])


def test_writers_that_name_no_generation_lose_nothing(stores):
    uuid = stores[0].providers.create_provider('pool').uuid
    names = [f'CUSTOM_{n}' for n in range(len(stores))]
    for name in names:
        stores[0].vocabulary.create_class(name)

    def add(store, name):
        return lambda: store.providers.change_inventories(
            uuid, lambda now: {**now, name: Inventory(total=1)}
        )

    together(*[add(store, name) for store, name in zip(stores, names, strict=True)])
    provider = stores[0].providers.load_provider(uuid)
    assert sorted(provider.inventories) == names
    assert provider.generation == len(names)


def test_a_class_is_deleted_or_comes_into_use(stores):
    uuid = stores[0].providers.create_provider('pool').uuid
    for n in range(ROUNDS):
        name = f'CUSTOM_{n}'
        stores[0].vocabulary.create_class(name)

        def use(name=name):
            try:
                stores[0].providers.change_inventories(uuid, lambda now: {name: Inventory(total=1)})
            except exceptions.NotFound:
                return 0
            return 1

        def delete(name=name):
            try:
                stores[1].vocabulary.delete_class(name)
            except exceptions.InUse:
                return 0
            return 1

        together(use, delete)
        classes = {declared.name for declared in stores[2].vocabulary.resource_classes()}
        assert set(stores[2].providers.load_provider(uuid).inventories) <= classes
