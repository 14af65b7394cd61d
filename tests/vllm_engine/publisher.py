"""vLLM's or SGLang's own publisher of KV events: it publishes what the lines of its input say.

Run with vLLM's files and kvsim on the path, with the port of the events and that of the replays, 0 for none, the
data-parallel rank, and the file of SGLang's publisher if that one publishes. Every line
of its input is a JSON object: `stored`, blocks behind `parent`; `removed`, blocks; `cleared`; `mute`, whether batches
go into the buffer alone, as if the network had lost them; `skip`, a number of batches that are in no buffer either.
Every line of its output answers one.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from types import ModuleType
from typing import Any


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    port, replay, rank = map(int, sys.argv[1:4])
    server = _sglang(sys.argv[4]) if len(sys.argv) > 4 else _vllm()
    publisher = server.ZmqEventPublisher(
        rank, f"tcp://*:{port}", f"tcp://*:{replay}" if replay else None, buffer_steps=20, topic="kv"
    )
    fields = inspect.signature(server.BlockStored).parameters
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
            events.append(server.BlockStored(**{name: value for name, value in stored.items() if name in fields}))
        if "removed" in order:
            events.append(server.BlockRemoved(block_hashes=order["removed"], medium="GPU"))
        if "cleared" in order:
            events.append(server.AllBlocksCleared())
        if events:
            number += 1
            publisher.publish(server.KVEventBatch(ts=float(number), events=events))
            publisher._event_queue.join()
        answers.write("done\n")
        answers.flush()
    publisher.shutdown()


def _vllm() -> Any:
    from kvsim.conformance import vllm_driver  # first of all that imports vLLM

    # isort: split
    from vllm.distributed import kv_events

    assert vllm_driver
    return kv_events


def _sglang(file: str) -> Any:
    """Load one file of SGLang; what it imports of the others is for servers that advertise their publishers."""
    for module, name in (
        ("sglang.srt.runtime_context", "get_parallel"),
        ("sglang.srt.utils.network", "NetworkAddress"),
    ):
        sys.modules[module] = ModuleType(module)
        setattr(sys.modules[module], name, None)
    spec = importlib.util.spec_from_file_location("sglang_kv_events", file)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


class _Mute:
    def send_multipart(self, parts: Any) -> None:
        """Send nothing."""

    def close(self, linger: int) -> None:
        """Close nothing."""


if __name__ == "__main__":
    main()
