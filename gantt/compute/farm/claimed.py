# SPDX-License-Identifier: Apache-2.0
"""What is claimed on the hosts of a farm is built there, where no conductor asks for it.

For trying out: a site has a conductor, which sends each build to the host that it was
given, with what the guest is made of and where in the host it was laid out.
"""

import functools
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from gantt import exceptions
from gantt.compute.agent.agent import Halted, Outcome
from gantt.compute.agent.session import Fenced
from gantt.compute.farm.runner import Turns
from gantt.core.messages.build import Build

LOG = logging.getLogger(__name__)

#: Between two looks at what is claimed, and after one that failed.
LOOK_SECONDS, RETRY_SECONDS = 1.0, 5.0


class Builders(Protocol):
    """The hosts that build."""

    def is_ready(self, host: str) -> bool:
        """Whether this host is one of them, and can build now."""

    def build(self, build: Build) -> Outcome:
        """As ``Agent.build``."""


class Claimed(Turns):
    """Looks again and again at what is reserved, and has each claim built once.

    :param hosts: a farm
    :param reserved: the claims that are reserved now, each as its build; raises
        ``Unavailable`` where that cannot be said
    """

    name = '(what is claimed)'

    def __init__(self, hosts: Builders, reserved: Callable[[], Iterable[Build]]) -> None:
        self.started = 0
        self._hosts = hosts
        self._reserved = reserved
        self._begun: set[str] = set()
        self._is_away = False

    def turn(self) -> float:
        """Look once; seconds until the next look."""
        try:
            builds = {build.claim_id: build for build in self._reserved()}
        except exceptions.Unavailable as e:
            # Told once for each time that it is away.
            LOG.log(
                logging.DEBUG if self._is_away else logging.WARNING,
                'It cannot be said what is claimed: %s; trying again',
                e,
            )
            self._is_away = True
            return RETRY_SECONDS
        self._is_away = False
        self._begun &= builds.keys()
        for claim_id, build in builds.items():
            if claim_id not in self._begun and self._hosts.is_ready(build.host):
                self._begun.add(claim_id)
                self.aside(functools.partial(self._build, build))
        return LOOK_SECONDS

    def _build(self, build: Build) -> None:
        try:
            outcome = self._hosts.build(build)
        except (Halted, Fenced, exceptions.InvalidMessage) as e:
            LOG.info('Claim %s is not built on %s: %s', build.claim_id, build.host, e)
            return
        self.started += outcome.outcome == 'running'
        LOG.info(
            'Guest %s on %s: %s %s', outcome.consumer, build.host, outcome.outcome, outcome.reason
        )
