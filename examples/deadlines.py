"""Deadlines: first tokens in order of their deadlines, and prompts cut so that no step takes longer than a target.

Questions get a first token within a second, documents within ten, and further tokens follow within 25 ms. Where the
pool is full, the prompt with the latest deadline is preempted for a more urgent request. `step.cost_s` predicts how
long a step takes. `python examples/deadlines.py` puts vLLM's rule beside it.
"""

import kvsim

LONGEST_STEP_S = 0.025


def urgency(request):
    """Return a key to sort by: answers first, then prompts by the time at which the first token is due."""
    within_s = 1.0 if request.prompt_tokens < 2000 else 10.0
    return request.computed_tokens < request.prompt_tokens, request.arrival_s + within_s


class Deadlines(kvsim.CustomPolicy):
    """Serve answers first, then as much of the most urgent prompts as the time of a step leaves room for."""

    name = "deadlines"

    def schedule(self, step):
        """Decode, then compute prompts in order of their deadlines."""
        for request in sorted([*step.running, *step.waiting], key=urgency):
            is_prompt, _ = urgency(request)
            num_tokens = self.room(step, request) if is_prompt else 1
            is_served = num_tokens > 0 and request not in step.preempted and self.serve(step, request, num_tokens)
            if is_prompt and not is_served:
                break

    def serve(self, step, request, num_tokens):
        """Compute or admit a request; while the pool is full, preempt the least urgent one for it."""
        needed = -(-(request.computed_tokens + num_tokens) // self.unit_tokens) - request.num_units
        while not (step.compute if request in step.running else step.admit)(request, num_tokens):
            victim = max(step.running, key=urgency, default=request)
            if step.num_free_units >= needed or urgency(victim) <= urgency(request):
                return False
            step.preempt(victim)
        return True

    def room(self, step, request):
        """Return the most tokens of a prompt with which the step is short enough, a multiple of 64."""
        low, high = 0, -(-min(step.tokens_left, request.known_tokens) // 64) + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if step.cost_s({request: 64 * middle}) <= LONGEST_STEP_S else (low, middle)
        return 64 * low or (64 if not step.running else 0)


def main(num_requests=120, num_blocks=12000):
    """Serve questions and documents under both rules."""
    short, long = (
        kvsim.generate(
            size, arrivals=kvsim.Poisson(rate_per_s=rate), prompt=kvsim.Uniform(low=low, high=high), output=100, seed=1
        )
        for size, rate, low, high in ((num_requests, 8, 50, 500), (num_requests // 6, 1.3, 6000, 16000))
    )
    requests = kvsim.Workload(
        arrival_s=[*short.arrival_s, *long.arrival_s],
        prompt_tokens=[*short.prompt_tokens, *long.prompt_tokens],
        output_tokens=[*short.output_tokens, *long.output_tokens],
    )
    machine = kvsim.machine("H100/Llama-3.1-8B-Instruct", num_blocks=num_blocks)
    return kvsim.compare(requests, [kvsim.Paged(), Deadlines()], machine, engine="interpreted")


def num_late(run):
    """Count the requests whose first token came after its deadline."""
    within_s = [1.0 if tokens < 2000 else 10.0 for tokens in run.requests.prompt_tokens]
    return (run.requests["ttft_s"] > within_s).sum()


if __name__ == "__main__":
    for name, run in main().items():
        tpot_ms = 1e3 * run.summary().tpot_s.p99
        print(f"{name:10} {num_late(run):3} first tokens late; TPOT {tpot_ms:.1f} ms (99th percentile)")
