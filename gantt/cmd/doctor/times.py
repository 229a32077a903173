# SPDX-License-Identifier: Apache-2.0
"""Periods and bounds that contradict each other."""

from collections.abc import Iterator
from typing import Any

from gantt.cmd.doctor.finding import Finding, error, note, warning

#: The longest budget that a request may have, in seconds.
BUDGET_MAX = 600
#: A host table's log starts anew so often: a replay needs one such start.
CHECKPOINT_SECONDS = 300
#: A drain is cut after so long by the unit file of the documents.
UNIT_STOP_SECONDS = 90


def contradictions(conf: Any) -> Iterator[Finding]:
    """Bounds that cannot hold at the same time; ``config check`` insists on these, too."""
    claims, scheduler = conf.claims, conf.scheduler
    for option, value, bound, most in (
        ('lease_seconds', claims.lease_seconds, 'lease_seconds_max', claims.lease_seconds_max),
        (
            'plan_lease_seconds',
            claims.plan_lease_seconds,
            'plan_lease_seconds_max',
            claims.plan_lease_seconds_max,
        ),
    ):
        if value > most:
            yield error(
                f'[claims] {option}',
                value,
                f'{value:g} is more than {bound}, {most:g}',
                'Lower the one or raise the other',
            )
    if scheduler.unknown_after_seconds < scheduler.report_seconds:
        yield error(
            '[scheduler] unknown_after_seconds',
            scheduler.unknown_after_seconds,
            f'{scheduler.unknown_after_seconds:g} is less than report_seconds, '
            f'{scheduler.report_seconds}: hosts would count as not known between two reports',
            'Set it to twice report_seconds or more',
        )
    if scheduler.feed_seconds >= scheduler.unknown_after_seconds:
        yield error(
            '[scheduler] feed_seconds',
            scheduler.feed_seconds,
            'the host table is always older than unknown_after_seconds, '
            f'{scheduler.unknown_after_seconds:g}: "no host fits" is never answered, only '
            '"not known"',
            'Set it to 1 or less',
        )


def hosts(conf: Any, down_seconds: float) -> Iterator[Finding]:
    """How long a host may be silent.

    :param down_seconds: [filters] service_down_time
    """
    for option, period in (
        ('[scheduler] report_seconds', conf.scheduler.report_seconds),
        ('[compute] report_seconds', conf.compute.report_seconds),
    ):
        if period * 1.1 >= down_seconds:
            yield error(
                option,
                period,
                f'[filters] service_down_time is {down_seconds:g}: hosts count as down between '
                'two reports, which come this often, ± 10 %',
                f'Set service_down_time to {3 * period} or more',
            )
        elif period * 2 > down_seconds:
            yield warning(
                option,
                period,
                f'[filters] service_down_time is {down_seconds:g}, less than two periods: one '
                'report that is lost takes a host out of service',
                f'Set service_down_time to {3 * period} or more',
            )
    most, period = conf.scheduler.unknown_after_seconds, conf.scheduler.report_seconds
    if period <= most < 2 * period:
        yield warning(
            '[scheduler] unknown_after_seconds',
            most,
            f'it is less than two reports of {period} s: a short outage of the database turns '
            'every "no host fits" into "not known"',
            f'Set it to {2 * period}',
        )


def leases(conf: Any) -> Iterator[Finding]:
    """Leases, and who has to be faster than they are."""
    claims, period = conf.claims, conf.scheduler.report_seconds
    if claims.lease_seconds < 2 * period:
        yield warning(
            '[claims] lease_seconds',
            claims.lease_seconds,
            f'it is less than two reports of {period} s. A host without an agent of Gantt is '
            'confirmed by its reports: its claims may end before the first report that shows '
            'the guest',
            f'Set it to {2 * period}, or to the longest build plus {2 * period}',
        )
    if claims.sweep_seconds > claims.lease_seconds:
        yield warning(
            '[claims] sweep_seconds',
            claims.sweep_seconds,
            'room of claims that nobody confirmed stays taken for this long beyond their lease '
            f'of {claims.lease_seconds:g} s',
            'Set it to a tenth of the lease',
        )
    rpc = conf.rpc
    if rpc.nova_enabled and rpc.nova_lease_seconds < 2 * period:
        yield error(
            '[rpc] nova_lease_seconds',
            rpc.nova_lease_seconds,
            'hosts of Nova confirm no claim before they build: a report has to show the guest '
            f'within the lease, and reports come every {period} s',
            'Set it to more than the slowest build takes; 900 is the default',
        )
    elif rpc.nova_enabled and rpc.nova_lease_seconds < BUDGET_MAX:
        yield warning(
            '[rpc] nova_lease_seconds',
            rpc.nova_lease_seconds,
            'hosts of Nova confirm no claim before they build: room is given away under a build '
            'that takes longer, and its guest is found as over-commit later',
            'Set it to more than the slowest build takes; 900 is the default',
        )


def memory(conf: Any) -> Iterator[Finding]:
    """For how long something is remembered."""
    claims, compute, decisions = conf.claims, conf.compute, conf.decisions
    needed = max(10.0 * conf.scheduler.report_seconds, claims.lease_seconds_max)
    if claims.tombstone_seconds < needed:
        yield warning(
            '[claims] tombstone_seconds',
            claims.tombstone_seconds,
            'an ended claim is forgotten while words about it may still be under way: they are '
            'then told that it never was',
            f'Set it to {needed:g} or more; a day is the default',
        )
    if claims.request_seconds < BUDGET_MAX:
        yield warning(
            '[claims] request_seconds',
            claims.request_seconds,
            f'a caller may repeat a request for {BUDGET_MAX} s: one whose claims have ended '
            'would be placed anew',
            f'Set it to {BUDGET_MAX} or more; a day is the default',
        )
    if compute.tombstone_seconds < claims.tombstone_seconds:
        yield error(
            '[compute] tombstone_seconds',
            compute.tombstone_seconds,
            'a host forgets a finished claim before the scheduler does '
            f'([claims] tombstone_seconds is {claims.tombstone_seconds:g}): a build message that '
            'comes again could start a guest that was deleted',
            f'Set it to {2 * claims.tombstone_seconds:g}',
        )
    if not decisions.kept:
        yield note(
            '[decisions] kept',
            decisions.kept,
            'decisions go at the next purge: nothing can be explained afterwards',
            'Keep some thousands',
        )
    if 0 < decisions.replay_seconds < CHECKPOINT_SECONDS:
        yield warning(
            '[decisions] replay_seconds',
            decisions.replay_seconds,
            f'the log of the host table starts anew every {CHECKPOINT_SECONDS} s, and a replay '
            'needs such a start: most decisions cannot be replayed although the log is written',
            'Set it to 1800, or to 0 to write no log',
        )


def stopping(conf: Any) -> Iterator[Finding]:
    """The drain, and who cuts it."""
    # The workers' own bound and the supervisor's grace; the scheduler's threads drain after RPC.
    seconds = 2 * conf.rpc.drain_seconds + 30
    if seconds > UNIT_STOP_SECONDS:
        yield note(
            '[rpc] drain_seconds',
            conf.rpc.drain_seconds,
            f'stopping may take {seconds} s and more: replies first, then what was accepted. '
            'systemd kills after TimeoutStopSec, and requests end without an answer',
            f'Set TimeoutStopSec of the unit to {seconds} or more',
        )


def queues(conf: Any) -> Iterator[Finding]:
    """Bounds of queues."""
    rpc, scheduler = conf.rpc, conf.scheduler
    if rpc.reply_backlog < scheduler.queue_limit:
        yield warning(
            '[rpc] reply_backlog',
            rpc.reply_backlog,
            f'[scheduler] queue_limit is {scheduler.queue_limit}: when the broker is away for a '
            'moment more answers wait than are kept, and their callers have to ask again',
            f'Set it to {scheduler.queue_limit}',
        )
    if not rpc.reply_retry_seconds:
        yield warning(
            '[rpc] reply_retry_seconds',
            0,
            'a reply is tried once, and those that come while the broker is away are not kept: '
            'every caller that reconnects just then has to ask again',
            'Set it to 20',
        )
    if rpc.payload_bytes_max < 1 << 16:
        yield warning(
            '[rpc] payload_bytes_max',
            rpc.payload_bytes_max,
            'a full report has about 150 bytes for each guest: that of a host with '
            f'{rpc.payload_bytes_max // 150} guests is refused',
            'Set it to 1048576',
        )
