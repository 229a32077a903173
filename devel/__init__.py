# SPDX-License-Identifier: Apache-2.0
"""Programs over Gantt that no service imports, run from the source tree.

``python -m devel.demo`` and ``python -m devel.demo.zones`` show the service at work, ``python -m
devel.sim`` plays the production code in a simulated world, and ``memory_store`` is the store in
memory that the simulator and contract tests run on.
"""
