# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every directory of tests shares."""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import gc
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import settings
from oslo_context import context

from tests import budget, statements  # noqa: F401  statements: it listens
from tests.services import UNHURRIED, mysql_url, postgresql_url, rabbit_url
from tests.thorough import stride

__all__ = ['mysql_url', 'postgresql_url', 'rabbit_url']

# Where no bytecode is kept every process that a test starts compiles all of this tree, which is a
# third of what its start takes.
os.environ.pop('PYTHONDONTWRITEBYTECODE', None)
sys.dont_write_bytecode = False

# No timing is asserted: how long an example takes is up to what else the machine does.
settings.register_profile('gantt', deadline=None, print_blob=True)
settings.load_profile('gantt')

#: Every kind of store; use with ``make_store``.
STORES = [
    'memory',
    'sqlite',
    pytest.param('postgresql', marks=pytest.mark.postgresql),
    pytest.param('mysql', marks=pytest.mark.mysql),
]
SERVERS = ['postgresql', 'mysql']
#: Stores with data for readers: the one in memory is a reference of writes.
READERS = STORES[1:]


#: Folders of tests on real processes, which wait more than they compute; and before which part
#: of all others the last of them begins.
WAITING, SLOW_BEFORE = {'faults', 'functional'}, 0.8

#: Warnings of broken connections, once no object refers to them.
LEFT = (
    'ignore:unclosed <:ResourceWarning',
    'ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning',
)
#: The test that is run next by this process.
FOLLOWING = pytest.StashKey[pytest.Item | None]()
#: The file for whose tests nothing from before it is looked through for garbage.
SETTLED = pytest.StashKey[Path]()


# Each call of httpx that has no client makes one, which reads all public authorities for 20 ms,
# also for "http".  Tests query no server that those certify; this one authority has signed nothing.
os.environ['SSL_CERT_FILE'] = str(Path(__file__).with_name('authority.pem'))


@sa.event.listens_for(sa.Engine, 'connect')
def _wait_for_no_disk(connection: Any, record: object) -> None:
    """Turn off SQLite's wait for its disk at each commit, which guards against a loss of power."""
    if hasattr(connection, 'create_function'):  # as no other driver has
        connection.execute('PRAGMA synchronous = OFF')


def pytest_itemcollected(item: pytest.Item) -> None:
    """Allow warnings about open connections where a test may break some."""
    if item.get_closest_marker('leaves_sockets') or item.get_closest_marker('rabbit'):
        for ignored in LEFT:
            item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(autouse=True)
def _no_sockets_for_later_tests(request: pytest.FixtureRequest) -> Iterator[None]:
    """Close sockets with the test that left them, so that they warn in no later one.

    Of those that only meet a broker, with the last one of their file.
    """
    yield
    following = request.session.stash.get(FOLLOWING, None)
    if request.node.get_closest_marker('leaves_sockets') or (
        request.node.get_closest_marker('rabbit')
        and (following is None or following.path != request.node.path)
    ):
        gc.collect()


@pytest.fixture(autouse=True)
def _no_request_in_the_log() -> Iterator[None]:
    """Check that a request that is over is in no line of the log that its thread writes later."""
    yield
    current = context.get_current()
    vars(context._request_store).pop('context', None)
    assert current is None, f'the log still names request {current.request_id}'


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Note which test comes next in this process."""
    stash = item.session.stash
    stash[FOLLOWING] = nextitem
    if item.get_closest_marker('leaves_sockets') and stash.get(SETTLED, None) != item.path:
        # Each of its tests looks for garbage: what was compiled before is none, a second each.
        stash[SETTLED] = item.path
        gc.collect()
        gc.freeze()


@pytest.fixture(scope='session')
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a SQLite file with the schema and nothing else; copy it."""
    from gantt.db.engine import session
    from gantt.db.schema import migration

    path = tmp_path_factory.mktemp('sqlite') / 'template.db'
    engine = session.build_engine(f'sqlite:///{path}')
    migration.sync(engine)
    engine.dispose()
    return path


@pytest.fixture(scope='session')
def server_engine() -> Iterator[Callable[[str], Any]]:
    """Return ``server_engine(url)``, which prepares the database of a server for each test."""
    from gantt.db.engine import session

    engines: dict[str, Any] = {}

    def engine(url: str) -> Any:
        if url not in engines:
            engines[url] = session.build_engine(url, timeouts=UNHURRIED)
        return engines[url]

    yield engine
    for server in engines.values():
        server.dispose()


@pytest.fixture
def store_url(
    request: pytest.FixtureRequest,
    sqlite_template: Path,
    tmp_path: Path,
    server_engine: Callable[[str], Any],
) -> Callable[[str], str]:
    """Return ``store_url(kind)``: a synced, empty database of this test."""
    from gantt.db.schema import migration

    numbers = itertools.count()

    def url(kind: str) -> str:
        if kind == 'sqlite':
            path = tmp_path / f'gantt-{next(numbers)}.db'
            shutil.copy(sqlite_template, path)
            return f'sqlite:///{path}'
        server_url = request.getfixturevalue(f'{kind}_url')
        engine = server_engine(server_url)
        migration.sync(engine)
        migration.empty(engine)
        engine.dispose()  # a test counts its own connections, and may make the server fail
        return server_url

    return url


@pytest.fixture
def make_store(store_url: Callable[[str], str]) -> Iterator[Callable[..., Any]]:
    """Yield ``make_store(kind)``: an empty store, 'memory', 'sqlite', 'postgresql' or 'mysql'.

    Options are those of ``stores_for_url``; nothing of them concerns the one in memory.

    One call per kind and test: the second empties what the first one holds.
    """
    stores: list[Any] = []

    def make(kind: str, **options: Any) -> Any:
        if kind == 'memory':
            from devel.memory_store.stores import memory_stores

            return memory_stores()
        from gantt.stores import stores_for_url

        options.setdefault('timeouts', UNHURRIED)
        store = stores_for_url(store_url(kind), **options)
        stores.append(store)
        return store

    yield make
    for store in stores:
        store.database.close()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Make ids without colons: gabbi's plugin takes a test with one for its own, and fails."""
    if isinstance(val, bytes):
        val = ascii(val)[2:-1]
    if isinstance(val, str) and ':' in val:
        return val.replace(':', ';')
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse other ids with colons by name: the plugin's own error does not name the test."""
    for item in items:
        if ':' in item.name and item.path.name != 'test_gabbi.py':
            raise pytest.UsageError(f'{item.nodeid}: the id of a test may hold no colon')
    spared = _spared(items)
    if spared:
        config.hook.pytest_deselected(items=spared)
        items[:] = [item for item in items if item not in spared]
    items[:] = _spread(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze what is imported and collected, so that no garbage collection reads it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def _spared(items: list[Any]) -> set[Any]:
    """Return the cases of the contract on database servers that are for the night.

    Of a test with many cases every third one is run on each server, another one on each, where
    all of them are run on SQLite.
    """
    step = stride(3)
    cases: dict[tuple[Path, str, str], dict[str, Any]] = {}
    for item in items:
        if item.path.parent.name == 'contract' and hasattr(item, 'callspec'):
            parts = item.callspec.id.split('-')
            for kind in {'sqlite', *SERVERS} & {*parts}:
                case = '-'.join(part for part in parts if part != kind)
                cases.setdefault((item.path, item.originalname, kind), {})[case] = item
    spared = set()
    for (path, name, kind), on_server in cases.items():
        on_sqlite = cases.get((path, name, 'sqlite'), {})
        if kind in SERVERS and len(on_server) > step and on_server.keys() <= on_sqlite.keys():
            first = SERVERS.index(kind)
            spared |= {item for n, item in enumerate(on_server.values()) if (n - first) % step}
    return spared


def _spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """Spread the files that wait more than they compute evenly among the first of the others.

    So both cores have work all the time, and no long file begins when all else is done.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    slow = [path for path in files if path.parent.name in WAITING]
    quick = [path for path in files if path.parent.name not in WAITING]
    places = [(n / len(slow) * SLOW_BEFORE, path) for n, path in enumerate(slow)]
    places += [(n / len(quick), path) for n, path in enumerate(quick)]
    return [item for _, path in sorted(places) for item in files[path]]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report the time that each folder took."""
    reports = itertools.chain.from_iterable(terminalreporter.stats.values())
    spent = budget.by_folder(report for report in reports if hasattr(report, 'duration'))
    if sum(spent.values()) > 10.0:
        terminalreporter.section('seconds of processes by folder')
        for line in budget.lines(spent):
            terminalreporter.write_line(line)
