# SPDX-License-Identifier: Apache-2.0
"""``gantt-manage bundle``: the facts on a site that a report of a defect needs.

Versions, configuration, doctor, audit, metrics and the ends of the logs, in one file of a
bounded size.  No secret is in it: options that are one are shown as set or not set, and their
values are taken out of every text.
"""

import contextlib
import importlib.metadata
import io
import itertools
import json
import os
import pathlib
import platform
import re
import socket
import sys
import tarfile
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

from oslo_config import cfg
from sqlalchemy import exc as sqlalchemy_errors

from gantt import exceptions, stores
from gantt.cmd import manage_config, status, wiring
from gantt.conf import files, listeners, unknown
from gantt.conf.pipeline import pipeline_from_conf
from gantt.db.engine import session
from gantt.db.schema import migration
from gantt.telemetry import log
from gantt.version import version_string

#: Of a part of the bundle, of all logs together, and of what one server answers, in bytes.
PART_MAX, LOGS_MAX, LOG_MAX = 4 << 20, 16 << 20, 1 << 20
ANSWER_SECONDS = 5.0
HEADERS = {'OpenStack-API-Version': 'scheduler latest', 'Accept': '*/*'}
#: A shorter one occurs in texts where it is no secret.
SECRET_LENGTH_MIN = 4
#: Well-known passwords: to take them out everywhere hides nothing.
_COMMON_WORDS = frozenset({'guest', 'none', 'true', 'false'})
#: Options and keys of files that are secret by their names.
_SECRET_NAME = re.compile(r'(?i)password|passwd|passphrase|secret|token|credential|private_?key')
#: Everything before the last "@" of a url, also where the url is wrong.
_USERINFO = re.compile(r'://[^/\s:]*:(\S*)@')
#: The same of one of several brokers in one url.
_FURTHER_USERINFO = re.compile(r'^[^/\s:@]*:(\S*)@')


def _secrets(conf: Any) -> list[str]:
    """Return the secrets that no text of the bundle may contain, the longest first."""
    forms = {form for value in _secret_values(conf) for form in _secret_forms(value)}
    secrets = (
        form
        for form in forms
        if len(form) >= SECRET_LENGTH_MIN and form.lower() not in _COMMON_WORDS
    )
    return sorted(secrets, key=len, reverse=True)


def _mask_secrets(secrets: list[str], text: str) -> str:
    """Return ``text`` with the secrets, and all that resembles a secret, replaced."""
    for secret in secrets:
        text = text.replace(secret, '***')
    return log.masked(text)


def _secret_forms(value: str) -> Iterator[str]:
    """Yield a secret as it may be written; of a url also only its password."""
    for form in (value, *_passwords(value)):
        yield form
        yield urllib.parse.unquote(form)
        yield urllib.parse.quote(form, safe='')
        yield json.dumps(form)[1:-1]


def _passwords(text: str) -> Iterator[str]:
    """Yield the passwords in the urls of a text."""
    if '://' not in text:
        return
    yield from _USERINFO.findall(text)
    first, *further = text.split(',')
    yield from _USERINFO.findall(first)
    for query in further:
        yield from _FURTHER_USERINFO.findall(query)


def is_secret(name: str, value: Any, option: Any = None) -> bool:
    """Return whether the value of an option is secret, by its declaration or its name.

    A number under such a name, such as how long a token is valid, is not secret.
    """
    if getattr(option, 'secret', False):
        return True
    is_number = not isinstance(value, str | list) or str(value).isdecimal()
    return bool(_SECRET_NAME.search(name)) and ('pass' in name.lower() or not is_number)


def run(conf: Any) -> int:
    """Gather what a report of a defect needs, without secrets, in one file.

    A part that cannot be read is replaced by the reason.
    """
    secrets = _secrets(conf)
    name = f'gantt-bundle-{socket.gethostname()}-{time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())}'
    path = pathlib.Path(conf.command.output or f'{name}.tar.gz')
    try:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), 'wb')
    except OSError as e:
        raise exceptions.Misconfigured(
            option=f'--output {path}',
            problem=e.strerror or str(e),
            fix='Name a file that is not there yet, where this user may write',
        ) from None
    with file, tarfile.open(fileobj=file, mode='w:gz') as bundle:
        for part, text in _bundle_parts(conf):
            data = _mask_secrets(secrets, text).encode(errors='replace')[-PART_MAX:]
            entry = tarfile.TarInfo(f'{name}/{part}')
            entry.size = len(data)
            entry.mtime = int(time.time())
            entry.mode = 0o600
            bundle.addfile(entry, io.BytesIO(data))
            print(f'{part:<24} {len(data):>9} bytes')
    print(f'{path} is made: look into it before you give it away')
    return 0


def _bundle_parts(conf: Any) -> Iterator[tuple[str, str]]:
    """Yield name and text of each part."""
    parts: list[tuple[str, Callable[[Any], str]]] = [
        ('versions.txt', _versions_text),
        ('configuration.txt', _configuration),
        ('plugins.txt', _plugins_text),
        ('schema.txt', _schema_text),
        ('doctor.txt', _output_of(manage_config.doctor)),
        ('upgrade-check.txt', _output_of(lambda conf: status.Checks(conf).check())),
        ('audit.json', _audit_text),
    ]
    for name, make in parts:
        yield name, _text_or_error(make, conf)
    for name, url in _listener_parts(conf):
        yield name, _text_or_error(_fetch, url)
    bytes_left = LOGS_MAX
    for log_file in _log_parts(conf):
        text = _text_or_error(_last_lines, log_file)
        bytes_left -= len(text)
        if bytes_left < 0:
            return
        yield f'logs/{log_file.name}', text


def _text_or_error(make: Callable[[Any], str], of: Any) -> str:
    try:
        return make(of)
    except (exceptions.GanttError, cfg.Error) as e:
        return f'cannot be had: {files.error_message(e)}\n'
    except (OSError, ValueError, sqlalchemy_errors.SQLAlchemyError) as e:
        return f'cannot be had: {type(e).__name__}: {e}\n'


def _versions_text(_: Any) -> str:
    lines = [
        f'gantt {version_string()}',
        f'python {sys.version}',
        f'on {platform.platform()}',
        '',
    ]
    distributions = {
        f'{distribution.metadata["Name"]}=={distribution.version}'
        for distribution in importlib.metadata.distributions()
    }
    return '\n'.join([*lines, *sorted(distributions, key=str.casefold)]) + '\n'


def _settings(conf: Any) -> Iterator[tuple[str, str, str, Any, Any]]:
    """Yield place, group, name, value and option: of every option as it is now, then of the files.

    Everything in the files is included, whichever process reads it.
    """
    declared = unknown.declared_options()
    for group, option in declared:
        with contextlib.suppress(cfg.NoSuchOptError):  # of a library that reads it when it is used
            yield 'As it is now.', group, option.dest, _option_value(conf, group, option), option
    registered = {(group, option.dest): option for group, option in declared}
    for number, sections in enumerate(unknown.parse_files(conf), 1):
        place = f'As file {number} of {", ".join(conf.config_file or [])} has it.'
        for group, options in sections.items():
            for name, values in options.items():
                option = registered.get((group, name.replace('-', '_')))
                yield from ((place, group, name, value, option) for value in values)


def _configuration(conf: Any) -> str:
    """Return every option as it is now, and the text of the files, without secrets."""
    lines: list[str] = []
    for place, in_place in itertools.groupby(_settings(conf), key=lambda one: one[0]):
        lines += ['', f'# {place}']
        for group, settings in itertools.groupby(in_place, key=lambda one: one[1]):
            lines += ['', f'[{group}]']
            lines += [
                f'{name} = {_shown_value(name, value, o)}' for _, _, name, value, o in settings
            ]
    return '\n'.join(lines[1:]) + '\n'


def _shown_value(name: str, value: Any, option: Any) -> Any:
    if not is_secret(name, value, option):
        return value
    return '(set; secret)' if value else '(not set; secret)'


def _option_value(conf: Any, group: str, option: Any) -> Any:
    """Return the value of an option.  :raises cfg.NoSuchOptError: it is not registered"""
    try:
        holder = conf if group == 'DEFAULT' else conf[group]
        return holder[option.dest]
    except (cfg.NoSuchOptError, cfg.NoSuchGroupError):
        raise cfg.NoSuchOptError(option.dest) from None
    except (cfg.Error, ValueError) as e:
        return f'(cannot be read: {files.error_message(e)})'


def _secret_values(conf: Any) -> Iterator[str]:
    """Yield the secrets of options, of configuration files and of the environment."""
    settings = [entry[2:] for entry in _settings(conf)]
    settings += [(name, value, None) for name, value in os.environ.items()]
    for name, value, option in settings:
        for text in map(str, value if isinstance(value, list) else [value]):
            if value and is_secret(name, text, option):
                yield text
            yield from _passwords(text)


def _plugins_text(conf: Any) -> str:
    return json.dumps(pipeline_from_conf(conf).described(), indent=2, default=str) + '\n'


def _schema_text(conf: Any) -> str:
    engine = session.engine_from_conf(conf)
    try:
        current = migration.version(engine)
        return (
            f'{session.family(engine)} at {wiring.database_url_text(conf)}\n'
            f'schema {current}, needed {migration.expected()}\n'
        )
    finally:
        engine.dispose()


def _output_of(command: Callable[[Any], Any]) -> Callable[[Any], str]:
    """Return a function that returns the output of a command."""

    def text(conf: Any) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            command(conf)
        return out.getvalue()

    return text


def _audit_text(conf: Any) -> str:
    return json.dumps(stores.connect(conf).claims.audit(), indent=2, default=str) + '\n'


def _listener_parts(conf: Any) -> Iterator[tuple[str, str]]:
    """Yield the metrics and health reports of the processes of this machine."""
    for group, program in listeners.PROGRAMS.items():
        ports = listeners.metrics(conf, group)
        for number in range(ports.number if ports.first else 0):
            at = f'http://{_local_address(ports.host)}:{ports.first + number}'
            yield f'metrics/{program}-{number}.txt', f'{at}/metrics'
            yield f'health/{program}-{number}.json', f'{at}/health'
    at = f'http://{_local_address(str(conf.api.host))}:{conf.api.port}'
    yield 'metrics/gantt-api.txt', f'{at}/metrics'
    yield 'health/gantt-api.json', f'{at}/healthcheck'
    yield 'status.json', f'{at}/v1/status'
    yield 'services.json', f'{at}/v1/services'


def _local_address(host: str) -> str:
    loopback = {'0.0.0.0': '127.0.0.1', '::': '::1', '': '127.0.0.1'}  # nosec B104 # asked, not bound
    host = loopback.get(host, host)
    return f'[{host}]' if ':' in host else host


def _fetch(url: str) -> str:
    """Return the answer of a server, up to the bound on its size."""
    import httpx2 as httpx  # nothing else here needs it

    data, end = b'', time.monotonic() + ANSWER_SECONDS
    try:
        with httpx.stream(
            'GET', url, headers=HEADERS, timeout=ANSWER_SECONDS, trust_env=False
        ) as answer:
            for piece in answer.iter_bytes(65_536):
                data += piece
                if len(data) >= PART_MAX or time.monotonic() > end:
                    data = data.rpartition(b'\n')[0]  # no secret is cut in two
                    break
    except httpx.HTTPError as e:
        return f'cannot be had from {url}: {e or type(e).__name__}\n'
    return f'{answer.status_code} {url}\n{data.decode(errors="replace")}'


def _log_parts(conf: Any) -> Iterator[pathlib.Path]:
    folder = pathlib.Path(conf.log_dir) if conf.log_dir else None
    if conf.log_file:
        yield folder / conf.log_file if folder else pathlib.Path(conf.log_file)
    if folder is not None:
        named = folder / conf.log_file if conf.log_file else None
        yield from (path for path in sorted(folder.glob('gantt*.log')) if path != named)


def _last_lines(path: pathlib.Path) -> str:
    """Return the last whole lines of a log: of one that is cut, a secret could be left in part."""
    with path.open('rb') as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_MAX))
        data = file.read(LOG_MAX)
    if size > LOG_MAX:
        data = data.partition(b'\n')[2]
    return data.decode(errors='replace')
