"""Every public function with batches and numbers of the wrong kind, by the tables of
`invalid_batches` and `invalid_arguments`."""

from __future__ import annotations

import warnings

from ..check import CheckContext, Outcome

TITLE = "Every public function with wrong dtype, shape, device, empty, not contiguous and huge batches, and odd numbers"
KIND = "input"
LONG = False


def run(context: CheckContext) -> Outcome:
    """Test all entries of both tables."""
    from .. import invalid_arguments, invalid_batches

    failures: list[str] = []
    tried = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in invalid_batches.BATCH_CALLS:
            for mutation in invalid_batches.BATCH_MUTATIONS:
                tried += 1
                if problem := invalid_batches.batch_call_problem(call, mutation):
                    failures.append(f"{call.name} with {mutation}: {problem}")
        for name, (_, values) in invalid_arguments.ARGUMENT_CALLS.items():
            for place in range(len(values)):
                tried += 1
                if problem := invalid_arguments.argument_problem(name, place):
                    failures.append(f"{name}, value {place}: {problem}")
    many = f"{len(invalid_batches.BATCH_CALLS)} calls with {len(invalid_batches.BATCH_MUTATIONS)} kinds of batch, "
    many += f"{len(invalid_arguments.ARGUMENT_CALLS)} with odd numbers"
    note = f"{many}." if not failures else f"{len(failures)} failed: {'; '.join(failures[:3])}. {many}."
    return Outcome(tried, tried - len(failures), "nothing" if not failures else "a clear line", note)
