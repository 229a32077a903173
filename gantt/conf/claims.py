# SPDX-License-Identifier: Apache-2.0
"""[claims]: leases, the sweeper and tombstones."""

from oslo_config import cfg

GROUP = cfg.OptGroup('claims', title='Leases, the sweeper and tombstones')

OPTS = [
    cfg.FloatOpt(
        'lease_seconds',
        mutable=True,
        default=120.0,
        min=5.0,
        max=86_400.0,
        help='Seconds that a claim is kept before its host has confirmed it. It covers '
        'queueing up to the confirmation, not the download of an image. Safety '
        'does not rest on it: a guest starts only after its claim was '
        'confirmed.',
    ),
    cfg.FloatOpt(
        'lease_seconds_max',
        mutable=True,
        default=900.0,
        min=5.0,
        max=86_400.0,
        help='The longest lease that a request may ask for, in seconds; places of a '
        'plan have their own.',
    ),
    cfg.FloatOpt(
        'plan_lease_seconds',
        mutable=True,
        default=3600.0,
        min=5.0,
        max=604_800.0,
        help='Seconds that a place of a plan (lifecycle plan) is kept for the create '
        'that takes it over, where the request does not say how long.',
    ),
    cfg.FloatOpt(
        'plan_lease_seconds_max',
        mutable=True,
        default=86_400.0,
        min=5.0,
        max=604_800.0,
        help='The longest lease that a request may ask for places of a plan, in seconds.',
    ),
    cfg.FloatOpt(
        'sweep_seconds',
        mutable=True,
        default=10.0,
        min=0.1,
        max=3600.0,
        help='Seconds between two sweeps for claims whose lease ran out, ± 50 %.',
    ),
    cfg.IntOpt(
        'sweep_rows',
        mutable=True,
        default=200,
        min=1,
        max=10_000,
        help='Claims that one sweep ends, at most.',
    ),
    cfg.FloatOpt(
        'nova_move_seconds',
        mutable=True,
        default=14_400.0,
        min=60.0,
        max=31_536_000.0,
        help='Seconds after which a move between hosts of an unmodified Nova that '
        'neither ended nor was reverted is shown in the log and in the metric '
        'gantt_nova_moves_overdue. Both of its claims are kept until Nova says '
        'where the instance is. Longer than resized instances wait for their '
        'users to confirm.',
    ),
    cfg.FloatOpt(
        'tombstone_seconds',
        mutable=True,
        default=86_400.0,
        min=60.0,
        max=31_536_000.0,
        help='Seconds that an ended claim is remembered. At least ten times the '
        'longest that a message can be under way.',
    ),
    cfg.FloatOpt(
        'request_seconds',
        mutable=True,
        default=86_400.0,
        min=60.0,
        max=31_536_000.0,
        help='Seconds that a placed request is remembered, so that a repeat gets the '
        'same answer; longer while one of its claims is live.',
    ),
]
