# SPDX-License-Identifier: Apache-2.0
"""Settings of the service from its configuration, as one plain value.

The composition root creates it from the options (``gantt/conf``); the flows
know nothing of configuration files.  All parts of a scheduler share one value,
which ``follow`` changes while they run.
"""

import msgspec

from gantt.core.resources.host_keys import SigningModes

#: Settings that a running scheduler keeps: its identity, and sizes of what it has built.
FIXED_SETTINGS = (
    'worker',
    'default_zone',
    'report_queue_limit',
    'decision_queue_limit',
    'replay_seconds',
    'checkpoint_seconds',
)


class SchedulerSettings(msgspec.Struct, kw_only=True):
    """Bounds and periods; seconds unless the name states another unit."""

    worker: str = 'gantt-scheduler'
    # admission
    queue_limit: int = 2000
    retry_after_ms: int = 500
    project_weights: dict[str, float] = {}
    # batches
    claims_per_commit: int = 150
    batch_wait_ms: float = 2.0
    order_by_cost: bool = True
    attempts_per_request: int = 20
    log_answers: str = 'batch'
    # claims
    lease_seconds: float = 120.0
    lease_seconds_max: float = 900.0
    plan_lease_seconds: float = 3600.0
    plan_lease_seconds_max: float = 86_400.0
    sweep_seconds: float = 10.0
    sweep_rows: int = 200
    nova_move_seconds: float = 14_400.0
    nova_clock_skew_seconds: float = 30.0
    # hosts
    report_seconds: int = 60
    stale_after_seconds: float = 180.0
    feed_seconds: float = 0.25
    reload_seconds: float = 300.0
    unknown_after_seconds: float = 120.0
    default_zone: str = 'nova'
    # reports
    report_queue_limit: int = 20_000
    reports_per_commit: int = 64
    report_wait_ms: float = 200.0
    refuse_undeclared_metrics: bool = False
    # hosts whose messages must be signed
    signatures: SigningModes = SigningModes()
    # decisions
    decisions_stored: int = 100_000
    decision_bytes: int = 1 << 30
    decision_queue_limit: int = 2000
    tombstone_seconds: float = 86_400.0
    request_seconds: float = 86_400.0
    purge_seconds: float = 30.0
    replay_seconds: float = 1800.0
    checkpoint_seconds: float = 300.0
    # quotas: name -> limit, of projects that have none of their own
    quotas: dict[str, int] = {}

    def follow(self, newer: 'SchedulerSettings') -> list[str]:
        """Take over settings that may change while running; return the names of those changed."""
        changed = [
            name
            for name in self.__struct_fields__
            if name not in FIXED_SETTINGS and getattr(newer, name) != getattr(self, name)
        ]
        for name in changed:
            setattr(self, name, getattr(newer, name))
        return changed
