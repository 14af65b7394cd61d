"""A victim rule: where memory runs out, the request that holds most gives way, instead of the one admitted last.

It frees more at once, and throws more work away: `python examples/drop_the_largest.py` says what that is worth.
"""

import kvsim


class DropTheLargest(kvsim.CustomPolicy):
    """Preempt the running request with the most blocks."""

    name = "drop-the-largest"

    def victim(self, step, needs):
        """Of the requests with the most blocks, the one admitted last."""
        return max(reversed(step.running), key=lambda request: request.num_units)


def main(num_requests=120):
    """Serve the first requests of a recorded run, in which memory was short, under both rules."""
    recorded = kvsim.read("vllm-h200-llama-3-8b-sharegpt-pressure")
    requests = kvsim.workload_of(recorded).head(num_requests)
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=400)
    return kvsim.compare(requests, [kvsim.Paged(), DropTheLargest()], machine, engine="interpreted")


if __name__ == "__main__":
    print(main())
