# SPDX-License-Identifier: Apache-2.0
"""The solver in a process of its own: the same answers, and one when it ends."""

import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from gantt import plugin_loader
from gantt.groups.model import group_description, reduce
from gantt.groups.model.build import build_problem
from gantt.groups.model.model import SolverGoal
from gantt.groups.model.plan_group import plan_group
from gantt.groups.model.problem import Assignment
from gantt.groups.solver import process
from gantt.groups.solver.cp_sat import CpSat
from gantt.groups.solver.process import SolverProcess
from tests.core.builders import a_host, a_table


@pytest.fixture
def solver():
    solver_process = SolverProcess(memory_mb=1024)
    yield solver_process
    solver_process.stop()


def a_group(count=6):
    """Return items that fill hosts of 4 to the last core, so that search alone does not do."""
    members = [
        {'name': f'm{i}', 'count': count, 'spec': {'resources': {'VCPU': i}}} for i in (1, 2, 3)
    ]
    return group_description.read({'members': members, 'policies': ['soft-anti-affinity']})


def a_model(hosts=9):
    table = a_table(*(a_host(i, vcpu=4) for i in range(1, hosts + 1)))
    problem = build_problem(table, a_group(), plugin_loader.load_pipeline())
    return reduce.reduced_model(problem, Assignment.empty(problem))


def test_it_answers_as_the_solver_in_this_process_does(solver):
    model = a_model()
    for goal in (SolverGoal(-1, (0,)), SolverGoal(0), SolverGoal(0, ())):
        there = solver.solve(model, goal, seconds=10.0, seed=1)
        here = CpSat().solve(model, goal, seconds=10.0, seed=1)
        assert (there.status, there.value, there.bound) == (here.status, here.value, here.bound)
        assert there.problem == ''


def test_one_that_is_killed_is_an_answer_and_the_next_call_begins_another(solver):
    solver.start()
    os.kill(solver.pid, signal.SIGKILL)
    model = a_model()
    # It may have been noticed before it was called: then another one was begun already.
    solution = solver.solve(model, SolverGoal(0), seconds=10.0, seed=1)
    assert solution.status == 'optimal' or 'signal 9' in solution.problem
    assert solver.solve(model, SolverGoal(0), seconds=10.0, seed=1).status == 'optimal'


def a_plan(solver):
    """Plan three members that are to be apart and together: only a solver finds the conflict."""
    table = a_table(*(a_host(i, vcpu=4, location=f's.r.k{i % 3}') for i in range(1, 7)))
    together = {'policy': 'affinity', 'level': 'rack', 'of': 'a'}
    spec = {'resources': {'VCPU': 1}}
    body = {
        'members': [{'name': name, 'count': 3, 'spec': spec} for name in 'ab'],
        'policies': ['anti-affinity', together],
    }
    return plan_group(
        table,
        group_description.read(body),
        plugin_loader.load_pipeline(),
        clock=time.monotonic,
        seconds=60.0,
        seed=1,
        solver=solver,
    )


def test_a_plan_goes_on_without_a_solver_that_has_ended(solver):
    before = a_plan(solver)
    assert (before.status, before.proofs) == ('infeasible', '')
    assert before.conflict.line.startswith('3 a cannot be placed together under anti-affinity')
    small = SolverProcess(memory_mb=-300)
    try:
        plan = a_plan(small)
    finally:
        small.stop()
    assert (plan.status, plan.conflict) == ('partial', None)
    assert len(plan.members) == len(before.members)
    assert plan.proofs.startswith('the solver ended')


def test_one_that_needs_more_memory_than_it_may_have_ends_and_says_so():
    small = SolverProcess(memory_mb=-300)  # what its libraries need is more than is left
    try:
        solution = small.solve(a_model(), SolverGoal(0), seconds=5.0, seed=1)
    finally:
        small.stop()
    assert solution.status == 'unknown'
    assert solution.problem.startswith('the solver ended')


def ends(work):
    """Return whether it ends by itself."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


@pytest.mark.parametrize('hosts', [9, 2000])
def test_one_that_stands_still_is_ended_and_another_one_begun(solver, monkeypatch, hosts):
    """Solve a model that fits into a pipe, and one that does not."""
    monkeypatch.setattr(process, 'GRACE_SECONDS', 0.2)
    model, solutions = a_model(hosts), []
    assert solver.solve(a_model(), SolverGoal(0), seconds=20.0, seed=1).status == 'optimal'
    frozen = solver.pid
    os.kill(frozen, signal.SIGSTOP)

    def work():
        solutions.append(solver.solve(model, SolverGoal(0), seconds=0.2, seed=1))

    assert ends(work)
    assert solutions[0].status == 'unknown'
    assert solutions[0].problem == 'the solver did not answer in time, and was ended'
    assert solver.solve(a_model(), SolverGoal(0), seconds=20.0, seed=1).status == 'optimal'
    assert solver.pid != frozen


def test_one_that_was_begun_long_ago_is_asked(solver, monkeypatch):
    """A planner begins it, and the first group may come an hour later."""
    monkeypatch.setattr(process, 'START_SECONDS', 0.0)
    solver.start()
    begun = solver.pid
    assert select.select([solver._child.stdout], [], [], 60)[0], 'it has not begun'
    solution = solver.solve(a_model(), SolverGoal(0), seconds=10.0, seed=1)
    assert (solution.status, solution.problem) == ('optimal', '')
    assert solver.pid == begun


def test_a_call_ends_with_the_solver(solver):
    solver.start()
    os.kill(solver.pid, signal.SIGSTOP)
    solutions = []

    def work():
        solutions.append(solver.solve(a_model(), SolverGoal(0), seconds=600.0, seed=1))

    calling = threading.Thread(target=work, daemon=True)
    calling.start()
    assert ends(solver.stop)
    calling.join(60)
    # Where the solver had ended before it was called, another one was begun.
    assert [solution.status for solution in solutions] in (['unknown'], ['optimal'])


def test_a_solver_that_is_left_while_it_begins_ends_without_a_word():
    command = [sys.executable, '-m', 'gantt.groups.solver.child', '1024', '0']
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as child:
        child.stdout.close()
        child.stdin.close()
        assert (child.wait(60), child.stderr.read()) == (0, b'')
