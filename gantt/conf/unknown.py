# SPDX-License-Identifier: Apache-2.0
"""Options in configuration files that nobody reads: misspelled, or in the wrong group.

The library that reads the files ignores them.  Looked at are our groups and those
of the libraries, which list their options for the generator of the sample, and groups
whose name is nearly that of one of these.  Others may have groups of their own.
"""

import contextlib
import itertools
import pathlib
import re
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any

import msgspec
from oslo_config import cfg

from gantt import exceptions, plugin_loader
from gantt.conf import filters, list_opts
from gantt.core.messages.near import nearest_names

_ENTRY_POINTS = 'oslo.config.opts'
#: Group -> who else lists options of it, as etc/gantt/config-generator.conf names them.
_LIBRARIES = {
    'DEFAULT': ('oslo.config', 'oslo.log', 'oslo.messaging'),
    'database': ('oslo.db',),
    'keystone_authtoken': ('keystonemiddleware.auth_token',),
    'nova': ('gantt.keystone',),
    'oslo_messaging_kafka': ('oslo.messaging',),
    'oslo_messaging_notifications': ('oslo.messaging',),
    'oslo_messaging_rabbit': ('oslo.messaging',),
    'oslo_policy': ('oslo.policy',),
    'oslo_reports': ('oslo.reports',),
    'placement': ('gantt.keystone',),
}
#: Groups with the options of what their ``auth_type`` names.
_AUTH_GROUPS = ('keystone_authtoken', 'nova', 'placement')
_AUTH_TYPE_NAMES = ('auth_type', 'auth_plugin')
#: Options that go without effect unless the plugin that reads them runs.
PLUGIN_OF_RULES = {
    ('filters', 'operator_rules'): 'RulesFilter',
    ('weighers', 'operator_preferences'): 'RulesWeigher',
}


#: Group -> option -> values, as a file has them.
Sections = dict[str, dict[str, list[str]]]

#: A dollar sign as such, or an option that oslo.config puts in its place.
_REFERENCE = re.compile(r'\$(?:\$|\{?([_a-z][._a-z0-9]*))', re.IGNORECASE)


class UnreadOption(msgspec.Struct, frozen=True):
    """An option that has no effect.

    :ivar option: ``[group] name``, or a group
    :ivar value: value in the configuration file
    :ivar why: why it has no effect, and which option may have been meant
    """

    option: str
    value: str
    why: str

    def __str__(self) -> str:
        return f'{self.option} has no effect: {self.why}'


def unread_options(conf: Any) -> list[UnreadOption]:
    """Return the options in the files of a configuration that are not read."""
    return list(
        dict.fromkeys(itertools.chain(_options_in_files(conf), _rules_without_plugin(conf)))
    )


def unknown_groups(conf: Any) -> list[str]:
    """Return the groups in the files that no program of Gantt has: their options go unchecked."""
    files = parse_files(conf)
    registered = _known_options(conf, files)
    return sorted({section for sections in files for section in sections} - set(registered))


def declared_options() -> list[tuple[str, Any]]:
    """Return group and option of all that Gantt and its installed libraries declare."""
    by_name: dict[tuple[str, str], Any] = {}
    lists = [list_opts()]
    for library in sorted({name for names in _LIBRARIES.values() for name in names}):
        with contextlib.suppress(ImportError, KeyError):
            lists.append(metadata.entry_points(group=_ENTRY_POINTS)[library].load()())
    for group, options in itertools.chain(*lists):
        name = 'DEFAULT' if group is None else str(getattr(group, 'name', group))
        for option in options:
            by_name.setdefault((name, option.dest), option)
    return [(group, option) for (group, _), option in sorted(by_name.items())]


def check_references(conf: Any) -> None:
    """Check that each option that a value refers to, by ``$`` and its name, is there.

    A password with a dollar sign looks like a reference.  oslo.config says, when the value is used,
    that there is no such option as the part behind it, and not in which value.

    :raises Misconfigured: names the option whose value it is
    """
    files = parse_files(conf)
    values = [
        (section, name, text)
        for sections in files
        for section, options in sections.items()
        for name, texts in options.items()
        for text in texts
        if '$' in text
    ]
    if not values:
        return
    registered = _known_options(conf, files)
    for section, name, text in values:
        for reference in filter(None, _REFERENCE.findall(text)):
            group, dot, option = reference.rpartition('.')
            groups = (group,) if dot else (section, 'DEFAULT')
            is_known = any(option in registered.get(group, ()) for group in groups)
            if section in registered and not is_known and reference not in conf:
                raise exceptions.Misconfigured(
                    option=f'[{section}] {name}',
                    problem=f'its value has ${reference}, and there is no such option',
                    fix='Write $$ for a dollar sign',
                )


def _options_in_files(conf: Any) -> Iterator[UnreadOption]:
    files = parse_files(conf)
    registered = _known_options(conf, files)
    for sections in files:
        for section, options in sections.items():
            if section in registered:
                for name, values in options.items():
                    if name.replace('-', '_') not in registered[section]:
                        why = (
                            f'there is no such option; {_similar_option(registered, section, name)}'
                        )
                        yield UnreadOption(f'[{section}] {name}', ' '.join(values), why)
            elif section not in _LIBRARIES and section not in conf:
                nearest = nearest_names(section, [*registered, *_LIBRARIES], 1)
                if nearest:
                    why = f'there is no such group; did you mean [{nearest[0]}]?'
                    yield UnreadOption(f'[{section}]', ', '.join(options), why)


def parse_files(conf: Any) -> list[Sections]:
    """Return the files of a configuration, in their order."""
    parsed_files = []
    for path in _files(conf):
        sections: Sections = {}
        try:
            cfg.ConfigParser(path, sections).parse()
        except (cfg.Error, OSError, ValueError):
            continue  # who reads it for good has said so
        parsed_files.append(sections)
    return parsed_files


def _files(conf: Any) -> list[str]:
    paths = [*(conf.config_file or [])]
    for folder in conf.config_dir or []:
        paths += sorted(str(path) for path in pathlib.Path(folder).glob('*.conf'))
    return paths


def _known_options(conf: Any, files: Iterable[Sections]) -> dict[str, set[str]]:
    """Return the names of the options of each group, those of enabled plugins included.

    Of the libraries only those whose groups the files have: some take long to be loaded.
    """
    options: dict[str, set[str]] = {}
    _add_options(options, list_opts())
    sections = sorted({section for sections_of_file in files for section in sections_of_file})
    for library in sorted({name for section in sections for name in _LIBRARIES.get(section, ())}):
        try:
            _add_options(options, metadata.entry_points(group=_ENTRY_POINTS)[library].load()())
        except (ImportError, KeyError):
            # It is not installed: nothing is known of its options.
            for group in (group for group, names in _LIBRARIES.items() if library in names):
                options.pop(group, None)
    for group in (name for name in _AUTH_GROUPS if name in options):
        found_in = [sections_of_file.get(group, {}) for sections_of_file in files]
        kinds = {
            text
            for options_of_group in found_in
            for name in _AUTH_TYPE_NAMES
            for text in options_of_group.get(name, ())
        }
        _add_auth(options, group, kinds or {'password'})
    # The agent of a host has no filters.
    plugins = filters.enabled_plugins(conf) if filters.FILTERS.name in conf else {}
    for group, enabled in plugins.items():
        for name in enabled:
            try:
                plugin = plugin_loader.find(group, name)
            except exceptions.PluginError:
                continue
            options[filters.GROUPS[group].name].update(option.name for option in plugin.options)
    return options


def _add_options(
    names_by_group: dict[str, set[str]], declared: Iterable[tuple[Any, Iterable[Any]]]
) -> None:
    for group, options in declared:
        name = 'DEFAULT' if group is None else str(getattr(group, 'name', group))
        names = names_by_group.setdefault(name, set())
        for opt in options:
            names.add(opt.dest)
            for deprecated in opt.deprecated_opts:
                names_by_group.setdefault(deprecated.group or name, set()).add(
                    deprecated.name or opt.dest
                )


def _add_auth(names_by_group: dict[str, set[str]], group: str, kinds: Iterable[str]) -> None:
    """Add the options of what ``auth_type`` names; one that is not known may have any."""
    from keystoneauth1 import exceptions as keystone_exceptions
    from keystoneauth1 import loading

    common = loading.get_auth_common_conf_options()
    try:
        plugin_options = [
            opt for kind in kinds for opt in loading.get_auth_plugin_conf_options(kind)
        ]
    except keystone_exceptions.NoMatchingPlugin:
        del names_by_group[group]
        return
    _add_options(names_by_group, [(group, [*common, *plugin_options])])


def _similar_option(names_by_group: dict[str, set[str]], section: str, name: str) -> str:
    elsewhere = sorted(group for group, names in names_by_group.items() if name in names)
    nearest = nearest_names(name, sorted(names_by_group[section]), 1)
    if elsewhere:
        or_here = f'; or did you mean {nearest[0]}?' if nearest else ''
        return f'it is one of [{elsewhere[0]}]{or_here}'
    if nearest:
        return f'did you mean {nearest[0]}?'
    part = sorted(option for option in names_by_group[section] if name in option.split('_'))
    if part:
        return f'did you mean {" or ".join(part[:3])}?'
    own_groups = {str(getattr(group, 'name', group)) for group, _ in list_opts()}
    everywhere = {
        option: group
        for group, names in sorted(names_by_group.items())
        if group in own_groups
        for option in names
    }
    far = nearest_names(name, sorted(everywhere), 1)
    return f'did you mean [{everywhere[far[0]]}] {far[0]}?' if far else 'remove it'


def _rules_without_plugin(conf: Any) -> Iterator[UnreadOption]:
    """Yield options of rules that have no effect, as the plugin for them is not enabled."""
    enabled = {name for names in filters.enabled_plugins(conf).values() for name in names}
    for (group, name), plugin in PLUGIN_OF_RULES.items():
        value = getattr(conf[group], name, '')
        if value and plugin not in enabled:
            yield UnreadOption(f'[{group}] {name}', value, f'{plugin} is not enabled')
