# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration; the tables come from the code through _ext/gantt_tables.py."""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE / '_ext'), str(HERE.parents[1])]

from gantt.version import version_string  # noqa: E402

project = 'Gantt'
copyright = 'the Gantt contributors'
release = version_string()
extensions = ['gantt_tables', 'gantt_apis']
html_theme = 'alabaster'
html_theme_options = {
    'description': 'A placement scheduler: claims made in a transaction, every decision explained',
    'page_width': '1100px',
    'fixed_sidebar': True,
}
html_show_sourcelink = False
nitpicky = True
suppress_warnings: list[str] = []
exclude_patterns: list[str] = []
