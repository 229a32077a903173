#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# openstack-heat 27.0.1 loads its resource types by module_from_spec and exec_module and sets each module
# on its package, but does not put it into sys.modules.  "from heat.engine.resources.openstack.nova
# import server" then returns the module of the types.  importlib.import_module of the same name, or
# "from heat.engine.resources.openstack.nova.server import Server", executes the file again, and no
# resource of a stack is an instance of that class: isinstance() is False for every server, without an
# error.  Classes that plugins import themselves, such as StackResource, are there once, so that code
# tried with those works.  Comparing names of classes does work.
# Ends with 0 where all of that is so still.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install 'openstack-heat==27.0.1'
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import logging
import sys

from heat.common import config, template_format  # noqa: F401  config registers the options
from oslo_config import cfg

logging.disable(logging.CRITICAL)
cfg.CONF([], project='heat', default_config_files=[])
from heat.common import context
from heat.engine import resources, stack, template

resources.initialise()
name = 'heat.engine.resources.openstack.nova.server'
print('in sys.modules after the types are loaded:', name in sys.modules)
assert name not in sys.modules, 'this has changed'
document = template_format.parse("""
heat_template_version: 2021-04-16
resources:
  web: {type: OS::Nova::Server, properties: {flavor: small}}
""")
made = stack.Stack(context.RequestContext(), 'plan', template.Template(document))['web']

import importlib

from heat.engine.resources import stack_resource
from heat.engine.resources.openstack.nova import server

print('instance of the class by "from package import":', isinstance(made, server.Server))
again = importlib.import_module(name)
print('instance of the class by import_module:', isinstance(made, again.Server))
assert isinstance(made, server.Server)
assert server is not again and server.__name__ == again.__name__, 'this has changed'
assert not isinstance(made, again.Server), 'this has changed'
nested = resources.global_env().get_class('OS::Heat::ResourceGroup')
print('a class that plugins build on is the same:', issubclass(nested, stack_resource.StackResource))
assert issubclass(nested, stack_resource.StackResource)
PYTHON
