# SPDX-License-Identifier: Apache-2.0
"""The ports stay small, and each store implements one of them."""

import ast
import dataclasses
import importlib
import pkgutil
from pathlib import Path
from typing import Protocol

import pytest

import gantt
from devel.memory_store.stores import memory_stores
from gantt.db.database import SqlStore
from gantt.nova import ports as nova
from gantt.placement_api import ports as placement
from gantt.scheduler import ports
from gantt.scheduler.clock import SystemClock
from gantt.scheduler.ports import process
from gantt.scheduler.ports.stores import DatabaseStatus
from gantt.stores import AllStores
from gantt.zones import ports as zones
from tests.world import sqlite_store

METHODS_MOST = 12
PACKAGE = Path(gantt.__file__).parent
MODULES = (
    *(
        importlib.import_module(f'{ports.__name__}.{m.name}')
        for m in pkgutil.iter_modules(ports.__path__)
    ),
    *(nova, placement, zones),
)
PORTS = list(
    dict.fromkeys(
        value
        for module in MODULES
        for value in vars(module).values()
        if getattr(value, '_is_protocol', False) and value is not Protocol
    )
)
PORT_OF = {field.name: field.type for field in dataclasses.fields(AllStores)}
BESIDE_DATABASE = [name for name in PORT_OF if name != 'database']


def methods_of(port: type) -> set[str]:
    """What a port declares: methods, and values that can be read."""
    return {name for name in (*vars(port), *port.__annotations__) if not name.startswith('_')}


def public(store: object) -> set[str]:
    """What a store can be asked for, by whatever class above it."""
    return {name for name in dir(type(store)) if not name.startswith('_')}


@pytest.mark.parametrize('port', PORTS, ids=lambda port: port.__name__)
def test_a_port_has_a_dozen_methods_at_most_and_inherits_none(port):
    assert methods_of(port)
    assert sum(callable(getattr(port, name, None)) for name in methods_of(port)) <= METHODS_MOST
    assert [base.__name__ for base in port.__bases__] == ['Protocol']


def test_each_method_of_a_port_has_a_caller_in_the_package():
    """By name alone: of two methods of one name, one may have none."""
    used = set()
    for path in PACKAGE.rglob('*.py'):
        if path.parent == PACKAGE / 'scheduler' / 'ports' or path.name == 'ports.py':
            continue
        used |= {
            node.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and getattr(node.value, 'id', '') != 'self'
        }
    unused = {f'{port.__name__}.{name}' for port in PORTS for name in methods_of(port) - used}
    assert unused == set()


def test_each_attribute_of_the_stores_is_a_port_of_its_own():
    assert set(PORT_OF.values()) <= set(PORTS)
    assert len(set(PORT_OF.values())) == len(PORT_OF)
    beside = {process.Clock, process.Inbox, process.Recorder, process.Replies, zones.ZoneCalls}
    assert set(PORTS) - set(PORT_OF.values()) == beside


@pytest.fixture
def stores():
    opened = sqlite_store(SystemClock())
    yield opened
    opened.database.close()


@pytest.mark.parametrize('attribute', BESIDE_DATABASE)
def test_a_store_in_sql_implements_its_port_and_nothing_beside(stores, attribute):
    store = getattr(stores, attribute)
    assert public(store) == methods_of(PORT_OF[attribute])
    assert type(store).__bases__ == (SqlStore,)


def test_the_database_of_the_stores_is_one_and_can_be_asked_how_it_is(stores):
    assert public(stores.database) >= methods_of(DatabaseStatus)
    kept = [getattr(stores, attribute).database for attribute in BESIDE_DATABASE]
    assert {id(database) for database in kept} == {id(stores.database)}


@pytest.mark.parametrize('attribute', PORT_OF)
def test_a_store_in_memory_has_nothing_beside_its_port(attribute):
    store = getattr(memory_stores(), attribute)
    if store is None or attribute == 'database':
        return  # only SQL has it; what all stores share
    assert public(store) <= methods_of(PORT_OF[attribute])
    assert type(store).__bases__ == (object,)
