# SPDX-License-Identifier: Apache-2.0
"""Options that SIGHUP has read again: those of ``oslo_config.cfg``, by the same names."""

import functools

from oslo_config import cfg

from gantt.conf import floats

BoolOpt = functools.partial(cfg.BoolOpt, mutable=True)
DictOpt = functools.partial(cfg.DictOpt, mutable=True)
FloatOpt = functools.partial(floats.FloatOpt, mutable=True)
IntOpt = functools.partial(cfg.IntOpt, mutable=True)
ListOpt = functools.partial(cfg.ListOpt, mutable=True)
Opt = functools.partial(cfg.Opt, mutable=True)
StrOpt = functools.partial(cfg.StrOpt, mutable=True)
