# SPDX-License-Identifier: Apache-2.0
"""RAMWeigher: hosts with more free memory first."""

from gantt.core.plugin import Option
from gantt.core.weighers.base import FreeWeigher


class RAMWeigher(FreeWeigher):
    """More means: more free MEMORY_MB."""

    resource_class = 'MEMORY_MB'
    multiplier_option = 'ram_weight_multiplier'
    physical_option = 'ram_weight_physical'
    options = (
        Option(
            'ram_weight_multiplier',
            float,
            1.0,
            'Multiplier for free memory; negative packs guests together',
        ),
        Option(
            'ram_weight_physical',
            bool,
            False,
            'Count only what the hardware has as free memory, without the allocation ratio, as '
            'Nova does: over-committed hosts are all equal',
        ),
    )
    ram_weight_physical: bool
    ram_weight_multiplier: float
