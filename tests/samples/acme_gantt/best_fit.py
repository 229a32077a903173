# SPDX-License-Identifier: Apache-2.0
"""BestFitWeigher: fill the gaps first."""

from gantt.plugin_api import Option, Weigher


class BestFitWeigher(Weigher):
    """More means: less memory would be left over."""

    columns = ('free',)
    multiplier_option = 'best_fit_weight_multiplier'
    options = (
        Option('best_fit_weight_multiplier', float, 1.0, 'Multiplier for filling gaps first'),
    )
    best_fit_weight_multiplier: float

    def raw(self, hosts, spec, rows):
        code = hosts.class_code('MEMORY_MB')
        return None if code is None else -hosts.free_of(code).take(rows)
