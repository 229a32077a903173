# SPDX-License-Identifier: Apache-2.0
"""Groups of options, each configuration's own."""

from collections.abc import Sequence
from typing import Any

from oslo_config import cfg


def register(conf: Any, group: cfg.OptGroup, opts: Sequence[cfg.Opt]) -> None:
    """Register the options of a group.

    A configuration copies a group with the very same options in it: what is set in one
    configuration of a process would hold in every other, so each gets a group of its own.
    """
    conf.register_group(cfg.OptGroup(group.name, title=group.title, help=group.help))
    conf.register_opts(opts, group=group.name)
