"""Hangs on real gloo ranks, by kind, each with what is right to say of it; `hangs.py` runs them."""

from __future__ import annotations

from hang_cases.case import PREFACE, Case
from hang_cases.in_libraries import IN_LIBRARIES
from hang_cases.in_scripts import IN_SCRIPTS
from hang_cases.messages import MESSAGES
from hang_cases.missing import MISSING
from hang_cases.not_hung import NOT_HUNG
from hang_cases.otherwise import OTHERWISE
from hang_cases.outside import OUTSIDE

__all__ = ["CASES", "PREFACE", "Case"]

CASES = [*NOT_HUNG, *MISSING, *OTHERWISE, *MESSAGES, *OUTSIDE, *IN_LIBRARIES, *IN_SCRIPTS]
