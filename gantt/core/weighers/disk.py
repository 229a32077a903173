# SPDX-License-Identifier: Apache-2.0
"""DiskWeigher: hosts with more free disk first."""

from gantt.core.plugin import Option
from gantt.core.weighers.free import FreeWeigher


class DiskWeigher(FreeWeigher):
    """More means: more free DISK_GB."""

    resource_class = 'DISK_GB'
    multiplier_option = 'disk_weight_multiplier'
    options = (
        Option('disk_weight_multiplier', float, 1.0,
               'Multiplier for free disk; negative packs guests together'),
    )  # fmt: skip
    disk_weight_multiplier: float
