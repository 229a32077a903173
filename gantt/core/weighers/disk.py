# SPDX-License-Identifier: Apache-2.0
"""DiskWeigher: hosts with more free disk first."""

from gantt.core.plugin import Option
from gantt.core.weighers.base import FreeWeigher


class DiskWeigher(FreeWeigher):
    """More means: more free DISK_GB."""

    resource_class = 'DISK_GB'
    multiplier_option = 'disk_weight_multiplier'
    physical_option = 'disk_weight_physical'
    options = (
        Option(
            'disk_weight_multiplier',
            float,
            1.0,
            'Multiplier for free disk; negative packs guests together',
        ),
        Option(
            'disk_weight_physical',
            bool,
            False,
            'Count only what the hardware has as free disk, without the allocation ratio, as '
            'Nova does: over-committed hosts are all equal',
        ),
    )
    disk_weight_physical: bool
    disk_weight_multiplier: float
