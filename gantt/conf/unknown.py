# SPDX-License-Identifier: Apache-2.0
"""Options in configuration files that nobody reads: misspelled, or in the wrong group.

The library that reads the files ignores them.  Looked at are our groups and those
of the libraries, which list their options for the generator of the sample, and groups
whose name is nearly that of one of these.  Others may have groups of their own.
"""

import contextlib
import itertools
import pathlib
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any

import msgspec
from oslo_config import cfg

from gantt import exceptions, plugin_loader
from gantt.conf import filters, opts
from gantt.core.messages.near import near

_ENTRY_POINTS = 'oslo.config.opts'
#: Group -> who lists options of it beside us, as etc/gantt/config-generator.conf names them.
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
_AUTH = ('keystone_authtoken', 'nova', 'placement')
_KIND = ('auth_type', 'auth_plugin')
#: Options that go without effect unless the plugin that reads them runs.
NEEDED = {
    ('filters', 'operator_rules'): 'RulesFilter',
    ('weighers', 'operator_preferences'): 'RulesWeigher',
}


#: Group -> option -> values, as a file has them.
Sections = dict[str, dict[str, list[str]]]


class Unread(msgspec.Struct, frozen=True):
    """An option that has no effect.

    :ivar option: ``[group] name``, or a group
    :ivar value: as it stands there
    :ivar why: and what may have been meant
    """

    option: str
    value: str
    why: str

    def __str__(self) -> str:
        return f'{self.option} has no effect: {self.why}'


def unread(conf: Any) -> list[Unread]:
    """Return the options in the files of a configuration that are not read."""
    return list(dict.fromkeys(itertools.chain(_in_files(conf), _of_plugins(conf))))


def strange(conf: Any) -> list[str]:
    """Return groups of the files that none of us has: their options are not checked."""
    files = parsed(conf)
    registered = _known(conf, files)
    return sorted({section for sections in files for section in sections} - set(registered))


def listed() -> list[tuple[str, Any]]:
    """Return group and option of all that Gantt and its installed libraries list."""
    by_name: dict[tuple[str, str], Any] = {}
    lists = [opts.list_opts()]
    for library in sorted({name for names in _LIBRARIES.values() for name in names}):
        with contextlib.suppress(ImportError, KeyError):
            lists.append(metadata.entry_points(group=_ENTRY_POINTS)[library].load()())
    for group, options in itertools.chain(*lists):
        name = 'DEFAULT' if group is None else str(getattr(group, 'name', group))
        for option in options:
            by_name.setdefault((name, option.dest), option)
    return [(group, option) for (group, _), option in sorted(by_name.items())]


def _in_files(conf: Any) -> Iterator[Unread]:
    files = parsed(conf)
    registered = _known(conf, files)
    for sections in files:
        for section, options in sections.items():
            if section in registered:
                for name, values in options.items():
                    if name.replace('-', '_') not in registered[section]:
                        why = f'there is no such option; {_meant(registered, section, name)}'
                        yield Unread(f'[{section}] {name}', ' '.join(values), why)
            elif section not in _LIBRARIES and section not in conf:
                nearest = near(section, [*registered, *_LIBRARIES], 1)
                if nearest:
                    why = f'there is no such group; did you mean [{nearest[0]}]?'
                    yield Unread(f'[{section}]', ', '.join(options), why)


def parsed(conf: Any) -> list[Sections]:
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


def _known(conf: Any, files: Iterable[Sections]) -> dict[str, set[str]]:
    """Return the names of the options of each group, those of enabled plugins included.

    Of the libraries only those whose groups the files have: some take long to be loaded.
    """
    options: dict[str, set[str]] = {}
    _add(options, opts.list_opts())
    sections = sorted({section for sections_of in files for section in sections_of})
    for library in sorted(
        {name for sections_of in sections for name in _LIBRARIES.get(sections_of, ())}
    ):
        try:
            _add(options, metadata.entry_points(group=_ENTRY_POINTS)[library].load()())
        except (ImportError, KeyError):
            # It is not installed: nothing is known of its options.
            for group in (group for group, names in _LIBRARIES.items() if library in names):
                options.pop(group, None)
    for group in (sections_of for sections_of in _AUTH if sections_of in options):
        found_in = [sections_of.get(group, {}) for sections_of in files]
        kinds = {
            text for sections_of in found_in for name in _KIND for text in sections_of.get(name, ())
        }
        _add_auth(options, group, kinds or {'password'})
    for group, enabled in filters.chosen(conf).items():
        for name in enabled:
            try:
                plugin = plugin_loader.find(group, name)
            except exceptions.PluginError:
                continue
            options[filters.GROUPS[group].name].update(option.name for option in plugin.options)
    return options


def _add(found: dict[str, set[str]], listed: Iterable[tuple[Any, Iterable[Any]]]) -> None:
    for group, options in listed:
        name = 'DEFAULT' if group is None else str(getattr(group, 'name', group))
        names = found.setdefault(name, set())
        for opt in options:
            names.add(opt.dest)
            for deprecated in opt.deprecated_opts:
                found.setdefault(deprecated.group or name, set()).add(deprecated.name or opt.dest)


def _add_auth(found: dict[str, set[str]], group: str, kinds: Iterable[str]) -> None:
    """Add the options of what ``auth_type`` names; one that is not known may have any."""
    from keystoneauth1 import exceptions as keystone_exceptions
    from keystoneauth1 import loading

    common = loading.get_auth_common_conf_options()
    try:
        plugin_options = [
            opt for kind in kinds for opt in loading.get_auth_plugin_conf_options(kind)
        ]
    except keystone_exceptions.NoMatchingPlugin:
        del found[group]
        return
    _add(found, [(group, [*common, *plugin_options])])


def _meant(known: dict[str, set[str]], section: str, name: str) -> str:
    elsewhere = sorted(group for group, names in known.items() if name in names)
    nearest = near(name, sorted(known[section]), 1)
    if elsewhere:
        or_here = f'; or did you mean {nearest[0]}?' if nearest else ''
        return f'it is one of [{elsewhere[0]}]{or_here}'
    if nearest:
        return f'did you mean {nearest[0]}?'
    part = sorted(option for option in known[section] if name in option.split('_'))
    if part:
        return f'did you mean {" or ".join(part[:3])}?'
    own_groups = {str(getattr(group, 'name', group)) for group, _ in opts.list_opts()}
    everywhere = {
        option: group
        for group, names in sorted(known.items())
        if group in own_groups
        for option in names
    }
    far = near(name, sorted(everywhere), 1)
    return f'did you mean [{everywhere[far[0]]}] {far[0]}?' if far else 'remove it'


def _of_plugins(conf: Any) -> Iterator[Unread]:
    """Yield options of rules that have no effect, as the plugin for them is not enabled."""
    enabled = {name for names in filters.chosen(conf).values() for name in names}
    for (group, name), plugin in NEEDED.items():
        value = getattr(conf[group], name, '')
        if value and plugin not in enabled:
            yield Unread(f'[{group}] {name}', value, f'{plugin} is not enabled')
