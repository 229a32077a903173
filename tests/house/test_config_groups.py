# SPDX-License-Identifier: Apache-2.0
"""Two configurations of one process have nothing in common."""

from oslo_config import cfg

from gantt import conf as options


def _conf() -> cfg.ConfigOpts:
    made = cfg.ConfigOpts()
    options.register_opts(made)
    made([], project='gantt', default_config_files=[], default_config_dirs=[])
    return made


def test_what_is_set_in_one_configuration_holds_in_no_other() -> None:
    one, other = _conf(), _conf()
    groups = [name for name in one if isinstance(one[name], cfg.ConfigOpts.GroupAttr)]
    assert len(groups) > 10
    for group in groups:
        for name in one[group]:
            default = one[group][name]
            one.set_override(name, default, group)
            assert 'override' not in other._get_opt_info(name, group), f'[{group}] {name}'
