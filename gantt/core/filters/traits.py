# SPDX-License-Identifier: Apache-2.0
"""TraitsFilter: required and forbidden traits of a host."""

from collections.abc import Iterable

import numpy as np

from gantt.core.filters.base import (
    EVERY_PURPOSE,
    Conditions,
    ConditionsFilter,
    UnknownFacts,
    has_any,
    names_of,
    only,
)
from gantt.core.messages.request import RequestSpec
from gantt.core.plugin import EVERY_KIND
from gantt.core.table.columns import BoolArray, words_of
from gantt.core.table.host_table import HostTable


class TraitsFilter(ConditionsFilter):
    """Has every required trait, none of the forbidden, one of each ``any_traits`` list."""

    reason = 'lacks a required trait or has a forbidden one'
    public_reason = 'the traits asked for'
    columns = ('traits',)
    kinds = EVERY_KIND
    fields = ('required_traits', 'forbidden_traits', 'any_traits')
    purposes = EVERY_PURPOSE
    always = True

    def mask(self, hosts: HostTable, spec: RequestSpec) -> BoolArray | None:
        codes = [hosts.trait_codes.get(name) for name in spec.required_traits]
        if None in codes:
            return only(hosts, [])  # no host has ever had it
        required = words_of(code for code in codes if code is not None)
        forbidden = _known_traits(hosts, spec.forbidden_traits)
        mask: BoolArray | None = None
        for word in required.keys() | forbidden.keys():
            want, never = required.get(word, 0), forbidden.get(word, 0)
            if want & never:
                return only(hosts, [])
            # Of the bits that matter, exactly the required ones are there.
            right = (hosts.traits[word] & np.uint64(want | never)) == np.uint64(want)
            mask = right if mask is None else np.logical_and(mask, right, out=mask)
        for names in spec.any_traits:
            has_one = has_any(hosts.traits, _known_traits(hosts, names))
            mask = has_one if mask is None else np.logical_and(mask, has_one, out=mask)
        return mask

    def conditions(self, hosts: HostTable, spec: RequestSpec) -> Conditions:
        for text, names, expected in (
            *((f'no trait {name}', [name], True) for name in spec.required_traits),
            *((f'forbidden trait {name}', [name], False) for name in spec.forbidden_traits),
            *((f'none of the traits {names_of(names)}', names, True) for names in spec.any_traits),
        ):
            yield (text,), has_any(hosts.traits, _known_traits(hosts, names)) == expected

    def unknown(self, hosts: HostTable, spec: RequestSpec) -> Iterable[UnknownFacts]:
        # A trait removed from the last host that had it still has a code in the table.
        words = np.bitwise_or.reduce(hosts.traits, axis=1).tolist()
        codes = enumerate(hosts.trait_codes.names)
        had = {name: None for code, name in codes if words[code >> 6] >> (code & 63) & 1}
        for names in (*([name] for name in spec.required_traits), *spec.any_traits):
            if had.keys().isdisjoint(names):
                yield from (UnknownFacts('trait', name, list(had)) for name in names)


def _known_traits(hosts: HostTable, names: list[str]) -> dict[int, int]:
    codes = map(hosts.trait_codes.get, names)
    return words_of(code for code in codes if code is not None)
