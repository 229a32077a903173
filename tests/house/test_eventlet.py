# SPDX-License-Identifier: Apache-2.0
"""Gantt runs on native threads: everything imports where eventlet and greenlet cannot be."""

import pathlib
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).parents[2]

IMPORT_ALL = textwrap.dedent("""
    import importlib, importlib.abc, pkgutil, sys, warnings

    class Blocked(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.split('.')[0] in ('eventlet', 'greenlet', 'nova'):
                raise ImportError(f'{name} is blocked here')

    sys.meta_path.insert(0, Blocked())
    import gantt.cmd  # chooses the threading backend, as every entry point does
    import gantt
    names = [m.name for m in pkgutil.walk_packages(gantt.__path__, 'gantt.')]
    # Run by their servers when imported: the migrations, and the WSGI application.
    names = [n for n in names if '.alembic.' not in n and n != 'gantt.wsgi.api']
    for name in names:
        importlib.import_module(name)
    assert sys.modules.get('eventlet') is None
    print(len(names))
""")


def test_every_module_imports_where_eventlet_cannot_be_imported():
    process = subprocess.run(
        [sys.executable, '-c', IMPORT_ALL], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) > 20


def test_the_blocker_of_this_test_blocks():
    code = IMPORT_ALL.replace('import gantt.cmd ', 'import eventlet; import gantt.cmd ')
    process = subprocess.run(
        [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, timeout=110
    )
    assert process.returncode != 0
    assert 'eventlet is blocked here' in process.stderr


def test_the_libraries_for_other_people_s_processes_choose_no_backend():
    """A conductor or a compute service decides on its own how it runs, and imports no service."""
    for package in ('gantt.client', 'gantt.compute'):
        code = textwrap.dedent(f"""
            import importlib, pkgutil, sys
            from oslo_service import backend
            backend.init_backend(backend.BackendType.THREADING)  # the choice of that process
            package = importlib.import_module({package!r})
            for m in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):
                importlib.import_module(m.name)
            heavy = {{'sqlalchemy', 'falcon', 'oslo_db', 'gantt.db', 'gantt.http', 'gantt.cmd'}}
            assert not heavy & set(sys.modules), heavy & set(sys.modules)
            assert backend.get_backend_type() is backend.BackendType.THREADING
        """)
        process = subprocess.run(
            [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, timeout=110
        )
        assert process.returncode == 0, f'{package}: {process.stderr}'
    choosers = [
        path.relative_to(ROOT).as_posix()
        for path in sorted(ROOT.joinpath('gantt').rglob('*.py'))
        if 'init_backend' in path.read_text()
    ]
    assert choosers == ['gantt/cmd/__init__.py', 'gantt/wsgi/__init__.py']


def test_entry_points_hide_eventlet_where_it_is_installed():
    for package in ('gantt.cmd', 'gantt.wsgi'):
        code = f'import {package}, futurist, sys; assert sys.modules["eventlet"] is None'
        process = subprocess.run(
            [sys.executable, '-W', 'error', '-c', code],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert process.returncode == 0, process.stderr
