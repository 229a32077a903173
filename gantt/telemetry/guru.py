# SPDX-License-Identifier: Apache-2.0
"""The guru meditation report: the state of a process, on request.

SIGUSR2, or a touch of ``[oslo_reports] file_event_handler``, writes it to standard error
or to a file in ``[oslo_reports] log_dir``: threads with their stacks, the process, the
configuration without its secrets, and the process's own facts.  Nothing is
stopped by it, and no server is queried.
"""

import os
import types
from collections.abc import Callable
from typing import Any, ClassVar

from oslo_reports import guru_meditation_report, opts
from oslo_reports.models import with_default_views

from gantt import exceptions
from gantt.telemetry import log
from gantt.version import version_string

#: Facts of a process on itself: title of a section -> its facts, as JSON has them.
Sections = dict[str, Callable[[], dict[str, Any]]]


#: The interface that the library requires.
REPORT_VERSION = types.SimpleNamespace(
    vendor_string=lambda: 'OpenStack',
    product_string=lambda: 'Gantt',
    version_string_with_package=version_string,
)


class Report(guru_meditation_report.TextGuruMeditation):
    """The report in text, with everything that resembles a secret masked."""

    persistent_sections: ClassVar[list[tuple[str, Callable[[], Any]]]] = []

    def run(self) -> str:
        """Return the whole text."""
        return log.masked(super().run())


def register_opts(conf: Any) -> None:
    """Register the library's options."""
    opts.set_defaults(conf)


def listen(conf: Any, program: str) -> None:
    """Report from now on when requested; called by the main thread.

    :param program: name of the program, which is that of the files
    :raises Misconfigured: the file to watch, or the directory to write to, is not there
    """
    options = conf.oslo_reports
    for name, is_there in (('file_event_handler', os.path.isfile), ('log_dir', os.path.isdir)):
        path = getattr(options, name)
        if path and not is_there(path):
            raise exceptions.Misconfigured(
                option=f'[oslo_reports] {name}', problem=f'{path} is not there', fix='Make it'
            )
    Report.setup_autorun(REPORT_VERSION, service_name=program, conf=conf)


def print_report(sections: Sections) -> None:
    """Add these sections to the report from now on."""
    remaining = [section for section in Report.persistent_sections if section[0] not in sections]
    Report.persistent_sections = [
        *remaining,
        *((title, _section(section_of)) for title, section_of in sections.items()),
    ]


def _section(section_of: Callable[[], dict[str, Any]]) -> Callable[[], Any]:
    def make() -> Any:
        try:
            facts = section_of()
        except Exception as e:  # the other sections are wanted all the more
            facts = {'not known': f'{type(e).__name__}: {e}'}
        return with_default_views.ModelWithDefaultViews(data=facts)

    return make
