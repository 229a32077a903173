# SPDX-License-Identifier: Apache-2.0
"""Loading plugins: by entry point, with their options, and the errors when it fails."""

import sys
import textwrap

import pytest
from oslo_config import cfg

from gantt import exceptions, plugin_loader
from gantt.conf import FloatOpt
from gantt.conf import filters as section
from gantt.conf.pipeline import pipeline_from_conf
from gantt.core.filters.base import Filter
from gantt.core.placement.pipeline import Pipeline
from gantt.core.plugin import Option
from gantt.core.weighers.base import Weigher
from tests.core.builders import a_host, a_request, a_table, decide, hosts_of


def a_conf(tmp_path, text=''):
    """Return a configuration with [filters] and [weighers] registered."""
    path = tmp_path / 'gantt.conf'
    path.write_text(textwrap.dedent(text))
    conf = cfg.ConfigOpts()
    section.register_opts(conf)
    conf(['--config-file', str(path)], project='gantt')
    return conf


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install entry points of a package made for the test; names and groups as given."""

    def install(source: str, **points: str) -> None:
        (tmp_path / 'site').mkdir()
        (tmp_path / 'site' / 'acme_parts.py').write_text(textwrap.dedent(source))
        info = tmp_path / 'site' / 'acme_parts-1.0.dist-info'
        info.mkdir()
        (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: acme-parts\nVersion: 1.0\n')
        lines = [f'{name} = {target}' for name, target in points.items()]
        (info / 'entry_points.txt').write_text('[gantt.filters]\n' + '\n'.join(lines) + '\n')

    monkeypatch.syspath_prepend(str(tmp_path / 'site'))
    plugin_loader.find.cache_clear()
    plugin_loader.rescan()
    yield install
    plugin_loader.find.cache_clear()
    plugin_loader.rescan()
    sys.modules.pop('acme_parts', None)


def test_everything_in_the_default_set_loads_under_its_own_name():
    for group, names in (
        (plugin_loader.FILTERS, plugin_loader.DEFAULT_FILTERS),
        (plugin_loader.WEIGHERS, plugin_loader.DEFAULT_WEIGHERS),
    ):
        assert set(names) == {n for n in plugin_loader.installed(group) if n in names}
        assert [p.name for p in plugin_loader.load(names, group=group)] == list(names)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(exceptions.PluginError, match="did you mean 'ComputeFilter'"):
        plugin_loader.load(['ComputeFiler'])
    with pytest.raises(exceptions.PluginError, match='installed: .*RAMWeigher'):
        plugin_loader.load(['Zzz'], group=plugin_loader.WEIGHERS)


def test_a_filter_is_not_a_weigher():
    with pytest.raises(
        exceptions.PluginError, match="'RAMWeigher' *: is not installed in gantt.filters"
    ):
        plugin_loader.load(['RAMWeigher'])


def test_a_name_listed_twice_is_refused():
    with pytest.raises(exceptions.PluginError, match='listed twice'):
        plugin_loader.load(['ComputeFilter', 'ComputeFilter'])


def test_a_plugin_of_another_package_loads(installed):
    installed(
        """
        from gantt.core.filters.base import Filter

        class EvenFilter(Filter):
            reason = 'odd'
            columns = ('ids',)

            def mask(self, hosts, spec):
                return hosts.ids % 2 == 0
        """,
        EvenFilter='acme_parts:EvenFilter',
    )
    pipeline = plugin_loader.load_pipeline(['EvenFilter'])
    decision = decide(a_table(a_host(1), a_host(2), a_host(3)), a_request(), pipeline)
    assert hosts_of(decision) == ['cmp-2']


@pytest.mark.parametrize(
    ('source', 'target', 'said'),
    [
        ('import no_such_module', 'acme_parts:X', 'does not load: .*no_such_module'),
        ('1 / 0', 'acme_parts:X', 'does not load: ZeroDivisionError'),
        (
            'import gantt.core.columns',
            'acme_parts:X',
            r"No module named 'gantt\.core\.columns'; expected imports from gantt\.plugin_api",
        ),
        (
            'from gantt.core.filters.base import Unknown',
            'acme_parts:X',
            r"cannot import name 'Unknown'.*; expected imports from gantt\.plugin_api",
        ),
        (
            'from gantt import filters',
            'acme_parts:X',
            r"cannot import name 'filters'.*; expected imports from gantt\.plugin_api",
        ),
        (
            'from gantt.plugin_api import Gone',
            'acme_parts:X',
            r"cannot import name 'Gone'.*its __all__ lists the names",
        ),
        (
            'import gantt.plugin_api.old',
            'acme_parts:X',
            r"No module named 'gantt\.plugin_api\.old'.*its __all__ lists the names",
        ),
        ('', 'acme_parts:X', 'does not load: .*X'),
        ('X = 5', 'acme_parts:X', 'expected a subclass of gantt.core.filters.base.Filter'),
        ('class X: pass', 'acme_parts:X', 'expected a subclass of gantt.core.filters.base.Filter'),
        (
            """
            from gantt.core.filters.base import Filter
            class X(Filter):
                columns = ('zones',)
            """,
            'acme_parts:X',
            "reads column 'zones', which the host table does not have; did you mean 'zone'?",
        ),
    ],
)
def test_a_plugin_that_breaks_its_contract_is_named_with_the_reason(
    installed, source, target, said
):
    installed(source, X=target)
    with pytest.raises(exceptions.PluginError, match=said) as caught:
        plugin_loader.load(['X'])
    assert caught.value.message.startswith("plugin 'X': ")


class Sized(Filter):
    options = (
        Option('size', int, 3, 'a size', min=1, max=9),
        Option('share', float, 0.5, 'a share'),
        Option('strict', bool, False, 'strict'),
        Option('label', str, '', 'a label'),
    )
    size: int
    share: float


def test_options_have_defaults_and_bounds():
    assert Sized().settings() == {'size': 3, 'share': 0.5, 'strict': False, 'label': ''}
    assert Sized({'share': 1}).share == 1
    for wrong in ({'size': 0}, {'size': 10}, {'size': 'x'}, {'label': 5}, {'strict': 'yes'}):
        (name,) = wrong
        with pytest.raises(exceptions.PluginError, match=f"'Sized': option {name}: expected"):
            Sized(wrong)
    with pytest.raises(exceptions.PluginError, match="has no option 'sise'; it has label, share"):
        Sized({'sise': 1})


def test_options_become_options_of_the_configuration():
    opts = {opt.name: opt for opt in section.opts_of(Sized)}
    assert {name: type(opt) for name, opt in opts.items()} == {
        'size': cfg.IntOpt,
        'share': FloatOpt,
        'strict': cfg.BoolOpt,
        'label': cfg.StrOpt,
    }
    assert (opts['size'].type.min, opts['size'].type.max, opts['size'].default) == (1, 9, 3)


class Odd(Weigher):
    options = (Option('odd', dict, {}, 'of a type that no file has'),)


def test_an_option_of_an_odd_type_is_refused():
    with pytest.raises(exceptions.PluginError, match='option odd: expected type bool, int'):
        section.opts_of(Odd)


def test_the_pipeline_is_what_the_configuration_asks_for(tmp_path):
    conf = a_conf(
        tmp_path,
        """
        [filters]
        enable_isolated_aggregate_filtering = true
        enabled_filters = ComputeFilter, ResourcesFilter
        enabled_weighers = RAMWeigher
        host_subset_size = 3
        shuffle_best_same_weighed_hosts = true
        default_availability_zone = internal
        service_down_time = 7
        [weighers]
        ram_weight_multiplier = -2.5
        ram_weight_normalization = fraction
        normalization = rank
        """,
    )
    assert pipeline_from_conf(conf).described() == {
        'filters': {'ComputeFilter': {'service_down_time': 7}, 'ResourcesFilter': {}},
        'weighers': {
            'RAMWeigher': {
                'ram_weight_multiplier': -2.5,
                'ram_weight_physical': False,
                'ram_weight_normalization': 'fraction',
            }
        },
        'subset_size': 3,
        'shuffle_best': True,
        'default_zone': 'internal',
        'location_parts': ('site', 'room', 'rack'),
        'skip_failing': False,
        'detailed': False,
        'normalization': 'rank',
        'prefilters': {
            'limit_tenants_to_placement_aggregate': False,
            'placement_aggregate_required_for_tenants': False,
            'query_placement_for_image_type_support': False,
            'enable_isolated_aggregate_filtering': True,
            'image_metadata_prefilter': False,
        },
    }


@pytest.mark.finding('N16', 'one more filter needs no list of the default ones')
def test_extra_plugins_are_beside_the_default_ones(tmp_path):
    more = '[filters]\nextra_filters = IoOpsFilter\nextra_weighers = LoadWeigher\n'
    described = pipeline_from_conf(a_conf(tmp_path, more)).described()
    assert list(described['filters']) == [*plugin_loader.DEFAULT_FILTERS, 'IoOpsFilter']
    assert list(described['weighers']) == [*plugin_loader.DEFAULT_WEIGHERS, 'LoadWeigher']


def test_an_extra_filter_that_is_there_already_is_told(tmp_path):
    conf = a_conf(tmp_path, '[filters]\nextra_filters = ComputeFilter\n')
    with pytest.raises(exceptions.PluginError, match="'ComputeFilter': is listed twice"):
        pipeline_from_conf(conf)


def test_the_default_configuration_is_the_default_pipeline(tmp_path):
    from_conf = pipeline_from_conf(a_conf(tmp_path)).described()
    configured = {'default_zone': 'nova', 'location_parts': ('site', 'room', 'rack')}
    assert from_conf == {**plugin_loader.load_pipeline().described(), **configured}


def test_a_pipeline_changes_to_what_is_installed_or_in_force_and_imports_nothing():
    now = Pipeline([Sized({'size': 5})], [])
    for name in ('Sized', f'{__name__}:Sized'):
        changed = plugin_loader.changed_pipeline(
            now, ['ComputeFilter', name], options={'share': 0.25}
        )
        assert [rule.name for rule in changed.filters] == ['ComputeFilter', 'Sized']
        assert changed.filters[1].settings() == {**now.filters[0].settings(), 'share': 0.25}
    assert plugin_loader.changed_pipeline(now, shuffle_best=True).filters[0].size == 5
    for wrong in ('this:s', f'{__name__}:Odd', 'ComputFilter'):
        with pytest.raises(exceptions.InvalidMessage) as caught:
            plugin_loader.changed_pipeline(now, ['ComputeFilter', wrong])
        assert caught.value.kwargs['field'] == 'filters[1]'
    assert 'this' not in sys.modules


def test_a_value_out_of_bounds_is_refused(tmp_path):
    conf = a_conf(tmp_path, '[filters]\nservice_down_time = 0\n')
    with pytest.raises(cfg.ConfigFileValueError, match='service_down_time'):
        pipeline_from_conf(conf)


def test_the_sample_lists_every_option_of_every_plugin():
    listed = {group: {opt.name for opt in opts} for group, opts in section.list_opts()}
    assert {'enabled_filters', 'enabled_weighers', 'service_down_time'} <= listed['filters']
    assert {'ram_weight_multiplier', 'soft_affinity_weight_multiplier'} <= listed['weighers']
