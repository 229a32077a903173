# SPDX-License-Identifier: Apache-2.0
"""Which host a compute node is, and which nodes are none.

A host is named as its service.  Where a driver runs many nodes, as Ironic's does, each of
them is a host with its own name.  What cannot be told apart gets no name: guests name their
host and node, and those of one would be taken for those of the other.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set

import msgspec

from gantt.nova_source.nova_api_types import ApiHypervisor

#: Drivers whose service runs many nodes.
MANY_NODES = frozenset({'ironic'})
ALIKE = (
    'Nova has several of this name, in several cells, and their guests cannot be told apart: '
    'give each nova-compute a [DEFAULT] host of its own'
)


class Named(msgspec.Struct, frozen=True):
    """What is a host.

    :ivar of: (service host, node) -> name; also (service host, '') where it has one node
    :ivar silent: name -> why it is none
    """

    of: dict[tuple[str, str], str]
    silent: dict[str, str]

    def at(self, host: str | None, node: str | None) -> str | None:
        """The host that is meant, None where it is none of these."""
        return self.of.get((host or '', node or '')) or self.of.get((host or '', ''))


def named(
    nodes: Sequence[ApiHypervisor],
    doubled: Set[str],
    declared_hosts: Mapping[str, str],
    roomy: Set[str],
) -> Named:
    """The names of all nodes.

    :param doubled: hosts of more than one service
    :param declared_hosts: host -> uuid of the node that was taken for it before
    :param roomy: uuids of nodes that Placement knows an inventory of
    """
    of: dict[str, list[ApiHypervisor]] = defaultdict(list)
    for node in nodes:
        of[node.service.host].append(node)
    found: dict[str, list[ApiHypervisor]] = defaultdict(list)
    silent = dict.fromkeys(doubled, ALIKE)
    for host, mine in of.items():
        for node in mine:
            if node.type in MANY_NODES:
                found[node.node].append(node)
        alone = [node for node in mine if node.type not in MANY_NODES]
        if alone and _are_alike(alone):
            silent[host] = ALIKE
        elif alone:
            taken = _taken(alone, declared_hosts.get(host), roomy)
            found[host].append(taken)
            silent |= {
                f'{host} ({node.node})': _left_over(node, taken)
                for node in alone
                if node is not taken
            }
    names: dict[tuple[str, str], str] = {}
    for name, some in found.items():
        if len(some) > 1 or some[0].service.host in doubled:
            silent[name] = ALIKE
            continue
        (node,) = some
        names[node.service.host, node.node] = name
        if node.type not in MANY_NODES:
            names[node.service.host, ''] = name
    return Named(names, silent)


def _are_alike(nodes: list[ApiHypervisor]) -> bool:
    return max(Counter(node.node for node in nodes).values()) > 1


def _taken(nodes: list[ApiHypervisor], before: str | None, roomy: Set[str]) -> ApiHypervisor:
    """Of the nodes of a service that runs one: which that is."""
    some = [node for node in nodes if node.id in roomy] or nodes
    some = [node for node in some if node.state != 'down'] or some
    same = [node for node in some if node.id.lower() == before]
    # Nova lists them as they were made: the newest is the last.
    return (same or some)[-1]


def _left_over(node: ApiHypervisor, taken: ApiHypervisor) -> str:
    return (
        f'service {node.service.host} runs one node, and {taken.node} ({taken.id}) is taken for '
        f'it: node {node.id} is left over, let Nova forget it. Is it the other way round, restart '
        'this source when that is done'
    )
