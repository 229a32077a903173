# SPDX-License-Identifier: Apache-2.0
"""``gantt-report-source NAME``: reports for hosts that another system runs.

NAME is that of a plugin in the group gantt.report_sources; ``nova`` is one, which
``gantt-nova-source`` runs: reports for the hosts of an unmodified Nova, read from its API.  One
process for a site: another one takes its hosts over, and it stops speaking for them.  SIGTERM
begins nothing new and exits 0.  SIGHUP logs the state.
"""

import logging
import sys
import threading
from typing import Any

from oslo_config import cfg

from gantt import conf as options
from gantt import exceptions, plugin_loader
from gantt.cmd import USAGE_EXIT_CODE
from gantt.cmd.process_signals import SIGNAL_POLL_SECONDS, ProcessSignals
from gantt.compute.ports import ReportSource
from gantt.conf import files, unknown
from gantt.telemetry import log
from gantt.telemetry.listener import listen
from gantt.telemetry.metrics import MetricRegistry
from gantt.version import version_string

LOG = logging.getLogger('gantt.cmd.report_source')

ENTRY_POINT_GROUP = 'gantt.report_sources'
PROG = 'gantt-report-source'
_SOURCE_ARGUMENT = cfg.StrOpt(
    'source',
    positional=True,
    required=True,
    help='Name of a plugin in the group gantt.report_sources.',
)


def main(argv: list[str] | None = None) -> int:
    """Run the named source until stopped; return the exit code."""
    conf = cfg.CONF
    conf.register_cli_opt(_SOURCE_ARGUMENT)
    return run(conf, '', PROG, argv)


def nova(argv: list[str] | None = None) -> int:
    """Run the source of Nova's hosts until stopped; return the exit code."""
    return run(cfg.CONF, 'nova', 'gantt-nova-source', argv)


def run(conf: Any, name: str, prog: str, argv: list[str] | None = None) -> int:
    """Run a source until stopped; return the exit code.

    :param name: '' where the command line has it
    """
    options.register_opts(conf, ('base', 'rpc', 'report_source'))
    log.register_opts(conf)
    try:
        files.read(conf, sys.argv[1:] if argv is None else argv, prog)
        unknown.check_references(conf)
        source: type[ReportSource] = plugin_loader.find_class(
            ENTRY_POINT_GROUP, name or conf.source, ReportSource
        )
        source.register_opts(conf)
        log.setup(conf, prog)
        return _serve(conf, source, prog)
    except SystemExit as e:
        return USAGE_EXIT_CODE if e.code else 0
    except (exceptions.GanttError, cfg.Error) as e:
        LOG.error(
            'Report source ended with an error: program=%s error=%s', prog, files.error_message(e)
        )
        print(f'{prog}: {files.error_message(e)}', file=sys.stderr)
        return 1


def _serve(conf: Any, source: type[ReportSource], prog: str) -> int:
    metrics = MetricRegistry()
    # Before it reports for any host: a process that cannot listen ends, and would take hosts over.
    listener = listen(metrics, conf, source.metrics_group)
    running = source.from_conf(conf, metrics.count, metrics.gauge)
    stopping = running.stopping
    signals = ProcessSignals().handle_signals()
    # While the first pass goes on, which may wait for others, this thread listens.
    threading.Thread(
        target=_handle_requests, args=(signals, running), name='signals', daemon=True
    ).start()
    running.start()
    if not stopping.is_set():
        LOG.info('Report source is ready: program=%s version=%s', prog, version_string())
    while not stopping.wait(SIGNAL_POLL_SECONDS):
        pass
    LOG.info('Report source is stopping: program=%s status=%s', prog, running.status())
    done = running.stop(conf.rpc.drain_seconds)
    if listener is not None:
        listener.stop()
    return 0 if done else 1


def _handle_requests(signals: ProcessSignals, running: ReportSource) -> None:
    for _ in signals.requests_until_stop():
        LOG.info('Status was requested by a signal: status=%s', running.status())
    running.stopping.set()


if __name__ == '__main__':
    sys.exit(main())
