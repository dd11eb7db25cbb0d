"""A fixed sample of the cases of :mod:`tests.fuzz`."""

import pytest

from tests.fuzz import FAMILIES, run_case

SEED = 20261116
# Fewer cases for the slow families.
COUNTS = {"attacks": 150, "checkpoints": 80, "store": 40, "command": 60, "poisoned file": 10, "process": 2}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_input_gets_an_answer_or_an_error(family):
    results = [run_case(SEED, number, family) for number in range(COUNTS.get(family, 200))]
    failed = [f"case {one.number}: {one.outcome}: {one.detail}" for one in results if one.failed]
    assert not failed, f"python scripts/fuzz.py --seed {SEED} --family {family!r}\n" + "\n".join(failed)
    # A family should test both valid and invalid inputs.
    assert len(results) < 10 or {one.outcome for one in results} == {"answer", "error"}
