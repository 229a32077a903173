# SPDX-License-Identifier: Apache-2.0
"""The options of Gantt and of the libraries, out of a file."""

import pathlib

from oslo_config import cfg
from oslo_messaging import conffixture

from gantt import conf as options


def options_of(path: pathlib.Path, text: str) -> cfg.ConfigOpts:
    """Write a configuration file and read it; every option that is declared is registered."""
    path.write_text(text)
    conf = cfg.ConfigOpts()
    conffixture.ConfFixture(conf)
    options.register_opts(conf)
    conf(['--config-file', str(path)], project='gantt')
    return conf
