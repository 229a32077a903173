# SPDX-License-Identifier: Apache-2.0
"""Processes of the site: noted, silent, replaced, forgotten."""

import msgspec
import pytest

from gantt.core.records.process import (
    SILENT_SECONDS,
    SILENT_STORED_SECONDS,
    MemoryUse,
    ServiceNote,
)
from gantt.db.schema import models
from tests.conftest import READERS

#: What is read has its twin in memory in SQLite.
KINDS = READERS

NOTE = ServiceNote(
    name='ctl-1:100:ab',
    kind='scheduler',
    host='ctl-1',
    version='2.0',
    configuration='0123',
    up_seconds=50.0,
    configured_seconds=5.0,
)


def _named(name, **fields):
    return msgspec.structs.replace(NOTE, name=name, **fields)


def _silence(store, name, seconds):
    """Let a process have noted itself so long ago."""
    s = models.services
    with store.database.engine.begin() as connection:
        connection.execute(s.update().where(s.c.name == name).values(seen_at=s.c.seen_at - seconds))


def _names(store):
    return {service.name for service in store.services.list_services()}


def test_a_process_is_kept_as_it_noted_itself_last(store):
    store.services.note_service(NOTE)
    later = _named(
        NOTE.name,
        configuration='4567',
        problem='no such filter',
        alarm='forged: 3 (cmp-1)',
        up_seconds=80.0,
    )
    store.services.note_service(later)
    [service] = store.services.list_services()
    assert (
        service.configuration,
        service.problem,
        service.kind,
        service.host,
        service.version,
    ) == (
        '4567',
        'no such filter',
        'scheduler',
        'ctl-1',
        '2.0',
    )
    assert service.alarm == 'forged: 3 (cmp-1)'
    assert service.up_seconds == pytest.approx(80, abs=10)
    assert service.configured_seconds == pytest.approx(5, abs=10)
    assert service.seen_seconds == pytest.approx(0, abs=10)
    assert not service.is_silent


def test_the_memory_of_a_process_is_kept(store):
    memory = MemoryUse(
        resident_bytes=430 << 20, hosts=9, bytes_per_host=3100, claims=7, bytes_per_claim=331
    )
    for noted in (None, memory):
        store.services.note_service(_named(NOTE.name, memory=noted))
        [service] = store.services.list_services()
        assert service.memory == noted


def test_memory_that_a_later_release_states_otherwise_hides_no_process(store):
    store.services.note_service(NOTE)
    with store.database.engine.begin() as connection:
        connection.execute(models.services.update().values(memory='{"pages": 7}'))
    [service] = store.services.list_services()
    assert (service.name, service.memory) == (NOTE.name, None)


@pytest.mark.mysql
@pytest.mark.finding('H2', 'what one process keeps locked holds no other up')
def test_the_row_of_a_process_that_hangs_holds_no_purge_up(make_store):
    store = make_store('mysql')
    store.services.note_service(NOTE)
    s = models.services
    with store.database.engine.begin() as hangs:
        hangs.execute(s.update().where(s.c.name == NOTE.name).values(problem='it hangs'))
        store.retention.purge(
            decisions=10, decision_bytes=None, tombstone_seconds=10, request_seconds=10, limit=10
        )
        store.services.note_service(_named('another'))
    assert _names(store) == {NOTE.name, 'another'}


def test_one_that_ends_is_forgotten(store):
    store.services.note_service(NOTE)
    store.services.note_service(_named('other'))
    store.services.forget_service(NOTE.name)
    store.services.forget_service('nobody')
    assert _names(store) == {'other'}


def test_a_new_process_takes_the_place_of_silent_ones_like_it(store):
    same, alive = _named('same'), _named('alive')
    elsewhere, api = _named('elsewhere', host='ctl-2'), _named('api', kind='api')
    for note in (same, alive, elsewhere, api):
        store.services.note_service(note)
    for note in (same, elsewhere, api):
        _silence(store, note.name, SILENT_SECONDS + 1)
    assert {service.name for service in store.services.list_services() if service.is_silent} == {
        'same',
        'elsewhere',
        'api',
    }
    store.services.note_service(_named('new'))
    assert _names(store) == {'alive', 'elsewhere', 'api', 'new'}


def test_a_silent_one_is_remembered_for_a_day(store):
    for name in ('old', 'silent', 'alive'):
        store.services.note_service(_named(name))
    _silence(store, 'old', SILENT_STORED_SECONDS + 60)
    _silence(store, 'silent', SILENT_STORED_SECONDS - 60)
    store.retention.purge(decisions=1, tombstone_seconds=1e6, request_seconds=1e6, limit=10)
    assert _names(store) == {'silent', 'alive'}


def test_a_long_reason_is_cut(store):
    store.services.note_service(_named('wordy', problem='x' * 5000))
    [service] = store.services.list_services()
    assert service.problem.startswith('x' * 1000)
