"""Constants of the host's part of vLLM's steps, for step times from a machine card.

Most are multiples of `Card.launch_s`, the time in which the host launches one kernel. Unless a text names another
source, they come from a profiler, or from the steps of vLLM 0.25.1 with seven shapes of models on an H100 and on H200s.
"""

PREPARE_LAUNCHES = 265
"""Host time of a step apart from its layers (scheduling, inputs, sampling), in multiples of `Card.launch_s`."""
SAMPLING_SHARE = 0.4
"""Part of the host time of a step and of its sequences in which the host launches sampling, after the first kernel.

The GPU computes at this time, so a server without asynchronous scheduling waits only for the other part. The value was
fitted to decodes of Llama-3-8B on three H200s, and checked with five other models (`docs/accuracy.md`). Timers around
vLLM's calls show 0.42 for one sequence. Worker processes of several GPUs and data-parallel ranks were not measured;
they have no such part.
"""
PIECEWISE_LAUNCHES = {"attention": 24, "latent": 39, "recurrent": 168, "delta net": 345}
"""Host time to launch one layer of a captured step with prompt tokens, in multiples of `Card.launch_s`.

In a step with prompt tokens, attention runs between captured pieces.
"""
EAGER_LAUNCHES = {"attention": 78, "latent": 132, "recurrent": 252, "delta net": 790, "experts": 33}
"""Host time to launch one compiled layer kernel by kernel, in multiples of `Card.launch_s`.

"experts" is added for a layer with experts. It is about the mean of two models on one H200: a layer of Qwen3-30B-A3B
took 48 more than a layer of Llama-3-8B, and a layer of Mixtral-8x7B took 17 more. "delta net" includes all host time of
Qwen3-Next that nothing else explains. It comes from two loads with 12 layers on one H100, while other engines ran on
the same host. Its cause is not known: the gated delta nets, or the 512 experts of every layer.
"""
DIVIDED_EXPERT_LAUNCHES = 85
"""Value of "experts" in `EAGER_LAUNCHES` if the experts are divided among several GPUs.

Steps of 257 to 1,024 tokens of Mixtral-8x7B with 16 layers took 23 ms on two H100s whose host launches a kernel in 6.8
us, and 27 ms on two of another machine. The time did not depend on the number of tokens. The kernels take half of this
time. What the additional host time consists of was not profiled.
"""
UNCOMPILED_SHARE = 0.8
"""Host time to launch a layer that is not compiled, relative to its `EAGER_LAUNCHES`."""
SEQUENCE_LAUNCHES = 2.4
"""Host time of a step per sequence, in multiples of `Card.launch_s`."""
TOKEN_LAUNCHES = 0.05
"""Host time of a step per prompt token, in multiples of `Card.launch_s`."""
NEW_SEQUENCE_LAUNCHES = 8
"""Host time of a step per sequence that joins the batch, in multiples of `Card.launch_s`."""
STATE_TABLE_LAUNCHES = 10
"""Host time of a step per block table of recurrent states, in multiples of `Card.launch_s`."""
STATE_TABLE_SEQUENCE_LAUNCHES = 0.3
"""Host time of a step per sequence and block table of recurrent states, in multiples of `Card.launch_s`.

The states of each sequence are looked up in every table. Measured in decodes of Granite 4.0 H Micro, which has nine
tables. Block tables of sliding windows cost almost nothing.
"""
TURNAROUND_LAUNCHES = 13
"""Host time per step from an output to the next scheduling decision, in multiples of `Card.launch_s`."""
TURNAROUND_SEQUENCE_LAUNCHES = 0.5
"""Host time per sequence from an output to the next scheduling decision, in multiples of `Card.launch_s`."""
REQUEST_LAUNCHES = 20
"""Host time to receive one request, in multiples of `Card.launch_s`."""
REQUEST_TOKEN_LAUNCHES = 0.025
"""Host time to receive a request, per prompt token, in multiples of `Card.launch_s`."""
WOKEN = 1.2
"""Host time of a host that sleeps in every step until its GPU is done, relative to a host that never sleeps.

It applies to all host times, because the host wakes with cold caches and shares its core. It was 1.17, 1.2 and 1.26 on
three machines whose engines had a process of their own.
"""
WOKEN_IN_PROCESS = 1.45
"""Value of `WOKEN` for an engine in the same process as its client.

The value comes from launch times of models of 3B to 14B, divided by those of a 350M model, whose host never sleeps.
This ratio was 1.3 to 1.6 on six machines, and 1.1 on two others. In such a process, one pass of a loop of plain Python
took 13 us in some seconds and 23 us in other seconds.
"""
MXFP4_EXPERT_LAUNCHES = 136
"""Value of "experts" in `EAGER_LAUNCHES` for weights in mxfp4, whose kernels are launched from Python.

Steps of 1,025 to 1,536 tokens of gpt-oss-20b took the host of one H200 48 ms, with the engine in the client's process.
No other machine was measured.
"""
EXCHANGED_TENSORS = 4
"""Number of tensors that ranks exchange for one layer of experts.

Three are exchanged before the experts (activations, chosen experts and their weights), and one after the experts (the
sum).
"""
EXCHANGE_LAUNCHES = 6
"""Host time to exchange one tensor of one rank, in multiples of `Card.launch_s`, if ranks differ in tokens.

vLLM then calls NCCL once for each rank and tensor. The value comes from one run of Qwen3-30B-A3B on two H100s, on a
host that was not measured. With four ranks, predicted steps are 11 % too long at light load. Under load, they are as
long as those of the slowest of four hosts (`docs/fleets.md`). In a loop without an engine, the calls take two to three
times `Card.launch_s` (`benchmarks/exchange.py`).
"""
WORKER_STEP_S = 0.28e-3
"""Seconds to send a step to the worker processes of several GPUs, and to send its output back."""
WORKER_SEQUENCE_LAUNCHES = 0.75
"""Time per sequence in which a worker process prepares a step, in multiples of `Card.launch_s`.

It was 3 to 8 us in two engines. The GPU waits for it, unless it still computes the step before.
"""
