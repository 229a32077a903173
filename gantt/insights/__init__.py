# SPDX-License-Identifier: Apache-2.0
"""The read side: what HTTP, the command line and metrics show, and what if.

It claims nothing and changes nothing; the verbs of ``gantt.scheduler`` never import it.
"""
