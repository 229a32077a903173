# SPDX-License-Identifier: Apache-2.0
"""RAMWeigher: hosts with more free memory first."""

from gantt.core.plugin import Option
from gantt.core.weighers.free import FreeWeigher


class RAMWeigher(FreeWeigher):
    """More means: more free MEMORY_MB."""

    resource_class = 'MEMORY_MB'
    multiplier_option = 'ram_weight_multiplier'
    options = (
        Option('ram_weight_multiplier', float, 1.0,
               'Multiplier for free memory; negative packs guests together'),
    )  # fmt: skip
    ram_weight_multiplier: float
