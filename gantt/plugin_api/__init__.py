# SPDX-License-Identifier: Apache-2.0
"""The stable interface for authors of filters and weighers: one module to import from.

    from gantt.plugin_api import Filter, Option, format_amount

Report sources have :mod:`gantt.plugin_api.report_sources`.  ``COLUMNS`` names the columns
of the host table; what each of them holds is on the page "Write a filter".  All other
modules of Gantt may move or change with any release.
"""

from gantt.core.filters.aggregates import aggregates_with, in_aggregates
from gantt.core.filters.base import (
    EVERY_PURPOSE,
    PLACING,
    Filter,
    PairwiseFilter,
    PerHostFilter,
    RelaxableFilter,
    UnknownFacts,
    all_but,
    grouped_by_problem,
    has_any,
    names_of,
    only,
)
from gantt.core.filters.host_passes import BaseHostFilter
from gantt.core.messages.report import Hypervisor
from gantt.core.messages.request import GroupRef, Policy, Purpose, RequestSpec
from gantt.core.messages.resource_classes import Inventory, format_amount
from gantt.core.plugin import KNOWN_COLUMNS as COLUMNS
from gantt.core.plugin import Option, Plugin
from gantt.core.resources.host import Aggregate, HostFacts
from gantt.core.rules.facts import Places, places_of
from gantt.core.rules.tree import LIST_MAX, LITERAL_MAX
from gantt.core.table.columns import BoolArray, FloatArray, IntArray
from gantt.core.table.host_state import HostState
from gantt.core.table.host_table import HostTable
from gantt.core.weighers.base import Weigher
from gantt.exceptions import InvalidMessage, PluginError

__all__ = [
    'COLUMNS',
    'EVERY_PURPOSE',
    'LIST_MAX',
    'LITERAL_MAX',
    'PLACING',
    'Aggregate',
    'BaseHostFilter',
    'BoolArray',
    'RelaxableFilter',
    'Filter',
    'FloatArray',
    'GroupRef',
    'HostFacts',
    'HostState',
    'HostTable',
    'Hypervisor',
    'IntArray',
    'InvalidMessage',
    'Inventory',
    'Option',
    'PairwiseFilter',
    'PerHostFilter',
    'Places',
    'Plugin',
    'PluginError',
    'Policy',
    'Purpose',
    'RequestSpec',
    'UnknownFacts',
    'Weigher',
    'aggregates_with',
    'all_but',
    'format_amount',
    'grouped_by_problem',
    'has_any',
    'in_aggregates',
    'names_of',
    'only',
    'places_of',
]
