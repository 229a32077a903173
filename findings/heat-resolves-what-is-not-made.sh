#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# openstack-heat 27.0.1 can expand a template before anything is made, for a preview, and gives values
# to what is not known then.  A get_attr of a resource that is not made is no error: it is None, and a
# text property that has it is '', so that "the zone of that other server" reads as "any zone".  A
# get_resource is the name of the resource, so that in a nested stack the group "sg" of its own and the
# group "sg" that its parent passes as a parameter are the same text.  Who plans by a preview plans
# something else than what will be made, and sees no error.  With data of their own for resources that
# are not made, stk_defn.update_resource_data, references differ and an attribute can be told.
# Ends with 0 where all of that is so still.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install 'openstack-heat==27.0.1'
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import logging

from heat.common import config, template_format  # noqa: F401  config registers the options
from oslo_config import cfg

logging.disable(logging.CRITICAL)
cfg.CONF([], project='heat', default_config_files=[])
from heat.common import context
from heat.engine import node_data, resources, stack, stk_defn, template

resources.initialise()
ROOT = """
heat_template_version: 2021-04-16
resources:
  sg: {type: OS::Nova::ServerGroup, properties: {policies: [affinity]}}
  other: {type: OS::Nova::Server, properties: {flavor: small}}
  near:
    type: OS::Nova::Server
    properties: {flavor: small, availability_zone: {get_attr: [other, OS-EXT-AZ]}}
  nested: {type: child.yaml, properties: {group: {get_resource: sg}}}
"""
CHILD = """
heat_template_version: 2021-04-16
parameters: {group: {type: string}}
resources:
  sg: {type: OS::Nova::ServerGroup, properties: {policies: [anti-affinity]}}
  outer:
    type: OS::Nova::Server
    properties: {flavor: small, scheduler_hints: {group: {get_param: group}}}
  inner:
    type: OS::Nova::Server
    properties: {flavor: small, scheduler_hints: {group: {get_resource: sg}}}
"""


def expanded(with_data):
    """Return the zone of near, and the groups that outer and inner name."""
    parsed = template.Template(template_format.parse(ROOT), files={'child.yaml': CHILD})
    root = stack.Stack(context.RequestContext(), 'plan', parsed, strict_validate=False)

    def give_data(within, prefix):
        for name in within.t.t['resources'] if with_data else ():
            data = node_data.NodeData(
                1, name, 'u', prefix + name, {'OS-EXT-AZ': 'not known'}, 'CREATE', 'COMPLETE'
            )
            stk_defn.update_resource_data(within.defn, name, data)

    give_data(root, 'root/')
    nested = root['nested'].get_nested_parameters_stack()
    give_data(nested, 'nested/')
    hints = [nested[name].properties['scheduler_hints'] for name in ('outer', 'inner')]
    return root['near'].properties['availability_zone'], *(hint['group'] for hint in hints)


zone, outer, inner = expanded(with_data=False)
print(f'as it is: zone {zone!r}, group of the parent {outer!r}, own group {inner!r}')
assert zone == '' and outer == inner == 'sg', 'this has changed'
zone, outer, inner = expanded(with_data=True)
print(f'with data: zone {zone!r}, group of the parent {outer!r}, own group {inner!r}')
assert (zone, outer, inner) == ('not known', 'root/sg', 'nested/sg')
PYTHON
