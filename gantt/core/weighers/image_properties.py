# SPDX-License-Identifier: Apache-2.0
"""ImagePropertiesWeigher: guests with images of one kind together, or apart."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gantt.core.messages import image_properties
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import Option
from gantt.core.table.columns import FloatArray, IntArray
from gantt.core.table.host_table import HostTable
from gantt.core.weighers import metrics
from gantt.core.weighers.base import Weigher


class ImagePropertiesWeigher(Weigher):
    """More means: more guests there have an image property in common with the request's image.

    Each guest counts once for each property of the same name and value, times its ratio.
    """

    columns = ('placed',)
    local = True
    multiplier_option = 'image_props_weight_multiplier'
    multiplier_default = 0.0
    multiplier_help = (
        'Multiplier for guests with the same image properties; positive packs them together, '
        'negative spreads them, 0 ignores them'
    )
    options = (
        Option(
            'image_props_weight_setting',
            str,
            '',
            'Properties and their ratios, "os_distro=2.0, hw_machine_type=0"; others do not '
            'count. Empty: every property counts 1',
        ),
    )
    image_props_weight_setting: str

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values)
        self._ratios = metrics.read_ratios(self, 'image_props_weight_setting')

    def raw(self, hosts: HostTable, spec: RequestSpec, rows: IntArray) -> FloatArray | None:
        properties = self._wanted(spec)
        if not properties:
            return None
        totals, row_of = np.zeros(len(hosts)), hosts.row_by_id
        for image, by_host in hosts.placed.by_image().items():
            worth = self._worth(image, properties)
            if worth:
                for provider_id, count in by_host.items():
                    totals[row_of[provider_id]] += worth * count
        return totals.take(rows)

    def value(self, hosts: HostTable, spec: RequestSpec, row: int) -> float:
        properties = self._wanted(spec)
        counts: dict[str, int] = {}
        for placed in hosts.placed.on_provider(hosts.hosts[row].id).values():
            if placed.image is not None:
                counts[placed.image] = counts.get(placed.image, 0) + 1
        # In the order of the index, so that sums of fractions are the same.
        order = [image for image in hosts.placed.by_image() if image in counts]
        return sum((self._worth(image, properties) * counts[image] for image in order), 0.0)

    def limits(self, hosts: HostTable, spec: RequestSpec) -> tuple[float | None, float | None]:
        return (None, None) if any(r < 0 for r in self._ratios.values()) else (0.0, None)

    def _wanted(self, spec: RequestSpec) -> dict[str, str]:
        properties = image_properties.stored_properties(spec.image)
        if not self._ratios:
            return properties
        return {name: value for name, value in properties.items() if self._ratios.get(name)}

    def _worth(self, image: str, wanted: Mapping[str, str]) -> float:
        """Return the weight of a guest with this image for a request of the wanted properties."""
        properties = image_properties.read(image)
        return sum(
            (self._ratios.get(n, 1.0) for n, value in wanted.items() if properties.get(n) == value),
            0.0,
        )
