# SPDX-License-Identifier: Apache-2.0
"""[claims]: leases, the sweeper and tombstones."""

from oslo_config import cfg

from gantt.conf import mutable

GROUP = cfg.OptGroup('claims', title='Leases, the sweeper and tombstones')

OPTS = [
    mutable.FloatOpt(
        'lease_seconds',
        default=120.0,
        min=5.0,
        max=86_400.0,
        help='Seconds that a claim is kept before its host has confirmed it. It covers '
        'queueing up to the confirmation, not the download of an image. Safety '
        'does not rest on it: a guest starts only after its claim was '
        'confirmed.',
    ),
    mutable.FloatOpt(
        'lease_seconds_max',
        default=900.0,
        min=5.0,
        max=86_400.0,
        help='The longest lease that a request may ask for, in seconds; places of a '
        'plan have their own.',
    ),
    mutable.FloatOpt(
        'plan_lease_seconds',
        default=3600.0,
        min=5.0,
        max=604_800.0,
        help='Seconds that a place of a plan (lifecycle plan) is kept for the create '
        'that takes it over, where the request does not say how long.',
    ),
    mutable.FloatOpt(
        'plan_lease_seconds_max',
        default=86_400.0,
        min=5.0,
        max=604_800.0,
        help='The longest lease that a request may ask for places of a plan, and the longest that '
        'a place is held without a create, however often its lease is extended; in seconds.',
    ),
    mutable.FloatOpt(
        'sweep_seconds',
        default=10.0,
        min=0.1,
        max=3600.0,
        help='Seconds between two sweeps for claims whose lease ran out, ± 50 %.',
    ),
    mutable.IntOpt(
        'sweep_rows',
        default=200,
        min=1,
        max=10_000,
        help='Claims that one sweep ends, at most.',
    ),
    mutable.FloatOpt(
        'nova_move_seconds',
        default=14_400.0,
        min=60.0,
        max=31_536_000.0,
        help='Seconds after which a move between hosts of an unmodified Nova that '
        'neither ended nor was reverted is shown in the log and in the metric '
        'gantt_nova_moves_overdue. Both of its claims are kept until Nova says '
        'where the instance is. Longer than resized instances wait for their '
        'users to confirm.',
    ),
    mutable.FloatOpt(
        'tombstone_seconds',
        default=86_400.0,
        min=60.0,
        max=31_536_000.0,
        help='Seconds that an ended claim is remembered. At least ten times the '
        'longest that a message can be under way.',
    ),
    mutable.FloatOpt(
        'request_seconds',
        default=86_400.0,
        min=60.0,
        max=31_536_000.0,
        help='Seconds that a placed request is remembered, so that a repeat gets the '
        'same answer; longer while one of its claims is live.',
    ),
]
