# SPDX-License-Identifier: Apache-2.0
"""Two configurations of one process have nothing in common."""

from oslo_config import cfg

from gantt import conf as options


def _conf() -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    options.register_opts(conf)
    conf([], project='gantt', default_config_files=[], default_config_dirs=[])
    return conf


def test_what_is_set_in_one_configuration_holds_in_no_other() -> None:
    first, second = _conf(), _conf()
    groups = [name for name in first if isinstance(first[name], cfg.ConfigOpts.GroupAttr)]
    assert len(groups) > 10
    for group in groups:
        for name in first[group]:
            default = first[group][name]
            first.set_override(name, default, group)
            assert 'override' not in second._get_opt_info(name, group), f'[{group}] {name}'
