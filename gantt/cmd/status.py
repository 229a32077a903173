# SPDX-License-Identifier: Apache-2.0
"""``gantt-status upgrade check``: whether this release may take over here.

To be run with the new code and the site's configuration, before the processes are
started again.  The database may still have the schema of the last release, so that
only what the first schema had is read.  Exit codes are those of every OpenStack
service: 0 ready, 1 check the warnings first, 2 not ready, 255 the check itself failed; and 64
for wrong usage.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from oslo_config import cfg
from oslo_upgradecheck import upgradecheck
from oslo_upgradecheck.upgradecheck import Code, Result

from gantt import client, exceptions
from gantt.cmd import USAGE, dead_letters, wiring
from gantt.cmd.config_check import check_options
from gantt.conf import files, unknown
from gantt.conf.pipeline import pipeline_from_conf
from gantt.core.messages.base import derived_id
from gantt.db import stores
from gantt.db.engine import session
from gantt.db.schema import migration, models
from gantt.http import policy
from gantt.rpc import wire
from gantt.rpc.amqp import refusals, transport

LOG = logging.getLogger(__name__)
FAILED = 255
ANSWER_SECONDS = 5.0
DEAD_LETTERS_MOST = 1000
#: Hosts and options that are named; the rest is counted.
NAMED = 10

_p = models.providers
HOSTS = sa.select(_p.c.name, _p.c.reported_at).where(_p.c.kind == 'host').order_by(_p.c.name)


class Checks(upgradecheck.UpgradeCommands):
    """The upgrade checks; each reads one thing, and none depends on another."""

    def __init__(self, conf: Any) -> None:
        super().__init__()
        self._conf = conf

    def schema(self) -> Result:
        """Check that the database has what this release reads and writes."""
        engine = session.engine_from_conf(self._conf)
        try:
            current = migration.current(engine)
            if current is None:
                return _failure('the database has no schema; run "gantt-manage db sync"')
            pending = migration.pending(current)
            later = migration.added(engine, current) if pending is None else []
        finally:
            engine.dispose()
        if later:
            return _success(f'at {current}: {", ".join(later)} of a newer release only add')
        if pending is None:
            return _failure(
                f'{migration.strange(current)}; processes that run already work on a newer schema '
                'until they are started again'
            )
        contracts = [revision for revision in pending if migration.contracts(revision)]
        if contracts:
            return _failure(
                f'{", ".join(contracts)} takes away what the last release needs; stop all its '
                'processes, and run "gantt-manage db sync"'
            )
        if pending:
            return _failure(
                f'{", ".join(pending)} to come, and all of them only add; run "gantt-manage db '
                'sync" while the processes of the last release still run'
            )
        return _success(f'at {current}')

    def options(self) -> Result:
        """Check that all of the configuration is understood, and none of it contradicts."""
        try:
            check_options(self._conf)
            pipeline_from_conf(self._conf)
        except exceptions.GanttError as e:
            return _failure(e.message)
        unread_options = [str(option) for option in unknown.unread(self._conf)]
        if unread_options:
            return _warning(_some(unread_options))
        strange = [f'[{group}]' for group in unknown.strange(self._conf)]
        besides = (
            f'; not looked into, as others must have them: {_some(strange)}' if strange else ''
        )
        return _success(f'none is misspelled, none contradicts{besides}')

    def policies(self) -> Result:
        """Check that the site's policy file is understood."""
        rules = policy.PolicyEnforcer(self._conf)
        path = rules.enforcer.policy_path
        if path is not None and path.endswith('.json'):
            return _warning(
                f'{path} is JSON; convert it with oslopolicy-convert-json-to-yaml, and name the '
                'new one in [oslo_policy] policy_file'
            )
        if path is None:
            return _success('the rules are those of the code')
        return _success(f'{path} is understood')

    def schedulers(self) -> Result:
        """Check that the schedulers that run understand the messages of this release."""
        conf = self._conf
        carrier = client.get_transport(conf)
        if transport.address(carrier).startswith(transport.IN_PROCESS_URL):
            return _success('not checked: the broker is in the process itself')
        try:
            scheduler_client = client.SchedulerClient(carrier)
            scheduler_client.get_request(derived_id('probe'), timeout=ANSWER_SECONDS)
        except exceptions.UnsupportedVersion as e:
            return _failure(
                f'a scheduler that runs does not understand version {wire.VERSION}: {e.message}. '
                'Stop all schedulers before those of this release are started'
            )
        except exceptions.NotFound:
            pass  # nobody ever made this request: that is an answer
        except exceptions.Unavailable as e:
            return _warning(f'not checked, because no scheduler answers: {e.message}')
        except Exception as e:
            cause = refusals.text_of(e)
            part = refusals.wrong_in_url(cause)
            if not part:
                raise
            return _failure(
                f'the message broker runs and refuses us: {cause}; correct in transport_url {part}'
            )
        finally:
            carrier.cleanup()
        return _success(f'they understand version {wire.VERSION}')

    def agents(self) -> Result:
        """Check that no sender on the bus uses a version that is not read."""
        conf = self._conf
        if not conf.rpc.dead_letter_queue:
            return _success('not looked at: no queue is named in [rpc] dead_letter_queue')
        try:
            with dead_letters.opened(conf) as (channel, name):
                dead_letter_list = list(dead_letters.read(channel, name, DEAD_LETTERS_MOST))
        except exceptions.NotFound:
            dead_letter_list = []  # nothing was ever refused
        except exceptions.Unavailable as e:
            return _warning(f'not looked at: {e.message}')
        code = exceptions.UnsupportedVersion.code
        strange = {
            f'{dead_letter.method} on {dead_letter.topic}: {dead_letter.problem}'
            for dead_letter in dead_letter_list
            if dead_letter.code == code
        }
        if strange:
            return _failure(
                f'senders whose version is not read: {_some(sorted(strange))}. Bring them up to '
                'date, and drop the dead letters'
            )
        return _success(f'none of {len(dead_letter_list)} dead letters is of another version')

    def hosts(self) -> Result:
        """Check that all hosts report: a silent one is not upgraded."""
        conf = self._conf
        engine = session.engine_from_conf(conf)
        try:
            schema = migration.current(engine)
            if schema is None:
                return _success('there are none')
            if migration.pending(schema) is None:
                return _success('not looked at: the schema comes first')
            with engine.connect() as connection:
                now = connection.execute(sa.select(session.Now())).scalar_one()
                host_rows = connection.execute(HOSTS).all()
        finally:
            engine.dispose()
        down_after = wiring.down_time(pipeline_from_conf(conf))
        silent = [row.name for row in host_rows if now - row.reported_at > down_after]
        if silent:
            return _warning(
                f'{len(silent)} of {len(host_rows)} hosts have not reported for {down_after:g} s: '
                f'{_some(silent)}. Start their agents, or "gantt-manage host decommission" them'
            )
        return _success(f'{len(host_rows)} report')

    def promises(self) -> Result:
        """Return the findings of the audit, where the schema is the one that it reads."""
        try:
            connected = stores.connect(self._conf)
        except exceptions.DatabaseNotSynced:
            return _success('not looked at: the schema comes first')
        try:
            violations = connected.claims.audit()
        finally:
            connected.database.close()
        lines = [f'{kind}: {line}' for kind, lines in violations.items() for line in lines]
        if lines:
            return _warning(f'"gantt-manage audit" finds {len(lines)}: {_some(lines)}')
        return _success('the audit finds nothing')


def _guarded(check: Callable[[Checks], Result]) -> Callable[[Checks], Result]:
    """Wrap a check so that its error is a failure of this check, not of all."""

    def run(self: Checks) -> Result:
        try:
            return check(self)
        except (cfg.Error, exceptions.GanttError) as e:
            return _failure(files.message(e))
        except Exception as e:  # whatever a foreign server or file makes of the question
            LOG.exception('a check failed')
            return _failure(f'the check failed: {type(e).__name__}: {" ".join(str(e).split())}')

    return run


Checks._upgrade_checks = tuple(
    (title, _guarded(check))
    for title, check in (
        ('Schema of the database', Checks.schema),
        ('Options', Checks.options),
        ('Policies', Checks.policies),
        ('Schedulers that run', Checks.schedulers),
        ('Senders on the bus', Checks.agents),
        ('Hosts', Checks.hosts),
        ('Promises', Checks.promises),
    )
)


def _success(details: str | None = None) -> Result:
    return Result(Code.SUCCESS, details)


def _warning(details: str) -> Result:
    return Result(Code.WARNING, details)


def _failure(details: str) -> Result:
    return Result(Code.FAILURE, details)


def _some(found: list[str]) -> str:
    more = f' and {len(found) - NAMED} more' if len(found) > NAMED else ''
    return '; '.join(found[:NAMED]) + more


def run(argv: list[str]) -> int:
    """Parse, check, print; exit code."""
    upgradecheck.register_cli_options(cfg.CONF, Checks(cfg.CONF))
    try:
        conf = wiring.parse(argv, 'gantt-status')
    except SystemExit as e:
        return USAGE if e.code else 0
    except (cfg.Error, exceptions.GanttError) as e:
        print(f'gantt-status: {files.message(e)}', file=sys.stderr)
        return FAILED
    if conf.command.name is None or conf.command.check != 'check':
        print('gantt-status: the command is "gantt-status upgrade check"', file=sys.stderr)
        return USAGE
    # Asked once, now: oslo.db would wait for the server by its own options.
    conf.set_override('max_retries', 0, 'database')
    upgradecheck.CONF = conf  # it looks there for --json
    return int(upgradecheck.run(conf))


def main() -> int:
    """Run as the console script."""
    return run(sys.argv[1:])


if __name__ == '__main__':
    sys.exit(main())
