# SPDX-License-Identifier: Apache-2.0
"""``gantt-nova-source``: reports for the hosts of an unmodified Nova, read from its API.

It is ``gantt-report-source nova``.  One process for a site: another one takes its hosts
over, and it stops speaking for them.
"""

import sys

from oslo_config import cfg

from gantt.cmd import report_source

PROG = 'gantt-nova-source'


def main(argv: list[str] | None = None) -> int:
    """Run until stopped; return the exit code."""
    return report_source.run(cfg.CONF, 'nova', PROG, argv)


if __name__ == '__main__':
    sys.exit(main())
