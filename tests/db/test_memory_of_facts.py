# SPDX-License-Identifier: Apache-2.0
"""What a process remembers of the facts that hosts state."""

import msgspec

from gantt.core.messages.report import ReportedMetric
from gantt.core.resources.host import HostFacts
from gantt.db.hosts import rows


def said(load: float) -> str:
    facts = HostFacts(metrics={'load': ReportedMetric(value=load)})
    return msgspec.json.encode(facts).decode()


def test_hosts_that_say_the_same_share_one_object():
    memory = rows.Memory()
    first = memory.decode(said(0.5))
    assert memory.decode(said(0.5)) is first
    assert memory.decode(said(0.6)) is not first


def test_what_few_hosts_say_is_forgotten_soon():
    """All that is told apart by a metric is said once, and never again."""
    memory = rows.Memory()
    first = memory.decode(said(0.0))
    for n in range(rows.FACTS_MIN - 1):
        memory.decode(said(1.0 + n))
    assert memory.decode(said(0.0)) is first
    for n in range(rows.FACTS_MIN):
        memory.decode(said(2.0 + rows.FACTS_MIN + n))
    assert memory.decode(said(0.0)) is not first
