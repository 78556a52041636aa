"""Every repaired operation agrees with torch's bits on both 16-bit dtypes, and nothing of a session stays behind."""

from __future__ import annotations

from numcheck import interpreter

interpreter.enable()

import pytest  # noqa: E402
import torch  # noqa: E402
from kernels import bf16_block, fp8_cast  # noqa: E402
from triton.runtime import interpreter as upstream  # noqa: E402

from numcheck.errors import Refused  # noqa: E402
from numcheck.interpreter import bits  # noqa: E402
from numcheck.interpreter.probes import broken  # noqa: E402
from numcheck.interpreter.questions import nearest, questions  # noqa: E402

QUESTIONS = [q for q in questions() if q.dtype]
