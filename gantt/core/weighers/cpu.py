# SPDX-License-Identifier: Apache-2.0
"""CPUWeigher: hosts with more free virtual CPUs first."""

from gantt.core.plugin import Option
from gantt.core.weighers.base import FreeWeigher


class CPUWeigher(FreeWeigher):
    """More means: more free VCPU, over-commit included."""

    resource_class = 'VCPU'
    multiplier_option = 'cpu_weight_multiplier'
    options = (
        Option(
            'cpu_weight_multiplier',
            float,
            1.0,
            'Multiplier for free virtual CPUs; negative packs guests together',
        ),
    )
    cpu_weight_multiplier: float
