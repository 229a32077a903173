# SPDX-License-Identifier: Apache-2.0
"""Change logs of host tables: what a replay reads, and what a purge may take."""

from tests.conftest import READERS

#: What is read has its twin in memory in SQLite.
KINDS = READERS


def test_a_log_is_read_from_the_last_checkpoint_before_the_position(store):
    store.table_logs.save_table_log('w', 0, 4, True, [b'a', b'b'])
    store.table_logs.save_table_log('w', 5, 9, False, [b'c'])
    store.table_logs.save_table_log('w', 10, 12, True, [b'd'])
    store.table_logs.save_table_log('other', 0, 99, True, [b'x'])
    assert store.table_logs.load_table_log('w', 8) == [[b'a', b'b'], [b'c']]
    assert store.table_logs.load_table_log('w', 5) == [[b'a', b'b']]
    assert store.table_logs.load_table_log('w', 12) == [[b'd']]
    assert store.table_logs.load_table_log('nobody', 5) == []


def test_a_log_without_a_checkpoint_gives_nothing(store):
    store.table_logs.save_table_log('w', 5, 9, False, [b'c'])
    assert store.table_logs.load_table_log('w', 9) == []


def test_chunks_of_a_megabyte_come_back_as_they_were(store):
    chunk = bytes(range(256)) * 4096
    store.table_logs.save_table_log('w', 0, 1, True, [chunk, chunk[::-1]])
    assert store.table_logs.load_table_log('w', 1) == [[chunk, chunk[::-1]]]


def test_a_purge_keeps_what_is_within_the_retention(store):
    store.table_logs.save_table_log('w', 0, 4, True, [b'a'])
    store.table_logs.save_table_log('w', 5, 9, True, [b'b'])
    assert store.table_logs.purge_table_log(3600) == 0
    assert store.table_logs.load_table_log('w', 3) == [[b'a']]
    assert store.table_logs.purge_table_log(-1) == 1  # as if an age had passed
    assert store.table_logs.load_table_log('w', 9) == []
