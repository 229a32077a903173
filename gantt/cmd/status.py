# SPDX-License-Identifier: Apache-2.0
"""``gantt-status upgrade check``: whether this release may take over here.

To be run with the new code and the site's configuration, before the processes are
started again.  The database may still have the schema of the last release, so that
only what the first schema had is read.  Exit codes are those of every OpenStack
service: 0 ready, 1 check the warnings first, 2 not ready, 255 the check itself failed; and 64
for wrong usage.
"""

import functools
import sys
from typing import Any

from oslo_config import cfg
from oslo_upgradecheck import upgradecheck
from oslo_upgradecheck.upgradecheck import Code, Result

from gantt import exceptions
from gantt.cmd import USAGE_EXIT_CODE, wiring
from gantt.cmd.checks import CheckStage, SiteCheck
from gantt.cmd.checks.results import Severity
from gantt.cmd.checks.table import of_stage
from gantt.conf import files

FAILED_EXIT_CODE = 255
_CODE_BY_SEVERITY = {
    None: Code.SUCCESS,
    Severity.WARNING: Code.WARNING,
    Severity.ERROR: Code.FAILURE,
}


class Checks(upgradecheck.UpgradeCommands):
    """The checks of an upgrade, in the form of oslo.upgradecheck."""

    def __init__(self, conf: Any) -> None:
        super().__init__()
        self._upgrade_checks = tuple(
            (check.name, functools.partial(_upgrade_result, conf=conf, check=check))
            for check in of_stage(CheckStage.UPGRADE)
        )


def _upgrade_result(_: Checks, conf: Any, check: SiteCheck) -> Result:
    severity, text = check.verdict(conf)
    return Result(_CODE_BY_SEVERITY[severity], text)


def run(argv: list[str]) -> int:
    """Parse, check, print; exit code."""
    upgradecheck.register_cli_options(cfg.CONF, Checks(cfg.CONF))
    try:
        conf = wiring.parse(argv, 'gantt-status', prints=True)
    except SystemExit as e:
        return USAGE_EXIT_CODE if e.code else 0
    except (cfg.Error, exceptions.GanttError) as e:
        print(f'gantt-status: {files.error_message(e)}', file=sys.stderr)
        return FAILED_EXIT_CODE
    if conf.command.name is None or conf.command.check != 'check':
        print('gantt-status: the command is "gantt-status upgrade check"', file=sys.stderr)
        return USAGE_EXIT_CODE
    # Asked once, now: oslo.db would wait for the server by its own options.
    conf.set_override('max_retries', 0, 'database')
    upgradecheck.CONF = conf  # it looks there for --json
    return int(upgradecheck.run(conf))


def main() -> int:
    """Run as the console script."""
    return run(sys.argv[1:])


if __name__ == '__main__':
    sys.exit(main())
