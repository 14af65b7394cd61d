"""Rows of a training batch as a recording, to show padding and packing with the same pictures as a server's pool.

Each step writes one sequence into a row; the empty slots of a row are padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvsim.errors import UsageError
from kvsim.memory.packing import first_fit_decreasing, padded
from kvsim.recording import Meta, Pool
from kvsim.recording.builder import RecordingBuilder

if TYPE_CHECKING:
    from kvsim.recording import Recording
    from kvsim.simulation import Machine
    from kvsim.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRows:
    """Layout of a training batch: one sequence per row, or, if `packed`, as many sequences per row as fit.

    A row is as wide as the longest sequence with its end token.
    """

    PADDED: ClassVar[str] = "padded"
    PACKED: ClassVar[str] = "packed"
    packed: bool

    def record(self, workload: Workload, machine: Machine) -> Recording:
        """Record how every prompt, its answer and an end token are written into the token slots of `machine`.

        Each step takes a nominal second, because the recording format needs times.

        Raises:
            UsageError: the rows need more slots than `machine` has.
        """
        lengths = (workload.prompt_tokens + workload.output_tokens).tolist()
        width = max(lengths) + 1
        # Both layouts place the sequences in the same order, so that their steps can be compared.
        order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
        packing = first_fit_decreasing(lengths, width) if self.packed else padded(lengths, len(lengths))
        rows = packing.rows if self.packed else [[index] for index in order]
        num_slots = machine.kv_bytes // machine.model.kv_bytes_per_token
        if packing.num_slots > num_slots:
            raise UsageError(f"{packing.num_slots} slots are needed for the rows, and there are {num_slots}.")

        address_of, padding_after = {}, {}
        for row, members in enumerate(rows):
            address = row * width
            for index in members:
                address_of[index] = address
                address += lengths[index] + 1
            if address < (row + 1) * width:
                padding_after[members[-1]] = (f"padding of row {row + 1}", address, (row + 1) * width - address)

        builder = RecordingBuilder()
        requests = {
            index: builder.arrived(workload.ids[index], 0.0, length + 1, 1) for index, length in enumerate(lengths)
        }
        free = num_slots
        for step, index in enumerate(order):
            extents = [(requests[index], address_of[index], lengths[index] + 1)]
            if index in padding_after:
                name, address, length = padding_after[index]
                # The padding is a request without a prompt, so all tokens that it computes count as padding.
                extents.append((builder.arrived(name, float(step), 0, 0), address, length))
            free -= sum(length for _, _, length in extents)
            _lay(builder, extents, step, len(order), free)
        meta = Meta(
            source="simulation",
            engine={},
            gpu=machine.gpu.name,
            model={"name": machine.model.name},
            policy={"name": "static", "row_tokens": width},
            pool=Pool(unit_tokens=1, num_units=num_slots, bytes_per_unit=machine.model.kv_bytes_per_token),
        )
        return builder.finish(meta, self.PACKED if self.packed else self.PADDED)


def _lay(
    builder: RecordingBuilder, extents: list[tuple[int, int, int]], step: int, num_sequences: int, free_slots: int
) -> None:
    """Record a step that writes `extents`, each (request, address, length): a sequence, then its padding.

    `num_sequences` is the number of all sequences, and `free_slots` that of slots that are free after the step.
    """
    builder.begin_event()
    for request, address, length in extents:
        builder.append_extent(request, position=0, address=address, length=length, requested=length)
        builder.scheduled(request, 0, length, float(step))
    builder.step(
        start_s=float(step), prefill_tokens=sum(length for _, _, length in extents), decode_tokens=0,
        num_scheduled=len(extents), running=step + 1, waiting=num_sequences - step - 1, preempted=0,
        free_units=free_slots, cached_units=0, unusable_units=0,
    )  # fmt: skip
    builder.begin_event()
    builder.output(step, step + 1.0)
    builder.emitted(extents[0][0], step + 1.0)
