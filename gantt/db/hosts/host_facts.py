# SPDX-License-Identifier: Apache-2.0
"""What an agent beside nova-compute tells: folded under the lock of its host."""

import msgspec

from gantt.core.claims import host_facts
from gantt.core.claims.host_facts import TellFacts
from gantt.db.claims.claims import Changes, load_claims
from gantt.db.hosts import providers
from gantt.db.hosts.hosts import Hosts
from gantt.scheduler.ports import FactsResult


def tell(changes: Changes, hosts: Hosts, told: TellFacts) -> FactsResult:
    """Fold one word; what is neither new nor of a host of Nova writes nothing."""
    tx = changes.tx
    ids = providers.ids_by_name(tx, [told.host])
    changes.lock(ids.values())
    pid = ids.get(told.host, -1)
    counters = changes.locked.counters.get(pid)
    if counters is None:
        return FactsResult(fate=host_facts.UNKNOWN)
    before = changes.locked.row(pid)
    fate = host_facts.judge(before, told)
    if fate != host_facts.APPLIED:
        known = before.facts.beside
        return FactsResult(fate=fate, sequence=0 if known is None else known.sequence)
    # Without a word about guests no claim changes.
    live = [] if told.guests is None else load_claims(tx, provider_ids=[pid], live=True)
    effect = host_facts.apply(before, live, told, tx.now)
    was = {claim.id: claim for claim in live}
    for claim in effect.claims:
        changes.change(was[claim.id], claim)
    counters.generation = effect.row.generation
    template = changes.locked.templates[pid]
    said = msgspec.structs.replace(template, facts=effect.row.facts, key=effect.row.key)
    hosts.say(changes.locked, said)
    changes.touched.add(pid)
    changes.write()
    return FactsResult(fate=fate, sequence=told.sequence, hosts=changes.result([]).hosts)
