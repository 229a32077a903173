# SPDX-License-Identifier: Apache-2.0
"""Checks of a site: one table for the start of services and for the commands that look into it.

A check is a function of the configuration that yields findings, and as a text what is well.
``table`` has all of them; here are those of the start, which import little.  What a process opens
is checked at every start where it is opened: private names of libraries, what crosses a network in
clear, the schema and its rights.
"""

import enum
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from oslo_config import cfg

from gantt import exceptions
from gantt.cmd.checks.results import Finding, Result, Severity, some, warning
from gantt.conf import files, unknown
from gantt.conf.pipeline import pipeline_from_conf

LOG = logging.getLogger(__name__)


class CheckStage(enum.Flag):
    """When a check runs."""

    START = enum.auto()  # of a service, and when it reads its options again
    CONFIG = enum.auto()  # gantt-manage config check
    DOCTOR = enum.auto()  # gantt-manage config doctor
    UPGRADE = enum.auto()  # gantt-status upgrade check


class Needs(enum.StrEnum):
    """Resources that a check needs."""

    CONFIGURATION = 'configuration'
    DATABASE = 'database'
    BROKER = 'message broker'
    SERVICE = 'service'


class SiteCheck(NamedTuple):
    """A row of the table.

    :ivar name: as the commands show it
    :ivar run: yields the results; what it raises is one more
    """

    name: str
    run: Callable[[Any], Iterable[Result]]
    stages: CheckStage
    needs: Needs = Needs.CONFIGURATION

    def verdict(self, conf: Any) -> tuple[Severity | None, str]:
        """Return the worst severity, None where all is well, and the sentences of that."""
        try:
            results = [*self.run(conf)]
        except (cfg.Error, exceptions.GanttError) as e:
            return Severity.ERROR, files.message(e)
        except Exception as e:  # whatever a foreign server or file makes of the question
            LOG.exception('Check failed unexpectedly: check=%s', self.name)
            text = f'the check failed: {type(e).__name__}: {" ".join(str(e).split())}'
            return Severity.ERROR, text
        for severity in Severity:
            texts = [str(r) for r in results if isinstance(r, Finding) and r.severity is severity]
            if texts:  # the first error is what is to be mended first
                return severity, texts[0] if severity is Severity.ERROR else some(texts)
        return None, some([str(result) for result in results])


def check_plugins(conf: Any) -> Iterator[Result]:
    """Check that the filters and weighers load.  :raises PluginError: one does not"""
    described = pipeline_from_conf(conf).described()
    counts = [f'{len(v)} {k}' for k, v in described.items() if isinstance(v, list | tuple | dict)]
    yield ', '.join(counts) or 'loaded'


def check_names(conf: Any) -> Iterator[Result]:
    """Check for options in the files that no process reads."""
    yield from (warning(why=str(option)) for option in unknown.unread(conf))
    yield 'none in the files is misspelled'


_AT_FIRST = CheckStage.START | CheckStage.CONFIG
PLUGINS = SiteCheck('plugins', check_plugins, _AT_FIRST | CheckStage.DOCTOR)
NAMES = SiteCheck('names', check_names, _AT_FIRST)


def at_start(conf: Any) -> None:
    """Log what the checks of the start find.  :raises GanttError: the service must not start"""
    for check in (PLUGINS, NAMES):
        for result in check.run(conf):
            if isinstance(result, Finding):
                LOG.warning('Configuration has a problem: problem=%s', result)
