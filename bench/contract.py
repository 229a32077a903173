# SPDX-License-Identifier: Apache-2.0
"""What the narrow form of claims costs, and the step to it: on PostgreSQL, without a scheduler.

Two databases are filled with as many live claims: wide ones, as a release before left them, and
narrow ones.  Batches are committed to both in turn, and the CPU time of the server's process
that writes them is compared.  Then the wide ones are moved in place while a writer goes on:
``conditions.step_seconds``.
"""

import gantt.cmd  # noqa: F401  chooses the concurrency backend before anything else

# isort: split
import argparse
import contextlib
import pathlib
import statistics
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from bench import Result, conditions
from bench.rig import postgresql_database
from gantt.core.claims.claim import Claim, claim_id
from gantt.core.claims.commit import ClaimDraft, RequestDraft
from gantt.core.messages.report import RegisterHost
from gantt.db.claims.contract import CLAIMS_ROWS, CONSUMERS_ROWS, ClaimsContract
from gantt.db.schema import claim_form, migration, models
from gantt.db.stores.store import SqlStore

TAKES = {'VCPU': 1, 'MEMORY_MB': 256, 'DISK_GB': 1}
_ID = "md5('{kind}' || g)::uuid::text"
_CLAIM, _CONSUMER = _ID.format(kind='claim'), _ID.format(kind='consumer')
_REQUEST = "md5('request' || g / 50)::uuid::text"
_PROJECT = "md5('project' || g % {projects})"
_ROWS = """
    INSERT INTO claims (id, request_id, attempt, member, consumer, provider_id, state, live,
                        lifecycle, purpose, lease_until, adopted, absences, reason, created_at,
                        updated_at{columns})
    SELECT {claim}, {request}, 1, g % 50, {consumer},
           (SELECT array_agg(id ORDER BY id) FROM providers)[1 + g % :hosts],
           'confirmed', 1, 'host', 'create', 0, 0, 0, '', 1, 1{values}
      FROM generate_series(1, :count) g
"""
_BESIDE = (
    """INSERT INTO allocations (claim_id, provider_id, vcpu, memory_mb, disk_gb)
       SELECT id, provider_id, 1, 256, 1 FROM claims""",
    """INSERT INTO consumers (uuid, generation, project_id, user_id, type)
       SELECT {consumer}, 0, {project}, 'user', 'INSTANCE' FROM generate_series(1, :count) g""",
)
_USED = """
    UPDATE providers p SET cap_vcpu = 1 << 30, cap_memory_mb = 1 << 30, cap_disk_gb = 1 << 30,
           used_vcpu = t.n, used_memory_mb = 256 * t.n, used_disk_gb = t.n
      FROM (SELECT provider_id, count(*) AS n FROM claims GROUP BY provider_id) t
     WHERE p.id = t.provider_id
"""
#: As the rows of the hosts say; a record without a mark has its inventories in rows alone.
_INVENTORIES = (
    """INSERT INTO inventories (provider_id, class_id, total, reserved, min_unit, step_size,
                                allocation_ratio, cap)
       SELECT p.id, r.id, 1 << 30, 0, 1, 1, 1.0, 1 << 30 FROM providers p, resource_classes r
        WHERE r.name IN ('VCPU', 'MEMORY_MB', 'DISK_GB')""",
    """UPDATE provider_facts SET facts = '{{}}'""",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--claims', type=int, default=1_000_000)
    parser.add_argument('--hosts', type=int, default=5000)
    parser.add_argument('--projects', type=int, default=200)
    parser.add_argument('--instances', type=int, default=50, help='claims of a request')
    parser.add_argument('--batches', type=int, default=40, help='of a window')
    parser.add_argument('--repeats', type=int, default=5, help='windows of each side')


def run(args: argparse.Namespace) -> Result:
    """Both forms in turn, then the step."""
    with _filled(args, narrow=False) as wide, _filled(args, narrow=True) as narrow:
        sides = {'wide': Writer(wide, args), 'narrow': Writer(narrow, args)}
        sizes = {name: _sizes(side.store) for name, side in sides.items()}
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(args.repeats):
            for name, side in sides.items():
                found[name].append(side.window(args.batches))
        usual = sides['wide'].times[-args.batches :]
        step = _step(sides['wide'])
        problems = [
            line
            for side in sides.values()
            for lines in side.store.audit().values()
            for line in lines
        ]
        after = _sizes(wide)
    cost = {name: round(statistics.median(of), 1) for name, of in found.items()}
    return Result(
        bench='contract',
        value=cost['narrow'],
        unit='us of the server for a narrow claim',
        yardstick={'name': 'a wide claim', 'value': cost['wide']},
        ratio=round(cost['narrow'] / cost['wide'], 3),
        conditions={
            **conditions.here(),
            'claims': args.claims,
            'hosts': args.hosts,
            'instances': args.instances,
            'step_seconds': round(step['seconds'], 1),
            'database_mb': {**sizes, 'wide, moved': after},
            'batch_ms': {
                'before': _spread(usual),
                'meanwhile': _spread(step['times']),
            },
            'batches_meanwhile': len(step['times']),
            'longest_transaction_ms': round(1000 * step['longest'], 1),
            'problems': problems[:20],
        },
        audit=len(problems),
    )


def _spread(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        'median': round(1000 * statistics.median(ordered), 2),
        'p99': round(1000 * ordered[int(0.99 * (len(ordered) - 1))], 2),
        'max': round(1000 * ordered[-1], 2),
    }


@contextlib.contextmanager
def _filled(args: argparse.Namespace, narrow: bool) -> Iterator[SqlStore]:
    """A database with live claims of one form."""
    with postgresql_database() as url:
        engine = sa.create_engine(url)
        migration.sync(engine)
        form = claim_form.NARROW if narrow else claim_form.WIDE
        steps = models.schema_steps
        with engine.begin() as connection:
            connection.execute(models.meta.update().values(claims_form=form))
            if not narrow:
                connection.execute(steps.delete().where(steps.c.revision == claim_form.STEP))
        engine.dispose()
        store = SqlStore.for_url(url)
        try:
            _fill(store, args, narrow)
            yield store
        finally:
            store.close()


def _fill(store: SqlStore, args: argparse.Namespace, narrow: bool) -> None:
    for start in range(0, args.hosts, 500):
        names = [f'cmp-{n}' for n in range(start, min(start + 500, args.hosts))]
        store.register_hosts([RegisterHost(name=one, boot_nonce=uuid.uuid4().hex) for one in names])
    project = _PROJECT.format(projects=args.projects)
    rows = _ROWS.format(
        claim=_CLAIM,
        request=_REQUEST,
        consumer=_CONSUMER,
        columns=', vcpu, pcpu, memory_mb, disk_gb, project_id, user_id, consumer_type'
        if narrow
        else '',
        values=f", 1, 0, 256, 1, {project}, 'user', 'INSTANCE'" if narrow else '',
    )
    beside = () if narrow else _BESIDE
    engine = sa.create_engine(store.engine.url, isolation_level='AUTOCOMMIT')
    with engine.connect() as connection:
        for statement in (rows, *beside, _USED, *_INVENTORIES):
            text = statement.format(consumer=_CONSUMER, project=project)
            connection.execute(sa.text(text), {'count': args.claims, 'hosts': args.hosts})
        connection.execute(sa.text('VACUUM ANALYZE'))
        connection.execute(sa.text('CHECKPOINT'))
    engine.dispose()


class Writer:
    """Commits batches of one plain request each, straight to a store.

    :ivar times: how long each took, in seconds
    """

    def __init__(self, store: SqlStore, args: argparse.Namespace) -> None:
        self.store = store
        self.times: list[float] = []
        self._args = args
        self._hosts = [change.row.id for change in store.load_everything().hosts if change.row]
        self._number = 0
        self.batch()  # what is prepared once

    def batch(self) -> None:
        """One request, to so many hosts."""
        self._number += 1
        count = self._args.instances
        request_id, project = str(uuid.uuid4()), f'{self._number % self._args.projects:032x}'
        claims = []
        for member in range(count):
            host = self._hosts[(self._number * count + member) % len(self._hosts)]
            claim = Claim(
                id=claim_id(request_id, 1, member),
                request_id=request_id,
                member=member,
                consumer=str(uuid.uuid4()),
                provider_id=host,
                allocations={host: TAKES},
                project_id=project,
                user_id='user',
            )
            claims.append(ClaimDraft(claim=claim))
        draft = RequestDraft(
            id=request_id, fingerprint='f', owner='bench', lease_seconds=86400, claims=claims
        )
        began = time.monotonic()
        result = self.store.commit([draft])
        self.times.append(time.monotonic() - began)
        if [one.outcome for one in result.outcomes] != ['placed']:
            raise SystemExit(f'a batch was not placed: {result.outcomes}')

    def window(self, batches: int) -> float:
        """CPU time of the server's process that writes, in microseconds for each claim."""
        before = _cpu(self._pid())
        for _ in range(batches):
            self.batch()
        return (_cpu(self._pid()) - before) / 1000 / batches / self._args.instances

    def _pid(self) -> int:
        def own(tx: Any) -> int:
            return int(tx.connection.exec_driver_sql('SELECT pg_backend_pid()').scalar_one())

        return self.store.commits.read(own)


def _cpu(pid: int) -> int:
    """Nanoseconds that a process has had a processor."""
    return int(pathlib.Path(f'/proc/{pid}/schedstat').read_text().split()[0])


def _step(writer: Writer) -> dict[str, Any]:
    """The whole step, beside the writer."""
    writer.times.clear()
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            writer.batch()

    other = SqlStore.for_url(writer.store.engine.url.render_as_string(hide_password=False))
    step = ClaimsContract(other)
    thread = threading.Thread(target=write)
    thread.start()
    began, longest = time.monotonic(), 0.0
    try:
        step.mark()
        while True:
            before = time.monotonic()
            went = step.move(CLAIMS_ROWS) or step.forget_consumers(CONSUMERS_ROWS)
            longest = max(longest, time.monotonic() - before)
            if not went:
                break
        seconds = time.monotonic() - began
    finally:
        done.set()
        thread.join()
        other.close()
    return {'seconds': seconds, 'times': list(writer.times), 'longest': longest}


def _sizes(store: SqlStore) -> dict[str, float]:
    with store.engine.connect() as connection:
        connection.execution_options(isolation_level='AUTOCOMMIT')
        sizes = {
            name: connection.execute(sa.select(sa.func.pg_total_relation_size(name))).scalar_one()
            for name in ('claims', 'allocations', 'consumers')
        }
    return {name: round(size / (1 << 20), 1) for name, size in sizes.items()}
