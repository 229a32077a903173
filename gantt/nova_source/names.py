# SPDX-License-Identifier: Apache-2.0
"""Hosts of compute nodes, and nodes that are none.

A host is named as its service.  Where a driver runs many nodes, as Ironic's does, each of
them is a host with its own name.  Ambiguous nodes get no name: guests name their host and
node, and those of one would be taken for those of the other.
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
    """Names of hosts.

    :ivar of: (service host, node) -> name; also (service host, '') where it has one node
    :ivar silent: name -> why it is no host
    """

    of: dict[tuple[str, str], str]
    silent: dict[str, str]

    def at(self, host: str | None, node: str | None) -> str | None:
        """Return the host of a service host and node, None where it is none of these."""
        return self.of.get((host or '', node or '')) or self.of.get((host or '', ''))


def named(
    nodes: Sequence[ApiHypervisor],
    doubled: Set[str],
    declared_hosts: Mapping[str, str],
    roomy: Set[str],
) -> Named:
    """Return the names of all nodes.

    :param doubled: hosts of more than one service
    :param declared_hosts: host -> uuid of the node that was taken for it before
    :param roomy: uuids of nodes that Placement has an inventory of
    """
    nodes_of_service: dict[str, list[ApiHypervisor]] = defaultdict(list)
    for node in nodes:
        nodes_of_service[node.service.host].append(node)
    nodes_of_name: dict[str, list[ApiHypervisor]] = defaultdict(list)
    silent = dict.fromkeys(doubled, ALIKE)
    for host, service_nodes in nodes_of_service.items():
        for node in service_nodes:
            if node.type in MANY_NODES:
                nodes_of_name[node.node].append(node)
        single_nodes = [node for node in service_nodes if node.type not in MANY_NODES]
        if single_nodes and _are_alike(single_nodes):
            silent[host] = ALIKE
        elif single_nodes:
            chosen = _taken(single_nodes, declared_hosts.get(host), roomy)
            nodes_of_name[host].append(chosen)
            silent |= {
                f'{host} ({node.node})': _left_over(node, chosen)
                for node in single_nodes
                if node is not chosen
            }
    names: dict[tuple[str, str], str] = {}
    for name, candidates in nodes_of_name.items():
        if len(candidates) > 1 or candidates[0].service.host in doubled:
            silent[name] = ALIKE
            continue
        (node,) = candidates
        names[node.service.host, node.node] = name
        if node.type not in MANY_NODES:
            names[node.service.host, ''] = name
    return Named(names, silent)


def _are_alike(nodes: list[ApiHypervisor]) -> bool:
    return max(Counter(node.node for node in nodes).values()) > 1


def _taken(nodes: list[ApiHypervisor], before: str | None, roomy: Set[str]) -> ApiHypervisor:
    """Return the node of a service that runs one, among several that are listed."""
    candidates = [node for node in nodes if node.id in roomy] or nodes
    candidates = [node for node in candidates if node.state != 'down'] or candidates
    unchanged = [node for node in candidates if node.id.lower() == before]
    # Nova lists them in the order of creation: the newest is the last.
    return (unchanged or candidates)[-1]


def _left_over(node: ApiHypervisor, taken: ApiHypervisor) -> str:
    return (
        f'service {node.service.host} runs one node, and {taken.node} ({taken.id}) is taken for '
        f'it: node {node.id} is left over, let Nova forget it. Is it the other way round, restart '
        'this source when that is done'
    )
