# SPDX-License-Identifier: Apache-2.0
"""What has to be there before the tests of a file begin: providers, and who has what of them.

The tests name uuids by environment variables.  A state lists providers in the order in which
they are made, and each inventory and each set of traits is a request of its own, for the tests
know the generations that result.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.placement.server import Server

#: Variables whose value is a new uuid for each file.
NEW_UUIDS = (
    *('RP_UUID', 'RP_NAME', 'RP_UUID1', 'RP_NAME1', 'RP_UUID2', 'RP_NAME2'),
    *('ALT_RP_UUID', 'ALT_RP_NAME', 'PARENT_PROVIDER_UUID', 'ALT_PARENT_PROVIDER_UUID'),
    *('PROJECT_ID', 'ADMIN_PROJECT_ID', 'SERVICE_PROJECT_ID', 'PROJECT_ID_ALT'),
    *('USER_ID', 'USER_ID_ALT', 'ALT_USER_ID'),
    *('INSTANCE_UUID', 'MIGRATION_UUID', 'CONSUMER_UUID'),
    *('CONSUMER_0', 'CONSUMER_ID', 'ALT_CONSUMER_ID'),
    *('AGG_UUID', 'AGGA_UUID', 'AGGB_UUID', 'AGGC_UUID', 'AGGA', 'AGGB', 'AGGC'),
)
#: Variables with a value of their own.
FIXED = {
    'CUSTOM_RES_CLASS': 'CUSTOM_IRON_NFV',
    'CUSTOM_RES_CLASS1': 'CUSTOM_IRON_NFV1',
    'CUSTOM_RES_CLASS2': 'CUSTOM_IRON_NFV2',
}
SHARES = 'MISC_SHARES_VIA_AGGREGATE'


@dataclass(frozen=True)
class Provider:
    """One resource provider.

    :param variable: holds its uuid
    :param name: ``{VARIABLE}`` in it is replaced
    :param parent: the variable of its parent
    :param inventories: resource class -> total, or all that is not default
    :param aggregates: variables that hold their uuids
    """

    variable: str
    name: str
    inventories: Mapping[str, int | Mapping[str, Any]] = field(default_factory=dict)
    traits: tuple[str, ...] = ()
    parent: str = ''
    aggregates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Allocation:
    """What one consumer has of one provider.

    :param consumer: the variable of its uuid; empty: nobody has to know it
    :param provider: the variable of the provider
    :param user, project: ``{VARIABLE}`` in them is replaced
    """

    provider: str
    resources: Mapping[str, int]
    consumer: str = ''
    user: str = 'someone'
    project: str = 'something'


@dataclass(frozen=True)
class State:
    """All that a file of tests finds.

    :param rules: which configuration of the server it needs, of ``RULES_POLICY``
    """

    rules: str = 'legacy'
    providers: tuple[Provider, ...] = ()
    allocations: tuple[Allocation, ...] = ()


#: Configurations that tests need of a server, and what each has to have.
RULES = {
    'legacy': 'the policies of before roles and scopes, no CORS',
    'secure': 'the policies with roles and scopes (enforce_new_defaults)',
    'open': 'each policy lets everybody in',
    'cors': 'as legacy, with CORS for http://valid.example.com',
}


def stock(total: int, **more: Any) -> dict[str, Any]:
    """An inventory: one allocation may have all of it, where nothing else is given."""
    return {'total': total, 'max_unit': total, **more}


def make_environment(state: State) -> dict[str, str]:
    """Values of all variables that the tests of a file may name."""
    environment = {name: str(uuid.uuid4()) for name in NEW_UUIDS} | FIXED
    for provider in state.providers:
        environment.setdefault(provider.variable, str(uuid.uuid4()))
    return environment


def build(server: Server, state: State, environment: Mapping[str, str]) -> None:
    """Make the state, on a server that is empty.

    :raises ServerError: the server refused some of it
    """
    for provider in state.providers:
        own = environment[provider.variable]
        parent = environment[provider.parent] if provider.parent else None
        generation = server.make_provider(own, provider.name.format_map(environment), parent)
        if provider.aggregates:
            server.set_aggregates(
                own, [environment[aggregate] for aggregate in provider.aggregates]
            )
        for resource_class, amounts in provider.inventories.items():
            given = stock(amounts) if isinstance(amounts, int) else dict(amounts)
            generation = server.add_inventory(own, resource_class, given)
        if provider.traits:
            server.set_traits(own, provider.traits, generation)
    for allocation in state.allocations:
        server.allocate(
            environment[allocation.consumer] if allocation.consumer else str(uuid.uuid4()),
            allocation.user.format_map(environment),
            allocation.project.format_map(environment),
            environment[allocation.provider],
            dict(allocation.resources),
        )
