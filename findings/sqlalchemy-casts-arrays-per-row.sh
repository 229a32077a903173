#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# SQLAlchemy 2.1.9 with psycopg 3.3.9 on PostgreSQL 16.2.  Many ids are sent to a server as one text
# that is cast to an array: column = ANY (CAST(:ids AS TEXT[])).  The dialect writes the type of the
# parameter beside it, so that the server reads $1::VARCHAR and a cast of that to TEXT[].  Such a
# cast is no constant to the planner, although it has no column in it: a plan that reads the whole
# table parses the text of all ids once for each row, and compares them one by one.  Where the
# parameter itself is of the type of an array, the same plan has a constant and a table of hashes.
#
# Which of the two it is shows in EXPLAIN, and in the time: more than ten times as much.  Plans by
# an index evaluate the cast once: it is seen only where statistics lead to the whole table.
# Ends with 0 where it is so still.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet --disable-pip-version-check install \
    'pgserver==0.1.4' 'psycopg[binary]==3.3.9' 'SQLAlchemy==2.1.9'
cd "$folder"
XDG_RUNTIME_DIR="$folder" "$folder/venv/bin/python" -W ignore - <<'PYTHON'
import time

import pgserver
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql


class ArrayAsText(sa.types.UserDefinedType):
    cache_ok = True
    render_bind_cast = True

    def get_col_spec(self, **_):
        return 'TEXT[]'


hosts = sa.table('hosts', sa.column('id', sa.Text))
cast = sa.cast(sa.bindparam('ids', type_=sa.Text), postgresql.ARRAY(sa.Text))
forms = {
    'cast of a text': sa.select(hosts.c.id).where(hosts.c.id == sa.any_(cast)),
    'bound as an array': sa.select(hosts.c.id).where(
        hosts.c.id == sa.any_(sa.bindparam('ids', type_=ArrayAsText()))
    ),
}
filters, seconds = {}, {}
with pgserver.get_server('data', cleanup_mode='stop') as server:
    url = server.get_uri().replace('postgresql://', 'postgresql+psycopg://')
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql('CREATE TABLE hosts (id varchar(36))')
        connection.exec_driver_sql(
            'INSERT INTO hosts SELECT md5(n::text) FROM generate_series(1, 5000) n'
        )
        ids = connection.exec_driver_sql('SELECT id FROM hosts LIMIT 500').scalars().all()
        for name, query in forms.items():
            bound = {'ids': '{' + ','.join(ids) + '}'}
            compiled = query.compile(engine)
            plan = connection.exec_driver_sql('EXPLAIN ' + str(compiled), bound).scalars().all()
            [filters[name]] = [line for line in plan if 'Filter:' in line]
            began = time.monotonic()
            assert len(connection.execute(query, bound).all()) == 500
            seconds[name] = time.monotonic() - began
for name, line in filters.items():
    print(f'{name}: {seconds[name] * 1000:.0f} ms, filter ends with {line[-40:]!r}')
assert "}'::cstring)::text[]" in filters['cast of a text'], 'the cast is folded into a constant now'
assert "}'::text[]" in filters['bound as an array']
assert seconds['cast of a text'] > 10 * seconds['bound as an array'], 'it costs no more any longer'
PYTHON
