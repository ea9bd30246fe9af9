"""Every public function with batches and numbers of the wrong kind, by the tables of `calls` and `odd_numbers`."""

from __future__ import annotations

import warnings

from ..check import CheckContext, Outcome

TITLE = "Every public function with wrong dtype, shape, device, empty, not contiguous and huge batches, and odd numbers"
KIND = "input"
LONG = False


def run(context: CheckContext) -> Outcome:
    """Go through both tables."""
    from .. import calls, odd_numbers

    failures: list[str] = []
    tried = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in calls.BATCH_CALLS:
            for spoil in calls.BATCH_MUTATIONS:
                tried += 1
                if said := calls.batch_call_problem(call, spoil):
                    failures.append(f"{call.name} with {spoil}: {said}")
        for name, (_, values) in odd_numbers.CALLS.items():
            for place in range(len(values)):
                tried += 1
                if said := odd_numbers.value_call_problem(name, place):
                    failures.append(f"{name}, value {place}: {said}")
    many = f"{len(calls.BATCH_CALLS)} calls with {len(calls.BATCH_MUTATIONS)} kinds of batch, {len(odd_numbers.CALLS)} with odd numbers"
    note = f"{many}." if not failures else f"{len(failures)} failed: {'; '.join(failures[:3])}. {many}."
    return Outcome(tried, tried - len(failures), "nothing" if not failures else "a clear line", note)
