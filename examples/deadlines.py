"""Deadlines: first tokens in order of their deadlines, and prompts cut so that no step takes longer than a target.

Short questions should be answered within a second, long documents within ten, and every further token should follow
within 25 ms. `step.cost_s` says what a step would take on the machine, with the step times of the simulation.
`python examples/deadlines.py` puts vLLM's rule beside it.
"""

import kvsim

LONGEST_STEP_S = 0.025


def deadline_s(request):
    """Return the time at which a request should have its first token."""
    return request.arrival_s + (1.0 if request.prompt_tokens < 2000 else 10.0)


class Deadlines(kvsim.CustomPolicy):
    """Serve answers first, then as much of the most urgent prompts as the time of a step leaves room for."""

    name = "deadlines"

    def schedule(self, step):
        """Decode, then compute prompts in order of their deadlines."""
        prompts = [request for request in step.running if request.computed_tokens < request.prompt_tokens]
        for request in step.running:
            if request not in prompts:
                step.compute(request)
        for request in sorted([*prompts, *step.waiting], key=deadline_s):
            serve = step.compute if request in prompts else step.admit
            num_tokens = self.room(step, request)
            if not num_tokens or not serve(request, num_tokens):
                break

    def room(self, step, request):
        """Return the most tokens of a prompt with which the step is short enough, a multiple of 64."""
        low, high = 0, -(-min(step.tokens_left, request.known_tokens) // 64) + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if step.cost_s({request: 64 * middle}) <= LONGEST_STEP_S else (low, middle)
        return 64 * low or (64 if not step.running else 0)


def main(num_requests=120):
    """Serve questions and documents under both rules."""
    short, long = (
        kvsim.generate(
            number,
            arrivals=kvsim.Poisson(rate_per_s=rate),
            prompt=kvsim.Uniform(low=low, high=high),
            output=100,
            seed=1,
        )
        for number, rate, low, high in ((num_requests, 8, 50, 500), (num_requests // 6, 1.3, 6000, 16000))
    )
    requests = kvsim.Workload(
        arrival_s=[*short.arrival_s, *long.arrival_s],
        prompt_tokens=[*short.prompt_tokens, *long.prompt_tokens],
        output_tokens=[*short.output_tokens, *long.output_tokens],
    )
    machine = kvsim.machine("H100/Llama-3.1-8B-Instruct", num_blocks=12000)
    return kvsim.compare(requests, [kvsim.Paged(), Deadlines()], machine, engine="interpreted")


def num_late(run):
    """Count the requests whose first token came after its deadline."""
    within_s = [1.0 if tokens < 2000 else 10.0 for tokens in run.requests.prompt_tokens]
    return (run.requests["ttft_s"] > within_s).sum()


if __name__ == "__main__":
    for name, run in main().items():
        tpot_ms = 1e3 * run.summary().tpot_s.p99
        print(f"{name:10} {num_late(run):3} first tokens late; TPOT {tpot_ms:.1f} ms (99th percentile)")
