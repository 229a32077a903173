# SPDX-License-Identifier: Apache-2.0
"""What a process remembers of the facts that hosts state."""

import gc
import weakref

import msgspec

from gantt.core.host import HostFacts
from gantt.core.report import Metric
from gantt.db import rows


def said(load: float) -> str:
    facts = HostFacts(metrics={'load': Metric(value=load)})
    return msgspec.json.encode(facts).decode()


def test_hosts_that_say_the_same_share_one_object():
    memory = rows.Memory()
    first = memory.decode(said(0.5))
    assert memory.decode(said(0.5)) is first
    assert memory.decode(said(0.6)) is not first


def test_what_no_host_says_any_more_is_forgotten():
    memory = rows.Memory()
    kept = memory.decode(said(0.0))
    others = [weakref.ref(memory.decode(said(1.0 + n))) for n in range(1000)]
    gc.collect()
    assert [one for one in others if one() is not None] == []
    assert memory.decode(said(0.0)) is kept
