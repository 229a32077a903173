# SPDX-License-Identifier: Apache-2.0
"""``gantt-compute``: the agent of this host, a farm of fake ones, or a file's speaker.

With ``--facts-only`` it reports of a host of Nova what its APIs do not carry.

SIGTERM takes no new build, finishes what was begun, and exits 0.  SIGHUP logs
the state.  In a farm, SIGUSR1 lets a tenth of the hosts die and SIGUSR2
revives the dead.
"""

import functools
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

from oslo_config import cfg

from gantt import conf as options
from gantt import exceptions
from gantt.cli.endpoint import Endpoint, Failure, endpoint_of
from gantt.cmd import USAGE_EXIT_CODE
from gantt.cmd.process_signals import ProcessSignals
from gantt.compute import service
from gantt.compute.agent import key_file
from gantt.conf import compute, files, unknown
from gantt.core.messages.build import Build
from gantt.core.messages.prepared import prepare_types
from gantt.telemetry import log
from gantt.version import version_string

LOG = logging.getLogger(__name__)

#: Bounds of one query for claims: claims at most, those of one answer, seconds of one call.
CLAIMS_MAX, PAGE, CALL_SECONDS = 10_000, 1000, 10.0


def main(argv: list[str] | None = None) -> int:
    """Run until stopped; return the exit code."""
    conf = cfg.CONF
    options.register_opts(conf, ('base', 'rpc', 'compute'))
    compute.register_cli_opts(conf)
    log.register_opts(conf)
    try:
        files.read(conf, sys.argv[1:] if argv is None else argv, 'gantt-compute')
        unknown.check_references(conf)
        log.setup(conf, 'gantt-compute')
        return _rotate(conf) if conf.rotate_key else _serve(conf)
    except SystemExit as e:
        return USAGE_EXIT_CODE if e.code else 0
    except (exceptions.GanttError, cfg.Error) as e:
        LOG.error('gantt-compute ended with an error: error=%s', files.error_message(e))
        print(f'gantt-compute: {files.error_message(e)}', file=sys.stderr)
        return 1


def _rotate(conf: Any) -> int:
    fingerprint = key_file.rotate(service.key_path(conf))
    print(f'the key is {fingerprint} now; restart the agent')
    return 0


def _serve(conf: Any) -> int:
    reserved = functools.partial(reserved_claims, _endpoint()) if conf.build_claims else None
    running = service.from_conf(conf, reserved)
    acts = running.signals()
    signal_names = {number: signal.Signals(number).name for number in acts}
    signals = ProcessSignals().handle_signals(signal_names)
    prepare_types()
    running.start()
    LOG.info('gantt-compute is ready: version=%s', version_string())
    for request in signals.requests_until_stop():
        LOG.info(
            'Signal was handled: signal=%s result=%s',
            request,
            acts[signal.Signals[request]](),
        )
    LOG.info('gantt-compute is stopping: status=%s', running.status())
    return 0 if running.stop(conf.rpc.drain_seconds) else 1


def _endpoint() -> Endpoint:
    """Return the API.  :raises Misconfigured: the environment has no API or usable credentials"""
    try:
        return endpoint_of(os.environ.get('GANTT_ENDPOINT'), None, CALL_SECONDS)
    except Failure as e:
        raise exceptions.Misconfigured(
            option='--build-claims', problem=e.message, fix='Correct the environment'
        ) from None


def reserved_claims(endpoint: Endpoint) -> Iterator[Build]:
    """Yield builds for unconfirmed claims of new guests, as a conductor would request them.

    Claims of other zones and of moves are left out, and so are places of plans that no create uses.

    :raises Unavailable: the API does not answer, or refuses
    """
    marker = None
    for _ in range(CLAIMS_MAX // PAGE):
        try:
            page = endpoint.get('/v1/claims', state='reserved', limit=PAGE, marker=marker)
        except Failure as e:
            raise exceptions.Unavailable(e.message) from None
        for claim in page['claims']:
            is_of_host = claim['lifecycle'] == 'host' or claim.get('taken_over')
            if is_of_host and claim['purpose'] == 'create':
                yield Build(
                    claim_id=claim['id'],
                    consumer=claim['consumer'],
                    host=claim['host'],
                    resources=claim['host_resources'],
                    lease_seconds=claim['lease_seconds'] or 0.0,
                    request_id=claim['request_id'],
                    group=claim['group'],
                )
        marker = page['next_marker']
        if marker is None:
            return


if __name__ == '__main__':
    sys.exit(main())
