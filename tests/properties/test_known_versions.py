# SPDX-License-Identifier: Apache-2.0
"""A host is known whole at one version, through any history of commits and news."""

import hypothesis
from hypothesis import strategies as st

from gantt.scheduler.host_cache import HostCache
from tests.scheduler.test_host_cache import HOSTS, Process, whole
from tests.thorough import examples


class History(Process):
    """A process, what the database had of each host, and feeds that lose what they bring."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        #: Provider id -> version -> free processors, of the versions that were seen.
        self.had: dict[int, dict[int, int]] = {host.id: {} for host in self.hosts}
        self.note()

    def lose(self) -> None:
        """Another scheduler commits, and the feed leaves that out: only a comparison finds it."""
        self.theirs()
        cache = self.cache
        cache._position = self.store.feed.poll(cache._position, {}, []).position

    def note(self) -> None:
        for change in self.store.feed.load_everything().hosts:
            self.had[change.provider_id][change.row.version] = change.row.free('VCPU')

    def check(self) -> None:
        """No more is free than there was at the version that is known, or later."""
        table = self.cache.working
        for row in range(len(table)):
            host, had = table.host_state(row), self.had[table.hosts[row].id]
            since = max(version for version in had if version <= host.version)
            most = max(free for version, free in had.items() if version >= since)
            assert host.free('VCPU') <= most


STEPS = [*dict.fromkeys(Process.WORDS), History.lose]


@hypothesis.settings(max_examples=examples(150), deadline=None)
@hypothesis.given(
    st.integers(0, 2**32),
    st.lists(st.sampled_from(STEPS), min_size=1, max_size=40),
)
def test_the_table_never_shows_more_than_there_was_and_ends_where_the_database_is(seed, steps):
    history = History(seed)
    for step in steps:
        step(history)
        history.note()
        history.check()
    history.tell()
    history.clock.advance(25.0)  # the time of a full comparison
    for _ in range(2):
        history.fetch()
        history.fold()
    history.check()
    fresh = HostCache(history.store.feed, history.store.vocabulary, history.clock)
    fresh.fetch()
    fresh.fold()
    assert whole(history.cache) == whole(fresh)
    assert len(fresh.working) == HOSTS
    assert history.cache.working.picks() == {}
