"""vLLM's own publisher of KV events: it publishes what the lines of its input say.

Run with vLLM's files and kvsim on the path, with the port of the events and that of the replays, 0 for none. Every line
of its input is a JSON object: `stored`, blocks behind `parent`; `removed`, blocks; `cleared`; `mute`, whether batches
go into the buffer alone, as if the network had lost them; `skip`, a number of batches that are in no buffer either.
Every line of its output answers one.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    from kvsim.conformance import vllm_driver  # first of all that imports vLLM

    # isort: split
    import inspect

    from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch, ZmqEventPublisher

    assert vllm_driver
    port, replay = map(int, sys.argv[1:3])
    publisher = ZmqEventPublisher(
        0, f"tcp://*:{port}", f"tcp://*:{replay}" if replay else None, buffer_steps=20, topic="kv"
    )
    fields = inspect.signature(BlockStored).parameters
    socket, number = publisher._pub, 0
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        order, events = json.loads(line), list[Any]()
        if "mute" in order:
            publisher._event_queue.join()
            publisher._pub = _Mute() if order["mute"] else socket
        for _ in range(order.get("skip", 0)):
            next(publisher._seq_gen)
        if "stored" in order:
            hashes = order["stored"]
            stored = {"block_hashes": hashes, "parent_block_hash": order.get("parent"), "block_size": 2}
            stored |= {"token_ids": [7] * 2 * len(hashes), "lora_id": None, "medium": "GPU", "lora_name": None}
            events.append(BlockStored(**{name: value for name, value in stored.items() if name in fields}))
        if "removed" in order:
            events.append(BlockRemoved(block_hashes=order["removed"], medium="GPU"))
        if "cleared" in order:
            events.append(AllBlocksCleared())
        if events:
            number += 1
            publisher.publish(KVEventBatch(ts=float(number), events=events))
            publisher._event_queue.join()
        answers.write("done\n")
        answers.flush()
    publisher.shutdown()


class _Mute:
    def send_multipart(self, parts: Any) -> None:
        """Send nothing."""

    def close(self, linger: int) -> None:
        """Close nothing."""


if __name__ == "__main__":
    main()
