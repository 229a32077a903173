# SPDX-License-Identifier: Apache-2.0
"""Trees of providers under random changes, beside a model that knows each one's parent alone.

No circle comes to be, every root is right, nothing is lost, and both stores say the same.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gantt import exceptions
from gantt.core.messages.report import RegisterHost
from gantt.core.messages.resource_classes import Inventory
from tests.builders import CLEAN, a_draft, claimed, list_providers, new_uuid, register_host, uuid_of
from tests.properties.claim_world import a_store

COUNT = 8
#: One of the providers, and a parent for it: one of them, or none.
ONE, PARENT = st.integers(0, COUNT - 1), st.none() | st.integers(0, COUNT - 1)
WORDS = st.one_of(
    st.tuples(st.just('create'), ONE, PARENT),
    st.tuples(st.just('create'), ONE, PARENT),
    st.tuples(st.just('move'), ONE, PARENT),
    st.tuples(st.just('move'), ONE, PARENT),
    st.tuples(st.sampled_from(['delete', 'register', 'remove', 'claim', 'release']), ONE),
)
ROOM = {'CUSTOM_UNIT': Inventory(total=3)}
LENIENT = {'deadline': None, 'print_blob': True, 'suppress_health_check': list(HealthCheck)}


def name_of(number):
    return f'provider {number}'


class Model:
    """Who is below whom; who is a host; who has claims."""

    def __init__(self):
        self.parents = {}
        self.hosts = set()
        self.claims = dict.fromkeys(range(COUNT), 0)

    def path(self, number):
        """Itself, its parent, and so on up to the root."""
        path = [number]
        while self.parents[path[-1]] is not None:
            path.append(self.parents[path[-1]])
            assert len(path) <= COUNT, 'a circle'
        return path

    def has_children(self, number):
        return number in self.parents.values()

    def create(self, number, parent):
        if number in self.parents or (parent is not None and parent not in self.parents):
            return False
        self.parents[number] = parent
        return True

    def move(self, number, parent):
        if number not in self.parents:
            return False
        if number in self.hosts:
            return parent is None  # a root that stays one is not moved
        if parent is not None and (parent not in self.parents or number in self.path(parent)):
            return False
        self.parents[number] = parent
        return True

    def delete(self, number, of_hosts=False):
        there = number in self.parents and (number in self.hosts) == of_hosts
        if not there or self.has_children(number) or self.claims[number]:
            return False
        del self.parents[number]
        self.hosts.discard(number)
        return True

    def remove(self, number):
        return self.delete(number, of_hosts=True)

    def register(self, number):
        if self.parents.get(number) is not None:
            return False
        self.parents[number] = None
        self.hosts.add(number)
        return True

    def claim(self, number):
        if number not in self.parents or number in self.hosts or self.claims[number] == 3:
            return False
        self.claims[number] += 1
        return True

    def release(self, number):
        self.claims[number] -= bool(self.claims[number])
        return True

    def seen(self):
        """Uuid -> name, kind, parent and root."""
        return {
            uuid_of(number): (
                name_of(number),
                'host' if number in self.hosts else 'pool' if parent is None else 'nested',
                None if parent is None else uuid_of(parent),
                uuid_of(self.path(number)[-1]),
            )
            for number, parent in self.parents.items()
        }


class Side:
    """A store that hears the same; each method says whether it was done."""

    def __init__(self, store):
        self.store = store
        self.made = {number: [] for number in range(COUNT)}

    def receive(self, verb, *arguments):
        try:
            return getattr(self, verb)(*arguments)
        except (exceptions.InvalidMessage, exceptions.NotFound, exceptions.InUse):
            return False
        except exceptions.Refused as e:
            # Of a host, or what is on it or below it.
            assert type(e) in (exceptions.Refused, exceptions.ReportedByHost)
            return False

    def create(self, number, parent):
        self.store.providers.create_provider(
            name_of(number),
            uuid=uuid_of(number),
            parent=None if parent is None else uuid_of(parent),
            inventories=ROOM,
        )
        return True

    def move(self, number, parent):
        self.store.providers.update_provider(
            uuid_of(number), parent=None if parent is None else uuid_of(parent)
        )
        return True

    def delete(self, number):
        self.store.providers.delete_provider(uuid_of(number))
        return True

    def register(self, number):
        message = RegisterHost(
            name=f'host {number}', node=name_of(number), uuid=uuid_of(number), boot_nonce=new_uuid()
        )
        register_host(self.store, message)
        return True

    def remove(self, number):
        self.store.hosts.remove_host(f'host {number}')
        return True

    def claim(self, number):
        provider = self.store.providers.load_provider(uuid_of(number))
        if provider is None or provider.host or provider.used == {'CUSTOM_UNIT': 3}:
            return False
        draft = a_draft().taking(provider.id, lifecycle='api', CUSTOM_UNIT=1)
        self.made[number] += claimed(self.store, draft)
        return True

    def release(self, number):
        if self.made[number]:
            self.store.claims.force_release(self.made[number].pop().id, 'over')
        return True

    def seen(self):
        return {
            provider.uuid: (provider.name, str(provider.kind), provider.parent, provider.root)
            for provider in list_providers(self.store)
        }


def check(kind, words):
    with a_store(kind) as store:
        model, side = Model(), Side(store)
        for word in words:
            assert side.receive(*word) == getattr(model, word[0])(*word[1:]), word
            assert side.seen() == model.seen()
        check_rest(store, model)


def check_rest(store, model):
    roots = {root for *_, root in model.seen().values()}
    for root in roots:
        uuids = {provider.uuid for provider in list_providers(store, in_tree=root)}
        assert uuids == {uuid for uuid, (*_, of) in model.seen().items() if of == root}
    hosts = {change.row.uuid for change in store.feed.load_everything().hosts}
    assert hosts == set(map(uuid_of, model.hosts))
    used = {
        provider.uuid: provider.used.get('CUSTOM_UNIT', 0) for provider in list_providers(store)
    }
    assert used == {uuid_of(number): model.claims[number] for number in model.parents}
    assert store.claims.audit() == CLEAN


@pytest.mark.parametrize('kind', ['memory', 'sqlite'])
@settings(max_examples=40, **LENIENT)
@given(words=st.lists(WORDS, min_size=5, max_size=25))
def test_trees_are_as_the_model_says(kind, words):
    check(kind, words)


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['memory', 'sqlite'])
@settings(max_examples=500, **LENIENT)
@given(words=st.lists(WORDS, min_size=10, max_size=60))
def test_trees_are_as_the_model_says_for_long(kind, words):
    check(kind, words)
