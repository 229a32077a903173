# SPDX-License-Identifier: Apache-2.0
"""Option types for options that SIGHUP reads again: ``oslo_config.cfg``'s, by the same names."""

import functools

from oslo_config import cfg

from gantt import conf

BoolOpt = functools.partial(cfg.BoolOpt, mutable=True)
DictOpt = functools.partial(cfg.DictOpt, mutable=True)
FloatOpt = functools.partial(conf.FloatOpt, mutable=True)
IntOpt = functools.partial(cfg.IntOpt, mutable=True)
ListOpt = functools.partial(cfg.ListOpt, mutable=True)
Opt = functools.partial(cfg.Opt, mutable=True)
StrOpt = functools.partial(cfg.StrOpt, mutable=True)
