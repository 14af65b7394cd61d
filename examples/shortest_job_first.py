"""Shortest job first, with a known length: who has the least left to compute is admitted next.

No server knows how long an answer will be; this is the bound that a good guess could come close to.
Beside it vLLM's rule on the same requests: `python examples/shortest_job_first.py`.
"""

import kvsim


class ShortestJobFirst(kvsim.CustomPolicy):
    """Of those that wait, admit the request with the fewest tokens to go."""

    name = "shortest-job-first"

    def admit(self, step):
        """The request with the fewest tokens that are not computed yet, prompt and answer together."""
        return min(step.waiting, key=lambda request: request.prompt_tokens + request.output_tokens)


def main(num_requests=120):
    """Serve the first requests of a recorded run, in which memory was short, under both rules."""
    recorded = kvsim.read("vllm-h200-llama-3-8b-sharegpt-pressure")
    requests = kvsim.workload_of(recorded).head(num_requests)
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=400)
    return kvsim.compare(requests, [kvsim.Paged(), ShortestJobFirst()], machine, engine="interpreted")


if __name__ == "__main__":
    print(main())
