# SPDX-License-Identifier: Apache-2.0
"""A cloud of fifty providers and forty consumers, built over Placement's interface."""

from typing import Any

from tests.builders import uuid_of
from tests.placement.server import Server

HOSTS, POOLS, CONSUMERS = 12, 8, 40
PROVIDERS = HOSTS + HOSTS * 2 + HOSTS // 2 + POOLS
AGGREGATES = [uuid_of('aggregate', number) for number in range(3)]


def host(number: int) -> str:
    return uuid_of('host', number)


def cell(number: int, side: int) -> str:
    return uuid_of('cell', number, side)


def device(number: int) -> str:
    return uuid_of('device', number)


def pool(number: int) -> str:
    return uuid_of('pool', number)


def consumer(number: int) -> str:
    return uuid_of('consumer', number)


def stock(server: Server, uuid: str, generation: int, **totals: Any) -> int:
    """All inventories of a provider at once; the generation after it."""
    inventories = {
        name: {'total': total} if isinstance(total, int) else total
        for name, total in totals.items()
    }
    body = {'resource_provider_generation': generation, 'inventories': inventories}
    answer = server.request('PUT', f'/resource_providers/{uuid}/inventories', body)
    after: int = answer['resource_provider_generation']
    return after


def generation_of(server: Server, uuid: str) -> int:
    generation: int = server.request('GET', f'/resource_providers/{uuid}')['generation']
    return generation


def restock(server: Server, uuid: str, **totals: Any) -> None:
    stock(server, uuid, generation_of(server, uuid), **totals)


def allocate(
    server: Server,
    number: int,
    shares: dict[str, dict[str, int]],
    generation: int | None = None,
    kind: str | None = 'INSTANCE',
) -> None:
    body: dict[str, Any] = {
        'allocations': {uuid: {'resources': amounts} for uuid, amounts in shares.items()},
        'project_id': f'project-{number % 3}',
        'user_id': f'user-{number % 5}',
        'consumer_generation': generation,
    }
    if kind is not None:
        body['consumer_type'] = kind
    version = '1.37' if kind is None else '1.38'
    server.request('PUT', f'/allocations/{consumer(number)}', body, version)


def shares_of(number: int) -> dict[str, dict[str, int]]:
    on = number % HOSTS
    shares = {
        host(on): {'VCPU': 1 + number % 3, 'MEMORY_MB': 512},
        pool(number % 4): {'DISK_GB': 10},
    }
    if number % 2:
        shares[cell(on, number // 2 % 2)] = {'CUSTOM_PAGES': 4}
    return shares


def _host(server: Server, number: int) -> None:
    uuid = host(number)
    generation = server.make_provider(uuid, f'compute-{number}', None)
    memory = {'total': 65536, 'reserved': 512, 'allocation_ratio': 1.5}
    vcpu = {'total': 16, 'allocation_ratio': 4.0, 'max_unit': 16}
    generation = stock(server, uuid, generation, VCPU=vcpu, MEMORY_MB=memory)
    server.set_traits(uuid, ['HW_CPU_X86_AVX2', f'CUSTOM_RACK_{number % 3}'], generation)
    server.set_aggregates(uuid, [AGGREGATES[number % 3]])
    for side in range(2):
        generation = server.make_provider(cell(number, side), f'compute-{number}_{side}', uuid)
        stock(server, cell(number, side), generation, CUSTOM_PAGES={'total': 64, 'step_size': 2})
    if number % 2:
        generation = server.make_provider(device(number), f'gpu-{number}', cell(number, 0))
        stock(server, device(number), generation, VGPU=4)


def _pool(server: Server, number: int) -> None:
    uuid = pool(number)
    generation = server.make_provider(uuid, f'pool-{number}', None)
    amounts = {'DISK_GB': 1000} if number < 4 else {'CUSTOM_LICENCE': 20}
    generation = stock(server, uuid, generation, **amounts)
    if number < 4:
        server.set_traits(uuid, ['MISC_SHARES_VIA_AGGREGATE'], generation)
        server.set_aggregates(uuid, AGGREGATES)


def build(server: Server) -> None:
    """All of it; one pool and one cell have more use than there is room for, by their numbers."""
    for name in ('CUSTOM_PAGES', 'CUSTOM_LICENCE', 'CUSTOM_UNUSED'):
        server.make_class(name)
    for name in ('CUSTOM_RACK_0', 'CUSTOM_RACK_1', 'CUSTOM_RACK_2', 'CUSTOM_UNUSED'):
        server.make_trait(name)
    for number in range(HOSTS):
        _host(server, number)
    for number in range(POOLS):
        _pool(server, number)
    for number in range(CONSUMERS):
        kind = ('INSTANCE', 'MIGRATION', None)[number % 3]
        allocate(server, number, shares_of(number), kind=kind)
    restock(server, pool(0), DISK_GB={'total': 50, 'reserved': 20})
    restock(server, cell(1, 0), CUSTOM_PAGES={'total': 64, 'min_unit': 8, 'step_size': 8})
