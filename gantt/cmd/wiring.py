# SPDX-License-Identifier: Apache-2.0
"""The parts of a process built from options, as the entry points share them.

This is the composition root: the only place that knows all rings and adapters.
"""

import contextlib
import ctypes
import gc
import logging
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from oslo_config import cfg
from sqlalchemy.engine import make_url

from gantt import conf as options
from gantt import exceptions, plugin_loader, private_names
from gantt.cmd import GC_THRESHOLDS, USAGE_EXIT_CODE, checks
from gantt.conf import files, quotas, security, unknown
from gantt.conf.pipeline import pipeline_from_conf
from gantt.core.placement.pipeline import Pipeline
from gantt.core.records.decision import Answered
from gantt.groups.service.group_members import GroupMembers
from gantt.scheduler.host_cache import HostFollower
from gantt.scheduler.recorder import StoreRecorder
from gantt.scheduler.service import Scheduler
from gantt.scheduler.settings import SchedulerSettings
from gantt.stores import AllStores
from gantt.telemetry import answer_log, guru, log
from gantt.telemetry.metrics import MetricRegistry
from gantt.telemetry.trail import AuditTrailFile
from gantt.zones.client.credentials import ZoneCredentials
from gantt.zones.client.http_calls import HttpZones
from gantt.zones.conf import strategies_from_conf
from gantt.zones.service.context import ZoneContext
from gantt.zones.service.offers.evaluate import ZoneSelection
from gantt.zones.service.place_over_zones import place_over_zones

T = TypeVar('T')
#: Between two tries to read at the start.
DATABASE_RETRY_SECONDS = 2.0
LOG = logging.getLogger(__name__)
DECISIONS_LOG = logging.getLogger('gantt.decisions')
#: Of mallopt(3), and what they are set to.  As it comes glibc raises the second and third to 32 and
#: 64 MiB with the first large message that is freed, and gives as much as that never back.
M_ARENA_MAX, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -8, -1, -3
ARENAS, FREE_BYTES_MAX, LARGE_BYTES = 2, 4 << 20, 1 << 20


def audit_trail_file(conf: Any) -> AuditTrailFile:
    """Return the audit trail as configured in [audit_trail]."""
    options_of_trail = conf.audit_trail
    return AuditTrailFile(
        options_of_trail.file, options_of_trail.file_bytes_max, options_of_trail.files_max
    )


def parse(
    argv: list[str], program: str, extra: list[Any] | None = None, *, prints: bool = False
) -> Any:
    """Return the global configuration object, filled from the command line and files.

    :param extra: options of the command line
    :param prints: its standard output is a result, perhaps in JSON: log lines go to standard error
    :raises Misconfigured, cfg.Error: a file or an option is wrong; names it
    """
    private_names.check('oslo.config')
    conf = cfg.CONF
    options.register_opts(conf)
    log.register_opts(conf)
    guru.register_opts(conf)
    if extra:
        conf.register_cli_opts(extra)
    files.read(conf, argv, program)
    unknown.check_references(conf)
    if prints and not (conf.log_file or conf.log_dir or conf.use_journal or conf.use_syslog):
        conf.set_default('use_stderr', True)
    log.setup(conf, program)
    return conf


def run(
    argv: list[str], program: str, serve: Callable[[Any], int], extra: list[Any] | None = None
) -> int:
    """Parse the command line, serve, and turn expected errors into one line and an exit code.

    :param extra: options of the command line
    :returns: what ``serve`` returns; 1 trouble, 64 wrong usage
    """
    try:
        conf = parse(argv, program, extra)
    except SystemExit as e:
        return USAGE_EXIT_CODE if e.code else 0
    except (cfg.Error, exceptions.GanttError) as e:
        print(f'{program}: {files.error_message(e)}', file=sys.stderr)
        return 1
    try:
        return serve(conf)
    except (cfg.Error, exceptions.GanttError) as e:
        LOG.error(
            'Process ended with an error: program=%s error=%s', program, files.error_message(e)
        )
        print(f'{program}: {files.error_message(e)}', file=sys.stderr)
        return 1


def wait_for_database(
    conf: Any, work: Callable[[], T], is_stopping: Callable[[], bool] = lambda: False
) -> T:
    """Return the result of ``work``, which a process reads at its start, once the database answers.

    The wait is bounded as for a broker, ``[rpc] start_wait_seconds``.

    :param is_stopping: whether to give up, called several times a second
    :raises DatabaseUnavailable: it did not answer, or refuses us
    :raises SystemExit: the process is stopped
    """
    seconds = conf.rpc.start_wait_seconds
    end = time.monotonic() + seconds
    while True:
        try:
            return work()
        except exceptions.DatabaseUnavailable as e:
            seconds_left = end - time.monotonic()
            if 'correct' in e.kwargs or isinstance(e, exceptions.DatabaseFull):
                raise  # trying again changes nothing
            if seconds_left <= 0:
                text = f'{e.message} (tried for {seconds:.0f} s)'
                raise exceptions.DatabaseUnavailable(text, **e.kwargs) from None
            LOG.warning(
                'The database does not answer; the start waits for it: seconds_left=%.0f error=%s',
                seconds_left,
                e.message,
            )
            retry_at = time.monotonic() + min(DATABASE_RETRY_SECONDS, seconds_left)
        while time.monotonic() < retry_at:
            if is_stopping():
                raise SystemExit(0)
            time.sleep(0.1)


def keep_memory_small() -> None:
    """Use two memory arenas for all threads, and give what is free back to the system.

    glibc makes one for each thread and gives little back.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_ARENA_MAX, ARENAS)
        mallopt(M_TRIM_THRESHOLD, FREE_BYTES_MAX)
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)


def collect_garbage_rarely() -> None:
    """Exempt present objects from the garbage collector, and let it run seldom.

    A table of many hosts is full of objects that live for long and have no cycles among
    them.  By default Python's collector scans all of them again and again, each time in the
    middle of a decision.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def worker_name(conf: Any) -> str:
    """Return a name that no other process and no earlier start of this one has."""
    name = conf.worker or f'{conf.host or socket.gethostname()}:{os.getpid()}'
    return f'{name}:{uuid.uuid4().hex[:8]}'


def reload(conf: Any, reconfigure: Callable[[SchedulerSettings, Pipeline], list[str]]) -> str:
    """Read the configuration files again and go on with what may change while running.

    What cannot be read, or names a plugin that does not load, changes nothing.

    :param reconfigure: takes over settings and pipeline; returns the settings that changed
    :returns: why it was not taken over, else nothing
    """
    try:
        pipeline, new_settings = reread_options(conf)
        changed = reconfigure(new_settings, pipeline)
    except (cfg.Error, exceptions.GanttError) as e:
        LOG.error(
            'Configuration is refused; the last one stays in force: error=%s',
            files.error_message(e),
        )
        return files.error_message(e)
    checks.at_start(conf)
    LOG.info('Configuration was read again: changed=%s', ','.join(changed) or 'none')
    log_pipeline(pipeline)
    return ''


def reread_options(conf: Any) -> tuple[Pipeline, SchedulerSettings]:
    """Read the configuration files again; the filters and weighers, and the settings.

    :raises cfg.Error, GanttError: they are wrong; ``conf`` is as it was
    """
    before, hooks = conf._mutable_ns, conf._mutate_hooks
    try:
        # What acts on other options, as logging on its levels, does so once all is right.
        conf._mutate_hooks = set()
        fresh = conf.mutate_config_files()
        plugin_loader.rescan()
        pipeline = pipeline_from_conf(conf)
        new_settings = settings(conf, pipeline)
        with log.reconfiguring(conf):
            for hook in hooks:
                hook(conf, fresh)
        return pipeline, new_settings
    except (cfg.Error, exceptions.GanttError, ValueError, OSError) as e:
        # oslo.config has no way back of its own; clearing any option drops what it remembers.
        conf._mutable_ns = before
        conf.clear_default('worker')
        if isinstance(e, cfg.Error | exceptions.GanttError):
            raise
        # Bytes that are no text, a directory in place of a file.
        path, problem = files.unreadable(conf.config_file) or ('a configuration file', str(e))
        raise exceptions.Misconfigured(option=path, problem=problem, fix='Correct it') from e
    finally:
        conf._mutate_hooks = hooks


def log_pipeline(pipeline: Pipeline) -> None:
    """Log which filters and weighers are in force."""
    LOG.info('Filters are in force: filters=%s', ','.join(f.name for f in pipeline.filters))
    LOG.info(
        'Weighers are in force: weighers=%s',
        ','.join(f'{w.multiplier:g}×{w.name}' for w in pipeline.weighers),
    )


def settings(conf: Any, pipeline: Pipeline) -> SchedulerSettings:
    """Return the service's settings from its options: those of [scheduler] and [claims] by name."""
    by_name = {
        name: group[name]
        for group in (conf.scheduler, conf.claims)
        for name in group
        if name in SchedulerSettings.__struct_fields__
    }
    return SchedulerSettings(
        **by_name,
        worker=worker_name(conf),
        order_by_cost=conf.filters.order_by_cost,
        nova_clock_skew_seconds=conf.rpc.nova_clock_skew_seconds,
        stale_after_seconds=down_time(pipeline),
        default_zone=pipeline.settings.default_zone or 'nova',
        signatures=security.rules(conf),
        decisions_stored=conf.decisions.count_max,
        decision_bytes=conf.decisions.size_mb_max << 20,
        decision_queue_limit=conf.decisions.queue_limit,
        purge_seconds=conf.decisions.purge_seconds,
        replay_seconds=conf.decisions.replay_seconds,
        quotas=quotas.limits(conf),
    )


def down_time(pipeline: Pipeline) -> float:
    """Return the seconds without a report after which the filters treat a host as down."""
    times = [f.settings().get('service_down_time') for f in pipeline.filters]
    return min(
        (float(t) for t in times if t is not None), default=SchedulerSettings().stale_after_seconds
    )


def database_url_text(conf: Any) -> str:
    """Return the database's URL without its password."""
    return make_url(conf.database.connection).render_as_string(hide_password=True)


def zone_calls(conf: Any, own_uuid: Callable[[], str], **options: Any) -> HttpZones:
    """Return the calls to the child zones.

    :param own_uuid: uuid of this zone
    :param options: as of ``HttpZones``
    """
    return HttpZones(ZoneCredentials(conf.zones.credentials_file, own_uuid), **options)


def zone_context(
    conf: Any,
    stores: AllStores,
    cache: HostFollower,
    pipeline: Callable[[], Pipeline],
    metrics: Any,
) -> ZoneContext:
    """Build the parts that talk to parent and child zones; nothing is read yet.

    :param cache: a follower of the database
    """
    parts: ZoneContext | None = None

    def own_uuid() -> str:
        assert parts is not None, 'it is made by then'
        return parts.directory.own_uuid()

    calls = zone_calls(conf, own_uuid, observe=metrics.observe)
    zone_settings = settings(conf, pipeline())
    choosing = ZoneSelection(strategies_from_conf(conf))
    parts = ZoneContext(stores, calls, cache, pipeline, zone_settings, metrics.count, choosing)
    return parts


def scheduler(conf: Any, stores: AllStores, metrics: MetricRegistry) -> Scheduler:
    """Build a scheduler over ``stores``, not started yet.

    :raises PluginError: a filter or weigher does not load
    """
    pipeline = pipeline_from_conf(conf)
    scheduler_settings = settings(conf, pipeline)
    recorder = StoreRecorder(stores.records, metrics, scheduler_settings.decision_queue_limit)

    def say(answers: Sequence[Answered]) -> None:
        answer_log.log_answers(DECISIONS_LOG, scheduler_settings.log_answers == 'each', answers)

    built = Scheduler(
        stores,
        pipeline,
        recorder,
        scheduler_settings,
        on_answers=say,
        make_hook=GroupMembers,
    )
    # A table of its own, which the thread that places does not write: read where it is needed.
    cache = HostFollower(
        stores.feed,
        stores.vocabulary,
        built.clock,
        scheduler_settings.reload_seconds,
        default_zone=scheduler_settings.default_zone,
    )
    built.caches.append(cache)
    zones = zone_context(conf, stores, cache, lambda: built.placing.pipeline, metrics)
    place_over_zones(stores, built, zones)
    return built
