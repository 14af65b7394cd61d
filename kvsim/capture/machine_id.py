"""Identity of the machine of a recording. It tells two machines apart, but describes neither."""

from __future__ import annotations

from hashlib import sha256


def machine() -> dict[str, str]:
    """Return the entry "machine" of a recording's metadata: eight hexadecimal digits that identify the GPU.

    Empty without a GPU, or if its UUID is unknown.
    """
    import torch  # noqa: PLC0415  a process that records has it; the caller may say better what is missing

    if not torch.cuda.is_available():
        return {}
    uuid = getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", None)
    return {} if uuid is None else {"machine": sha256(str(uuid).encode()).hexdigest()[:8]}
