# SPDX-License-Identifier: Apache-2.0
"""A decision can be made again from what was kept: the log gives back the table it saw."""

import zlib

import msgspec

from gantt.core.placement.place import place
from gantt.core.records.decision_codec import unpack
from gantt.scheduler import table_log
from tests.world import World, a_group, a_request, sqlite_store


def busy_world():
    world = World(
        sqlite_store, hosts=6, claims_per_commit=3, reload_seconds=2.0, checkpoint_seconds=2.0
    )
    other = world.another_scheduler()
    group = a_group()
    kept = world.store
    answers = []
    for i in range(12):
        answers.append(world.select(a_request(1 + i % 4, vcpu=1 + i % 2, ram=2048)))
        answers.append(world.select(a_request(ram=3000), by=other))
        answers.append(world.select(a_request(group=group)))
        answers.append(world.select(a_request(ram=10**6)))
        world.hosts[f'cmp-{1 + i % 6}'].report(foreign={'MEMORY_MB': 100 * i})
        world.turn()
        if i % 3 == 0:
            world.scheduler.cache.log.flush(kept.table_logs)
    world.scheduler.cache.log.flush(kept.table_logs)
    return world, kept


def recorded(world):
    """(decision, request) of everything that the first scheduler decided and kept."""
    packed = [r.packed for r in world.recorder.records]
    packed += [
        p
        for d in world.store.records.list_decisions(limit=1000)
        if (loaded := world.store.records.load_decision(d.id)) and (p := loaded[0])
    ]
    for body in packed:
        record = unpack(body)
        if record.decision.worker == world.scheduler.cache.log.worker:
            yield record.decision, record.request


def test_every_decision_is_made_again_alike():
    world, kept = busy_world()
    seen = 0
    for decision, request in recorded(world):
        parts = kept.table_logs.load_table_log(decision.worker, decision.table_seq)
        table = table_log.table_at(table_log.read_events(parts), decision.table_seq)
        assert table is not None
        again = place(
            table,
            request,
            world.scheduler.placing.pipeline,
            seed=decision.seed,
            spread=decision.spread,
            decision_id=decision.id,
            members=[m.member for m in decision.members] or None,
            worker=decision.worker,
        )
        assert [
            (m.member, m.selection and m.selection.host, m.verdicts, m.filters, m.scores)
            for m in again.members
        ] == [
            (m.member, m.selection and m.selection.host, m.verdicts, m.filters, m.scores)
            for m in decision.members
        ]
        assert again.reason == decision.reason
        seen += 1
    assert seen >= 30


def test_past_the_retention_the_answer_is_no():
    world, kept = busy_world()
    decision, _ = next(iter(recorded(world)))
    assert kept.table_logs.load_table_log(decision.worker, decision.table_seq)
    world.clock.advance(3600)
    assert kept.table_logs.purge_table_log(1800) == 2  # of both workers
    parts = kept.table_logs.load_table_log(decision.worker, decision.table_seq)
    assert table_log.table_at(table_log.read_events(parts), decision.table_seq) is None


def test_the_purge_keeps_what_the_latest_decisions_need():
    world, kept = busy_world()
    log = world.scheduler.cache.log
    kept.table_logs.purge_table_log(0.5)
    assert kept.table_logs.load_table_log(log.worker, 5) == []
    parts = kept.table_logs.load_table_log(log.worker, log.position)
    assert table_log.table_at(table_log.read_events(parts), log.position) is not None


def test_a_gap_makes_no_false_table():
    world, kept = busy_world()
    log = world.scheduler.cache.log
    events = list(table_log.read_events(kept.table_logs.load_table_log(log.worker, log.position)))
    assert table_log.table_at(events, log.position) is not None
    del events[1]
    assert table_log.table_at(events, log.position) is None


def test_a_log_of_a_later_release_is_no_table_and_no_error():
    world, kept = busy_world()
    log = world.scheduler.cache.log
    parts = kept.table_logs.load_table_log(log.worker, log.position)
    assert table_log.table_at(table_log.read_events(parts), log.position) is not None
    later = zlib.compress(msgspec.msgpack.encode([(log.position, {'type': 'of later'})]))
    assert table_log.table_at(table_log.read_events([*parts, [later]]), log.position + 1) is None


def test_a_checkpoint_has_no_pick_that_is_not_committed(monkeypatch):
    world = World(hosts=2, checkpoint_seconds=60.0)
    cache, poll = world.scheduler.cache, world.store.feed.poll
    world.turn()

    def slow(*args):
        world.clock.advance(90.0)  # a checkpoint is due while a pick is open
        return poll(*args)

    # Out of room it reads the news again, with the first one's pick on the table.
    world.ask(a_request(budget_ms=600_000))
    world.ask(a_request(ram=10**6, budget_ms=600_000))
    world.clock.advance(1.0)
    monkeypatch.setattr(world.store.feed, 'poll', slow)
    before = cache.log.position
    world.scheduler.placing.step()
    monkeypatch.undo()
    cache.fold()
    noted = [event for position, event in cache.log._events if position >= before]
    kinds = [type(event) for event in noted]
    assert kinds.count(table_log.Checkpoint) == 1
    assert kinds.index(table_log.CommittedHosts) < kinds.index(table_log.Checkpoint)
