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
from importlib import metadata
from typing import Any, NamedTuple

from oslo_config import cfg
from packaging.requirements import Requirement

from gantt import exceptions
from gantt.cmd.checks.results import Finding, Result, Severity, first_of, warning
from gantt.conf import files, unknown
from gantt.conf.pipeline import pipeline_from_conf

LOG = logging.getLogger(__name__)


class CheckStage(enum.Flag):
    """Occasion on which a check runs."""

    START = enum.auto()  # of a service, and when it reads its options again
    CONFIG = enum.auto()  # gantt-manage config check
    DOCTOR = enum.auto()  # gantt-manage config doctor
    UPGRADE = enum.auto()  # gantt-status upgrade check


class CheckResource(enum.StrEnum):
    """Resources that a check needs."""

    CONFIGURATION = 'configuration'
    DATABASE = 'database'
    BROKER = 'message broker'
    SERVICE = 'service'


class SiteCheck(NamedTuple):
    """A row of the table.

    :ivar name: name of the check, as the commands show it
    :ivar run: yields the results; an error that it raises is one more result
    """

    name: str
    run: Callable[[Any], Iterable[Result]]
    stages: CheckStage
    needs: CheckResource = CheckResource.CONFIGURATION

    def verdict(self, conf: Any) -> tuple[Severity | None, str]:
        """Return the worst severity (None: all is well), and the text of its results."""
        try:
            results = [*self.run(conf)]
        except (cfg.Error, exceptions.GanttError) as e:
            return Severity.ERROR, files.error_message(e)
        except Exception as e:  # whatever a foreign server or file makes of the question
            LOG.exception('Check failed unexpectedly: check=%s', self.name)
            text = f'the check failed: {type(e).__name__}: {" ".join(str(e).split())}'
            return Severity.ERROR, text
        for severity in Severity:
            texts = [str(r) for r in results if isinstance(r, Finding) and r.severity is severity]
            if texts:  # the first error is what is to be mended first
                return severity, texts[0] if severity is Severity.ERROR else first_of(texts)
        return None, first_of([str(result) for result in results])


def check_plugins(conf: Any) -> Iterator[Result]:
    """Check that the filters and weighers load.  :raises PluginError: one does not"""
    described = pipeline_from_conf(conf).described()
    counts = [f'{len(v)} {k}' for k, v in described.items() if isinstance(v, list | tuple | dict)]
    yield ', '.join(counts) or 'loaded'


def check_names(conf: Any) -> Iterator[Result]:
    """Check for options in the files that no process reads."""
    yield from (warning(why=str(option)) for option in unknown.unread_options(conf))
    yield 'none in the files is misspelled'


def check_libraries(_conf: Any) -> Iterator[Result]:
    """Check that the installed libraries are of the releases that Gantt is made for."""
    for text in metadata.requires('gantt') or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        installed = metadata.version(requirement.name)
        if not requirement.specifier.contains(installed, prereleases=True):
            yield warning(
                why=f'{requirement.name} {installed} is installed; expected '
                f'{requirement.name}{requirement.specifier}, which this release is tested with: '
                'install that'
            )
    yield 'all are of the expected releases'


_START_STAGES = CheckStage.START | CheckStage.CONFIG
PLUGINS = SiteCheck('plugins', check_plugins, _START_STAGES | CheckStage.DOCTOR)
NAMES = SiteCheck('names', check_names, _START_STAGES)
LIBRARIES = SiteCheck('libraries', check_libraries, _START_STAGES | CheckStage.DOCTOR)


def at_start(conf: Any) -> None:
    """Log what the checks of the start find.  :raises GanttError: the service must not start"""
    for check in (PLUGINS, NAMES, LIBRARIES):
        for result in check.run(conf):
            if isinstance(result, Finding):
                LOG.warning('Configuration has a problem: problem=%s', result)
