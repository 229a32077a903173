#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# oslo.config 10.7.0 puts the value of another option where a value has a dollar sign and a name, in
# each text of a file, passwords and URLs included.  Where there is an option of that name, the value
# is another one than the file says, without a word.  Where there is none, the error names that
# option, which nobody asked for, and group DEFAULT, whatever group the value is in: neither the
# option whose value it is nor the dollar sign.  A dollar sign before a digit stays one; two of them
# stand for one.
# Ends with 0 where all of that is so still.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install 'oslo.config==10.7.0'
cd "$folder"
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import pathlib

from oslo_config import cfg


def read(value):
    """Return what a file with this value says of [database] connection."""
    path = pathlib.Path('service.conf')
    path.write_text(f'[database]\nconnection = {value}\n')
    conf = cfg.ConfigOpts()
    conf.register_opt(cfg.StrOpt('host', default='node-1'))
    conf.register_opt(cfg.StrOpt('connection', secret=True), group='database')
    conf(['--config-file', str(path)])
    try:
        return conf.database.connection
    except cfg.Error as e:
        return f'{type(e).__name__}: {e}'


SEEN = {
    'mysql://me:ab$host@db/name': 'mysql://me:abnode-1@db/name',
    'mysql://me:ab$word@db/name': 'NoSuchOptError: no such option word in group [DEFAULT]',
    'mysql://me:ab$1@db/name': 'mysql://me:ab$1@db/name',
    'mysql://me:ab$$host@db/name': 'mysql://me:ab$host@db/name',
}
for value, expected in SEEN.items():
    now = read(value)
    print(f'{value} is read as {now}')
    assert now == expected, 'this has changed'
PYTHON
