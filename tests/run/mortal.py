"""Kernels for the tests of helpers: one that ends the process of a helper, and of no other, at N == DEADLY."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from multiprocessing import parent_process

from numcheck import CaseSpace, KernelSpec
from tests.run.problem import doubling

DEADLY = 33
problem = replace(doubling, space=CaseSpace({"N": (1, 64)}, dtypes=("fp32",), grid={"N": (8, DEADLY, 64)}))


def _forward(x):
    if len(x) == DEADLY and parent_process() is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"out": 2 * x}


SPECS = (KernelSpec("mortal", problem, forward=_forward, vjp=lambda x, d_out: {"d_x": 2 * d_out}),)
