# SPDX-License-Identifier: Apache-2.0
"""Reading the configuration files: what is wrong with one is said with its name.

oslo.config names a file that is not there, or not understood.  One that is no text at
all, a directory, or on a disk that fails, ends it with whatever Python raises.
"""

import argparse
import itertools
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from oslo_config import cfg

from gantt import exceptions
from gantt.version import version_string

PROJECT = 'gantt'
#: How oslo.config writes where it has a value from.
_LOCATION_TEXT = re.compile(r"from LocationInfo\(location=<[^>]*>, detail='([^']*)'\)")


#: The files of the configuration, with ":" between them, where the command line names none.
CONFIG_FILE_VARIABLE = 'OS_GANTT_CONFIG_FILE'
#: What to do where a file is named that is not there.
_MISSING_FIX = (
    f'Name one that is there by --config-file, --config-dir or {CONFIG_FILE_VARIABLE}; '
    'etc/gantt/gantt.conf.sample of the source has all options to begin with, and '
    '[database] connection is the one that has to be set'
)


def with_environment(argv: Sequence[str]) -> list[str]:
    """Return the command line, with the files of the environment where it names none itself."""
    named = [path for path in os.environ.get(CONFIG_FILE_VARIABLE, '').split(os.pathsep) if path]
    parsed, _ = _parse_command_line(argv)
    if parsed.config_file or parsed.config_dir:
        return list(argv)
    return [*(f'--config-file={path}' for path in named), *argv]


def read(conf: Any, argv: Sequence[str], program: str) -> None:
    """Fill a configuration object from the command line and the files that it, or else the
    environment, names.

    :raises Misconfigured: a file cannot be read; names it
    :raises cfg.Error: an option or a file is wrong
    :raises SystemExit: by ``--help``, or wrong usage
    """
    argv = with_environment(argv)
    try:
        conf(argv, project=PROJECT, prog=program, version=version_string())
    except cfg.ConfigFilesNotFoundError as e:
        raise exceptions.Misconfigured(
            option=', '.join(e.config_files), problem='there is no such file', fix=_MISSING_FIX
        ) from None
    except cfg.ConfigDirNotFoundError as e:
        raise exceptions.Misconfigured(
            option=e.config_dir, problem='there is no such folder', fix=_MISSING_FIX
        ) from None
    except (OSError, UnicodeError) as e:
        path, problem = unreadable(_named_files(argv, program)) or ('a configuration file', str(e))
        raise exceptions.Misconfigured(
            option=path, problem=problem, fix='Name a readable file of text in UTF-8'
        ) from None


#: Servers that do not answer -> the remedy; their more special errors contain it themselves.
_REMEDY_BY_ERROR: dict[type[BaseException], str] = {
    exceptions.DatabaseUnavailable: 'Start the database, or correct [database] connection',
    exceptions.BrokerUnavailable: 'Start the broker, or correct [DEFAULT] transport_url',
}


def error_message(error: BaseException) -> str:
    """Return the message of an error and its remedy, with the option as people write it."""
    text = _LOCATION_TEXT.sub(lambda match: f'in {match[1]}' if match[1] else 'here', str(error))
    remedy = _REMEDY_BY_ERROR.get(type(error))
    # A server that runs and refuses us reports by itself what to correct.
    if remedy is None or 'correct' in getattr(error, 'kwargs', ()):
        return text
    return f'{text} {remedy}' if text.endswith(('.', '?', '!')) else f'{text}. {remedy}'


def unreadable(paths: Iterable[str]) -> tuple[str, str] | None:
    """Return the first file that cannot be read, and why."""
    for path in paths:
        try:
            pathlib.Path(path).read_text(encoding='utf-8')
        except UnicodeError as e:
            return path, f'is not text in UTF-8: {e}'
        except OSError as e:
            return path, e.strerror or str(e)
    return None


def _named_files(argv: Sequence[str], program: str) -> Iterator[str]:
    """Yield the files as oslo.config finds them."""
    parsed, _ = _parse_command_line(argv)
    named = parsed.config_file or cfg.find_config_files(PROJECT, program)
    folders = parsed.config_dir or cfg.find_config_dirs(PROJECT, program)
    yield from (os.path.abspath(os.path.expanduser(path)) for path in named)
    for folder in folders:
        yield from sorted(str(path) for path in pathlib.Path(folder).glob('*.conf'))


def _parse_command_line(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the files that a command line names, and its further arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument('--config-file', action='append', default=[])
    parser.add_argument('--config-dir', action='append', default=[])
    return parser.parse_known_args(list(argv))


def options_before_command(argv: Sequence[str]) -> list[str]:
    """Return the options of a command line before its first argument that is no option.

    Options for files are left out.
    """
    _, arguments = _parse_command_line(argv)
    return list(itertools.takewhile(lambda word: word.startswith('-'), arguments))
