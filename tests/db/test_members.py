# SPDX-License-Identifier: Apache-2.0
"""Who is on a host is read anew only as far as it is not known: never otherwise than whole."""

import random

import pytest
import sqlalchemy as sa

from gantt.db.hosts import providers
from gantt.db.schema import models
from tests.builders import a_draft, a_host, claimed, live, new_uuid
from tests.db.conftest import SERVERS

_c = models.claims


@pytest.fixture(params=SERVERS)
def stores(request, open_store):
    first = open_store(request.param)
    return first, open_store(like=first)


class Follower:
    """What one process knows of hosts that another one changes."""

    def __init__(self, store):
        self.store = store
        start = store.feed.load_everything()
        self.position, self.gaps = start.position, start.gaps
        self.known = {change.provider_id: change for change in start.hosts}

    def follow(self):
        versions = {pid: change.row.version for pid, change in self.known.items()}
        news = self.store.feed.poll(self.position, versions, self.gaps)
        self.position, self.gaps = news.position, news.gaps
        self.known |= {change.provider_id: change for change in news.hosts}


def placed_anew(open_store, store):
    return {
        change.provider_id: list(change.placed)
        for change in open_store(like=store).feed.load_everything().hosts
    }


def a_step(rng, store, hosts):
    """One claim more, or something happens to one that is there."""
    claims = live(store)
    if rng.random() < 0.5 or not claims:
        claimed(store, a_draft().taking(rng.choice(hosts)))
        return
    claim = rng.choice(claims)
    host = next(host for host in hosts if host.id == claim.provider_id)
    match rng.randrange(4):
        case 0:
            store.requests.cancel_request(claim.request_id, '')
        case 1:
            host.confirm(claim)
        case 2:
            host.release(claim)
        case _:  # handed to somebody else, or laid out anew: by no verb of today for any claim
            layout = rng.choice([None, '{"cells":[[0,1,1024,[]]]}'])
            with store.database.engine.begin() as connection:
                changed = {'consumer': new_uuid(), 'layout': layout}
                connection.execute(_c.update().where(_c.c.id == claim.id).values(changed))
                stamp = {
                    'claims_stamp': rng.getrandbits(60),
                    'version': models.providers.c.version + 1,
                }
                of_it = models.providers.c.id == claim.provider_id
                connection.execute(models.providers.update().where(of_it).values(stamp))
                news = {'kind': 'host', 'ref': str(claim.provider_id)}
                connection.execute(models.changes.insert().values(news))


@pytest.mark.parametrize('few', [0, 4, providers.FEW_CLAIMS])
@pytest.mark.parametrize('seed', range(3))
def test_what_is_followed_is_what_is_there(stores, open_store, monkeypatch, few, seed):
    monkeypatch.setattr(providers, 'FEW_CLAIMS', few)
    store, other = stores
    rng = random.Random(seed)
    hosts = [a_host(f'cmp-{n}').with_room(vcpu=64, ram=65536).on(store) for n in range(4)]
    follower = Follower(other)
    for _ in range(8):
        for _ in range(rng.randrange(1, 5)):
            a_step(rng, store, hosts)
        follower.follow()
        followed = {pid: list(change.placed) for pid, change in follower.known.items()}
        assert followed == placed_anew(open_store, store)


def test_a_host_that_lost_its_last_claim_has_none(stores, open_store):
    store, other = stores
    host = a_host().on(store)
    claim = claimed(store, a_draft().taking(host))[0]
    follower = Follower(other)
    host.release(claim)
    follower.follow()
    assert [list(change.placed) for change in follower.known.values()] == [[]]


def read_of_one_more(open_store):
    """Return a new claim on a host with others, and what a follower that knows these reads of it.

    :returns: the claim, and the parameters of each statement about claims, by whether it has all
        of their columns
    """
    store = open_store('postgresql')
    other = open_store(like=store)
    host = a_host().with_room(vcpu=64, ram=65536).on(store)
    for _ in range(5):
        claimed(store, a_draft().taking(host))
    follower = Follower(other)
    new = claimed(store, a_draft().taking(host))[0]
    read = []

    def note(connection, cursor, statement, parameters, *rest):
        if 'FROM claims' in statement:
            read.append(('claims.flavor' in statement, str(parameters)))

    sa.event.listen(other.database.engine, 'before_cursor_execute', note)
    follower.follow()
    return new, read


@pytest.mark.postgresql
def test_of_what_is_known_nothing_but_ids_is_read(open_store, monkeypatch):
    monkeypatch.setattr(providers, 'FEW_CLAIMS', 4)
    new, (ids, whole) = read_of_one_more(open_store)
    assert not ids[0]
    assert whole[0] and new.id in whole[1] and whole[1].count('-') == 4


@pytest.mark.postgresql
def test_a_few_claims_are_read_by_one_statement(open_store):
    _, (whole,) = read_of_one_more(open_store)
    assert whole[0]
