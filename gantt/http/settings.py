# SPDX-License-Identifier: Apache-2.0
"""Configuration of the HTTP application, as one plain value."""

import msgspec

from gantt.core.messages import base


class HttpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the HTTP application: bounds on concurrent requests, ages, and switches.

    :ivar placements_max: requests that may wait for the schedulers at once; threads beyond
        these are left for everything else
    :ivar placements_of_one_max: requests of ``placements_max`` that one project may have
    :ivar plans_max: part of ``placements_max`` that may wait for the planner of groups: that takes
        seconds, and no request waits for it
    :ivar trials_max: dry runs, what-ifs, capacities and replays at once
    :ivar evaluations_max: requests of parent zones that are evaluated at once
    :ivar waits_max: callers that may wait for events at once, each with a thread
    :ivar table_age_seconds: maximum age of the host table that a read is answered from
    :ivar table_age_unhealthy_seconds: age of the host table from which on the health check fails
    :ivar cors_allowed_origins: empty: no CORS headers at all
    :ivar served_names: host names, besides addresses and ``localhost``, served without tokens
    :ivar behind_proxy: trust the ``Forwarded`` and ``X-Forwarded-*`` headers
    :ivar disable_by_file: while this file exists, /healthcheck answers 503,
        so that a load balancer sends nothing new here
    :ivar site_name: operators' name of this site; empty: none
    """

    body_bytes_max: int = base.BYTES_MAX
    placements_max: int = 12
    placements_of_one_max: int = 8
    plans_max: int = 4
    trials_max: int = 2
    evaluations_max: int = 8
    waits_max: int = 4
    table_age_seconds: float = 1.0
    table_age_unhealthy_seconds: float = 60.0
    cors_allowed_origins: tuple[str, ...] = ()
    served_names: tuple[str, ...] = ()
    behind_proxy: bool = False
    disable_by_file: str = ''
    site_name: str = ''


def placement_threads(threads: int) -> int:
    """Return the threads that placements may have: a quarter is left for quick answers."""
    return max(1, threads * 3 // 4)


def waiting_threads(threads: int) -> int:
    """Return the threads that may wait for events, and as many for plans of groups: a quarter."""
    return max(1, threads // 4)


def threads_of_one_project(threads: int) -> int:
    """Return the threads that one project may have at most."""
    return max(1, threads // 2)
