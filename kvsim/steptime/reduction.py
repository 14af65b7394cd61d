"""Coefficients of a `Roofline`, computed from a machine card and the shape of a model.

A step consists of matrix products at its size, attention, small kernels that read and write activations, all-reduces
between GPUs, and the output projection for every sequence. Host times are multiples of the time to launch one kernel.

A host that sleeps until its GPU is done is slower afterwards. So the times are computed in two parts: those of a host
that never sleeps (`never_asleep`), and their conversion to a host that may sleep (`on_machine`).
"""

from __future__ import annotations

from dataclasses import replace
from math import hypot
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.steptime.curves import AttentionCost, attention_cost, experts_s, product_curve, reduce_s
from kvsim.steptime.encoder import encoder_coefficients
from kvsim.steptime.host_constants import (
    DIVIDED_EXPERT_LAUNCHES,
    EAGER_LAUNCHES,
    EXCHANGE_LAUNCHES,
    EXCHANGED_TENSORS,
    MXFP4_EXPERT_LAUNCHES,
    NEW_SEQUENCE_LAUNCHES,
    PIECEWISE_LAUNCHES,
    PREPARE_LAUNCHES,
    REQUEST_LAUNCHES,
    REQUEST_TOKEN_LAUNCHES,
    SAMPLING_SHARE,
    SEQUENCE_LAUNCHES,
    STATE_TABLE_LAUNCHES,
    STATE_TABLE_SEQUENCE_LAUNCHES,
    TOKEN_LAUNCHES,
    TURNAROUND_LAUNCHES,
    TURNAROUND_SEQUENCE_LAUNCHES,
    UNCOMPILED_SHARE,
    WOKEN,
    WOKEN_IN_PROCESS,
    WORKER_SEQUENCE_LAUNCHES,
    WORKER_STEP_S,
)
from kvsim.steptime.kernel_constants import (
    ELEMENT_SHARE,
    EXPERT_ARITHMETIC_SHARE,
    EXPERT_READ_SHARE,
    EXPERT_S,
    FOUR_BIT_SHARE,
    FP8_MIXED_SHARE,
    FP8_PAIR_RATIO,
    FP8_QUERY_S,
    FP8_READ_RATIO,
    FP8_SEQUENCE_RATIO,
    PIECE_S,
    PLAIN_KERNELS,
    REDUCE_WAIT_S,
    SAMPLED_BYTES,
    SMALL_KERNEL,
    SPLIT_ELEMENT_S,
    SPLIT_S,
    STEP_KERNELS,
)
from kvsim.steptime.overheads import GPT_OSS_CAPTURED_TOKENS, MAX_CAPTURED_TOKENS, SHARED_SAVING, THROTTLE_SHARE
from kvsim.steptime.pace import WORKER_COEFFICIENTS, Pace, at_pace
from kvsim.steptime.ranks import GROUP_SIZES, RankTimes
from kvsim.steptime.roofline import Roofline
from kvsim.steptime.shapes import StepShape
from kvsim.steptime.sizes import NUM_SIZES, SIZE_OF_PLACE
from kvsim.steptime.work import on_stage, work_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.models import Model
    from kvsim.steptime.card import Card, SparseAttention
    from kvsim.steptime.work import AttentionKind, Weights, Work

_ACTIVATION_BYTES = 2
_LARGE = (1024, 2048, 4096, 8192, 16384)
"""Sizes of steps in tokens. The time per token in large steps is fitted to the times at these sizes."""
_SMALL_BATCH, _LARGE_BATCH = 16, 256
"""Numbers of sequences of a small and of a large decode step.

The time of the output projection is assumed to grow linearly between the two. `on_machine` computes from the small step
how long a host sleeps.
"""


def reduce(card: Card, model: Model, *, num_processors: int = 132, in_process: bool = False) -> Roofline:
    """Return the step times of vLLM with `model` on the machine of `card`.

    `num_processors` is the number of streaming multiprocessors of each GPU. `in_process` is True for an engine in the
    same process as its client.
    """
    awake = never_asleep(card, model, num_processors=num_processors)
    return on_machine(awake, card.launch_s, card.factors, in_process=in_process)


def reduce_ranks(card: Card, model: Model, *, num_processors: int = 132) -> RankTimes:
    """Return the step times of data-parallel ranks that share the experts of `model`; see `reduce`.

    In layers with experts, an all-gather and a reduce-scatter over all ranks replace the all-reduce after the experts.
    The ranks of a server share a host. This host is assumed to be as slow as that of an engine in its client's process.
    """
    work = work_of(model)
    without_experts = replace(work, expert_weights=0, num_reduces=max(work.num_reduces - work.expert_layers, 0))
    awake = _never_asleep(card, model, without_experts, num_processors)
    experts, seconds = _experts_curve(card, work), []
    for tokens in GROUP_SIZES:
        exchanged_s = reduce_s(card.exchange, tokens * _ACTIVATION_BYTES * model.hidden_size) + 2 * REDUCE_WAIT_S
        seconds.append(experts(tokens) + work.expert_layers * exchanged_s)
    # The GPU's time with experts decides how long the host sleeps.
    experts_s = float(np.interp(_SMALL_BATCH * model.data_parallel_size, GROUP_SIZES, seconds))
    asleep = replace(awake, step_s=awake.step_s + experts_s)
    own = on_machine(asleep, card.launch_s, card.factors, in_process=True)
    # Hosts of ranks wait for each other. How much of their time follows the first kernel was not measured.
    own = replace(own, step_s=awake.step_s * card.factors.get("gpu", 1.0), sampling_share=0.0)
    host = own.turnaround_step_s / awake.turnaround_step_s
    exchanges = work.expert_layers * EXCHANGED_TENSORS * model.data_parallel_size
    return RankTimes(
        label=awake.label,
        own=own,
        num_ranks=model.data_parallel_size,
        group_s=tuple(seconds),
        unequal_s=exchanges * EXCHANGE_LAUNCHES * card.launch_s * host,
    )


def reduce_stages(
    card: Card, model: Model, shares: Sequence[float], *, num_processors: int = 132, in_process: bool = False
) -> tuple[Roofline, ...]:
    """Return the step times of all stages of a pipeline; see `reduce`.

    `shares` has each stage's share of all layers. Each stage but the first receives two activations per token (hidden
    state and residual). The transfer is assumed to take as long as an all-reduce of the same size on the card.
    """
    work, stages = work_of(model), []
    handed_over_s, handed_over_token_s = _hand_over(card, 2 * _ACTIVATION_BYTES * model.hidden_size)
    for index, share in enumerate(shares):
        of_stage = on_stage(work, share, is_first=index == 0, is_last=index == len(shares) - 1)
        awake = _never_asleep(card, model, of_stage, num_processors)
        times = on_machine(awake, card.launch_s, card.factors, in_process=in_process, is_stage=True)
        if index > 0:
            times = replace(times, handed_over_s=handed_over_s, handed_over_token_s=handed_over_token_s)
        stages.append(times)
    return tuple(stages)


def _hand_over(card: Card, token_bytes: int) -> tuple[float, float]:
    """Return the seconds per step and the seconds per token to send activations to the next stage.

    The seconds per step are those of the smallest measured all-reduce. The seconds per token follow from the rate of
    the largest one.
    """
    (_, smallest_s), *_, (largest_bytes, largest_s) = card.all_reduce
    return smallest_s, token_bytes * largest_s / largest_bytes


def never_asleep(card: Card, model: Model, *, num_processors: int = 132) -> Roofline:
    """Return the step times for a host that never sleeps while it waits for the GPU, without the factors of `card`.

    See `on_machine` for these factors.
    """
    return _never_asleep(card, model, work_of(model), num_processors)


def _never_asleep(card: Card, model: Model, work: Work, num_processors: int) -> Roofline:
    """Return the step times of `never_asleep` for `work`, which may be a part of the model's work."""
    table, token_s, weights = _by_size(card, work)
    costs = _attention_costs(card, work, num_processors)
    dense = [reading for reading, _ in costs]
    widest = max(costs, key=lambda item: item[0].num_layers * item[0].bytes_per_token, default=None)
    output_s = logits_s = 0.0
    if work.output is not None:
        projection_s = product_curve(card.products["bfloat16"], *work.output)
        output_s = projection_s(_SMALL_BATCH)
        more_s = max(projection_s(_LARGE_BATCH) - output_s, 0.0)
        logits_s = more_s / (_LARGE_BATCH - _SMALL_BATCH) + SAMPLED_BYTES * work.output.n / card.read_bytes_per_s
    if card.delta_net is None:
        state_s = 2 * work.state_bytes / card.copy_bytes_per_s  # each state is read and written
    else:  # `_layers_s` has the cost of a token
        state_s = work.num_recurrent_layers * (card.delta_net.sequence_s - card.delta_net.token_s)
    attention_s = sum(
        reading.num_layers * (cost.step_s + SPLIT_S + FP8_QUERY_S * reading.is_fp8) for reading, cost in costs
    )
    split_s = sum(reading.num_layers * reading.num_heads * reading.head_dim * SPLIT_ELEMENT_S for reading in dense)
    times = Roofline(
        label=f"card of {card.gpu} with {model.name}",
        **_host(card.launch_s, work),
        new_shape_s=0.0,
        new_kernel_s=0.0,
        max_captured_tokens=_most_captured_tokens(model),
        step_s=attention_s + STEP_KERNELS * card.kernel_s + output_s,
        **weights,
        token_s=token_s,
        logits_s=0.0,
        exposed_share=0.0,
        sequence_s=sum(_sequence_s(*item) for item in costs) + split_s + logits_s + state_s,
        context_token_s=sum(_read_s(*item) for item in costs if not item[0].window),
        window_tokens=float(max((reading.window for reading, _ in costs), default=0)),
        window_token_s=sum(_read_s(*item) for item in costs if item[0].window),
        lone_share=widest[1].lone_share if widest else 0.0,
        full_seqs=num_processors / (widest[0].num_kv_heads if widest else 1),
        shared_saving=SHARED_SAVING,
        piecewise_s=PIECE_S * work.num_layers,
        attention_pair_s=sum(_pair_s(*item) for item in costs if not item[0].window),
        window_pair_s=sum(_pair_s(*item) for item in costs if item[0].window),
        mixed_share=widest[1].mixed_share + FP8_MIXED_SHARE * widest[0].is_fp8 if widest else 0.0,
        throttle_share=0.0,
        power_share=THROTTLE_SHARE,
        **(encoder_coefficients(card, work.vision, work.tensor_parallel_size) if work.vision else {}),
        of_size_s=tuple(table),
    )
    num_sparse = sum(reading.num_layers for reading in work.readings) - sum(reading.num_layers for reading in dense)
    return times if card.sparse is None else _with_sparse(times, card.sparse, num_sparse)


def _most_captured_tokens(model: Model) -> int:
    return GPT_OSS_CAPTURED_TOKENS if model.architecture == "GptOssForCausalLM" else MAX_CAPTURED_TOKENS


def _attention_costs(card: Card, work: Work, num_processors: int) -> list[tuple[AttentionKind, AttentionCost]]:
    """Return each kind of attention with its coefficients, without sparse attention if the card has times for it.

    If the card's times are already those of an fp8 cache, `is_fp8` of the returned kind is False, so that they are not
    scaled again.
    """
    costs = []
    for reading in work.readings:
        if reading.is_sparse and card.sparse is not None:
            continue
        cost = attention_cost(card, reading, num_processors)
        is_measured = card.has_fp8_attention
        if reading.is_latent and card.latent is not None:
            is_measured = True
            byte_s = card.latent.token_s / reading.bytes_per_token
            flop_s = card.latent.pair_s / (4 * reading.num_heads * reading.query_dim)
            cost = cost._replace(sequence_s=card.latent.sequence_s, byte_s=byte_s, flop_s=flop_s)
        costs.append((replace(reading, is_fp8=reading.is_fp8 and not is_measured), cost))
    return costs


def _with_sparse(times: Roofline, sparse: SparseAttention, num_layers: float) -> Roofline:
    """Return `times` with `num_layers` layers of sparse attention. Selected tokens are read like a window."""
    return replace(
        times,
        step_s=times.step_s + num_layers * sparse.step_s,
        sequence_s=times.sequence_s + num_layers * sparse.sequence_s,
        context_token_s=times.context_token_s + num_layers * sparse.token_s,
        window_tokens=float(sparse.selected_tokens),
        window_token_s=num_layers * sparse.selected_token_s,
        attention_pair_s=times.attention_pair_s + num_layers * sparse.pair_s,
        window_pair_s=num_layers * sparse.selected_pair_s,
    )


def on_machine(
    awake: Roofline, launch_s: float, factors: Mapping[str, float], *, in_process: bool = False, is_stage: bool = False
) -> Roofline:
    """Convert times for a host that never sleeps to times on a machine whose host sleeps while it waits for the GPU.

    A host that has slept is slower. Its slowdown follows from a decode step with a small batch. If this step takes an
    awake host longer than the GPU, the host never sleeps. If it takes longer only on a slowed host, the slowdown is
    reduced until host and GPU take equally long.

    Args:
        awake: times without sleep, from a card without factors.
        launch_s: seconds in which the host launches one kernel.
        factors: factors of the machine's card.
        in_process: True for an engine in the same process as its client.
        is_stage: True for a pipeline stage. Its worker waits for other stages, so that it sleeps like the scheduler.
    """
    host = factors.get("host", 1.0)
    times = at_pace(Pace(host=host, gpu=factors.get("gpu", 1.0)), awake)
    per_sequence = SEQUENCE_LAUNCHES + TURNAROUND_SEQUENCE_LAUNCHES
    launches = PREPARE_LAUNCHES + TURNAROUND_LAUNCHES + _SMALL_BATCH * per_sequence
    decode_s = times.step_time(StepShape(_SMALL_BATCH, _SMALL_BATCH, 0, 0, 0)).gpu_s
    usual = WOKEN_IN_PROCESS if in_process else WOKEN
    slowdown = max(min(decode_s / (launches * host * launch_s), usual * factors.get("woken", 1.0)), 1.0)
    woken = at_pace(Pace(host=slowdown), times)
    if is_stage:
        return woken
    # A worker never shares a process with the client, so its slowdown is at most that of a separate process.
    workers = at_pace(Pace(host=min(slowdown, WOKEN * factors.get("woken", 1.0))), times)
    of_workers: dict[str, Any] = {name: getattr(workers, name) for name in WORKER_COEFFICIENTS}
    return replace(woken, **of_workers)


def _by_size(card: Card, work: Work) -> tuple[list[float], float, dict[str, Any]]:
    """Return `Roofline.of_size_s`, `Roofline.token_s`, and the coefficients for reading weights by field."""
    products = [(count, _product_curve(card, work, weights)) for weights, count in work.products.items()]
    experts = _experts_curve(card, work)

    def layers_s(m: int) -> float:
        return _layers_s(card, work, m, sum(count * curve(m) for count, curve in products)) + experts(m)

    large = np.array([layers_s(m) for m in _LARGE])
    token_s = float(np.polyfit(_LARGE, large, 1, w=1 / large)[0])
    weights = _weights(layers_s, has_experts=work.expert_layers > 0)
    table = [0.0] * NUM_SIZES
    for place, tokens in SIZE_OF_PLACE.items():
        table[place] = layers_s(tokens) - max(weights["weights_s"], token_s * tokens)
    return table, token_s, weights


def _weights(layers_s: Callable[[int], float], *, has_experts: bool) -> dict[str, Any]:
    """Return the coefficients of a `Roofline` for reading weights, by field.

    `layers_s(n)` is the time of all layers for n tokens. With experts, `layers_s(2) - layers_s(1)` is the time to read
    the experts of one more token, because two tokens share few experts.
    """
    one_s = layers_s(1)
    if not has_experts:
        return {"weights_s": one_s, "active_weights_s": one_s}
    another_s = layers_s(2) - one_s
    return {
        "weights_s": layers_s(SIZE_OF_PLACE[0]),
        "active_weights_s": another_s,
        "shared_weights_s": one_s - another_s,
    }


def _layers_s(card: Card, work: Work, m: int, products_s: float) -> float:
    """Return the seconds of all layers without attention and experts, for `m` tokens.

    They include `products_s`, the seconds of all matrix products.
    """
    small_s = work.num_small_kernels * SMALL_KERNEL * card.kernel_s
    elements_s = m * work.element_bytes / (ELEMENT_SHARE * card.read_bytes_per_s)
    reduced_s = 0.0
    if work.num_reduces:
        reduced_s = work.num_reduces * (reduce_s(card.all_reduce, m * work.reduced_bytes) + REDUCE_WAIT_S)
    recurrent_s = m * work.num_recurrent_layers * card.delta_net.token_s if card.delta_net is not None else 0.0
    return products_s + small_s + elements_s + recurrent_s + reduced_s


def _product_curve(card: Card, work: Work, weights: Weights) -> Callable[[int], float]:
    """Return a function that maps a number of tokens to the seconds of their product with the matrix `weights`.

    Products in fp8 and nvfp4 take the times of the card if it has such products. Without them, fp8 takes the times of
    bf16. All other weights with fewer than 16 bits are multiplied in bf16, but are read in less time.
    """
    plain = product_curve(card.products["bfloat16"], weights.n, weights.k)
    if work.weight_bits >= 16:
        return plain
    if work.product_type != "bfloat16" and work.product_type in card.products:
        return product_curve(card.products[work.product_type], weights.n, weights.k)
    if work.product_type == "fp8":
        return plain
    one_s = plain(1)  # the time of reading the weights in 16 bits
    streamed_s = one_s * work.weight_bits / 16 / FOUR_BIT_SHARE
    return lambda m: max(streamed_s, plain(m) - one_s + streamed_s)


def _experts_curve(card: Card, work: Work) -> Callable[[int], float]:
    """Return a function that maps a number of tokens to the seconds of the experts in all layers.

    Tokens choose experts at random. The weights of an expert are read if any token chooses it.
    """
    if not work.expert_weights:
        return lambda m: 0.0  # noqa: ARG005
    if (measured := card.experts) is not None:
        return lambda m: work.expert_layers * experts_s(measured, m, work.num_experts, work.num_experts_per_token)
    rate = EXPERT_ARITHMETIC_SHARE * _flops_per_s(card, "fp8" if 8 <= work.expert_bits < 16 else "bfloat16")

    def seconds(m: int) -> float:
        # The share of experts that none of `m` tokens reaches, if each token is routed at random.
        share_missed = (1 - work.num_experts_per_token / work.num_experts) ** m
        reached = work.num_experts * (1 - share_missed)
        streamed_s = reached * work.expert_weights * work.expert_bits / 8 / (EXPERT_READ_SHARE * card.read_bytes_per_s)
        computed_s = 2 * m * work.num_experts_per_token * work.expert_weights / rate
        return work.expert_layers * (EXPERT_S + hypot(streamed_s, computed_s))

    return seconds


def _flops_per_s(card: Card, dtype: str) -> float:
    """Return the highest FLOP/s of the measured products in `dtype` with the largest number of rows.

    If the card has no products in `dtype`, those in bfloat16 are used.
    """
    products = card.products.get(dtype, card.products["bfloat16"])
    size = products.sizes[-1]
    return max(2 * size * n * k / row[-1] for (n, k), row in zip(products.shapes, products.seconds, strict=True))


def _read_s(reading: AttentionKind, cost: AttentionCost) -> float:
    """Return the seconds to read the keys and values of one token in all layers of the kind `reading`."""
    slower = FP8_READ_RATIO if reading.is_fp8 else 1.0
    return reading.num_layers * reading.bytes_per_token * cost.byte_s * slower


def _sequence_s(reading: AttentionKind, cost: AttentionCost) -> float:
    """Return the seconds per sequence in all layers of the kind `reading`, without reading keys and values."""
    return reading.num_layers * cost.sequence_s * (FP8_SEQUENCE_RATIO if reading.is_fp8 else 1.0)


def _pair_s(reading: AttentionKind, cost: AttentionCost) -> float:
    """Return the seconds per pair of a query in a prompt and a key, in all layers of the kind `reading`."""
    slower = FP8_PAIR_RATIO if reading.is_fp8 else 1.0
    return reading.num_layers * 4 * reading.num_heads * reading.query_dim * cost.flop_s * slower


def _expert_launches(work: Work) -> int:
    """Return the host time to launch the experts of one layer kernel by kernel, in multiples of `Card.launch_s`."""
    if work.has_mxfp4_experts:
        return MXFP4_EXPERT_LAUNCHES
    return DIVIDED_EXPERT_LAUNCHES if work.divides_experts else EAGER_LAUNCHES["experts"]


def _host(launch_s: float, work: Work) -> dict[str, Any]:
    """Return the host's coefficients of a `Roofline`, by field. The host launches one kernel in `launch_s`.

    With several GPUs, worker processes prepare and launch steps while the scheduler continues. If a step is not one
    captured graph, its GPU time is then at least the time to launch it and to prepare the next step.
    """
    plain_layers = max(work.num_layers - work.num_latent_layers - work.num_recurrent_layers, 0)
    has_workers = work.has_workers
    layers = {
        "attention": plain_layers * work.num_kernels_of_attention_layer / PLAIN_KERNELS,
        "latent": work.num_latent_layers,
        "recurrent": work.num_recurrent_layers - work.num_delta_nets,
        "delta net": work.num_delta_nets,
        "experts": work.expert_layers,
    }
    eager = EAGER_LAUNCHES | {"experts": _expert_launches(work)}
    piecewise_s, eager_s = (
        launch_s * sum(layers[kind] * count for kind, count in counts.items()) for counts in (PIECEWISE_LAUNCHES, eager)
    )
    prepare_s = (PREPARE_LAUNCHES + work.num_state_tables * STATE_TABLE_LAUNCHES) * launch_s
    of_states = work.num_state_tables * STATE_TABLE_SEQUENCE_LAUNCHES
    return {
        "request_s": REQUEST_LAUNCHES * launch_s,
        "request_token_s": REQUEST_TOKEN_LAUNCHES * launch_s,
        "host_step_s": WORKER_STEP_S if has_workers else prepare_s,
        "host_sequence_s": 0.0 if has_workers else (SEQUENCE_LAUNCHES + of_states) * launch_s,
        "sampling_share": 0.0 if has_workers else SAMPLING_SHARE,
        "host_token_s": 0.0 if has_workers else TOKEN_LAUNCHES * launch_s,
        "new_sequence_s": NEW_SEQUENCE_LAUNCHES * launch_s,
        "worker_step_s": prepare_s if has_workers else 0.0,
        "worker_sequence_s": (WORKER_SEQUENCE_LAUNCHES + of_states) * launch_s if has_workers else 0.0,
        "worker_token_s": TOKEN_LAUNCHES * launch_s if has_workers else 0.0,
        "turnaround_step_s": TURNAROUND_LAUNCHES * launch_s,
        "turnaround_sequence_s": TURNAROUND_SEQUENCE_LAUNCHES * launch_s,
        "piecewise_launch_s": 0.0 if has_workers else piecewise_s,
        "eager_launch_s": 0.0 if has_workers else eager_s,
        "uncompiled_launch_s": 0.0 if has_workers else UNCOMPILED_SHARE * eager_s,
        "piecewise_floor_s": piecewise_s + prepare_s if has_workers else 0.0,
        "eager_floor_s": eager_s + prepare_s if has_workers else 0.0,
    }
