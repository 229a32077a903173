# SPDX-License-Identifier: Apache-2.0
"""What both sides say of one host, and how a difference is a deliberate one."""

from collections.abc import Callable
from typing import Any

import msgspec


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One difference: what both say of one host, and of what.

    :ivar nova: p, r or x (raises); of a weigher its weight, None: it raises
    :ivar gantt: p, r or x; of a weigher its weight
    :ivar unfit: Nova lays the guest out so that one of its cells does not fit, by its own word
    """

    plugin: str
    nova: Any
    gantt: Any
    cloud: dict[str, Any]
    request: dict[str, Any]
    host: dict[str, Any]
    raised: str = ''
    unfit: bool = False


class Deviation(msgspec.Struct, frozen=True, kw_only=True):
    """A way in which Gantt means to differ.

    :ivar plugins: filters and weighers concerned
    :ivar when: whether a difference is this one
    """

    name: str
    plugins: frozenset[str]
    when: Callable[[Seen], bool]
    reason: str
