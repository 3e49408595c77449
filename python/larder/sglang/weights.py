# SPDX-License-Identifier: Apache-2.0
"""A fingerprint of a model's weights, out of its files, without reading all of them.

SHA-256 over config.json, the safetensors index, and for each file with weights its name, size, header and samples of
its content. Headers and indices of two fine-tunes of one model are alike; so the begin, the middle and the end of every
tensor are sampled, and of files without a list of tensors one piece per MiB.
Cost: three small reads per tensor, some thousands for a large model, out of the page cache when the weights have just
been loaded. An edit that changes less than whole tensors can escape: then set weights_fingerprint.
"""

import hashlib
import json
import os
from typing import Optional

_SAMPLE_BYTES = 512
_SAMPLE_STEP = 1 << 20
_MAX_SAMPLES = 65536  # per file without a list of tensors
_MAX_HEADER_BYTES = 256 << 20
_WEIGHT_ENDINGS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_DESCRIPTIONS = ("config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json", "quantize_config.json")


def weights_fingerprint(model_path: str, revision: Optional[str], every: bool = False) -> str:
    """Returns 64 hex digits. every: of files of all kinds, also where there are safetensors. Raises ValueError if there
    is nothing to make it of."""
    digest = hashlib.sha256(b"larder weights 2\n")
    try:
        if os.path.isfile(model_path):
            _add_file(digest, model_path)
            return digest.hexdigest()
        folder = model_path if os.path.isdir(model_path) else _cached_snapshot(model_path, revision)
        if folder is None:
            raise ValueError(f"{model_path!r} is no folder, and no snapshot of it is in the Hugging Face cache")
        return _of_folder(digest, folder, every)
    except OSError as error:
        raise ValueError(f"cannot read the weights of {model_path!r}: {error}") from error


def _of_folder(digest: "hashlib._Hash", folder: str, every: bool) -> str:
    names = sorted(os.listdir(folder))
    weights = [name for name in names if name.endswith(".safetensors")]
    if every or not weights:
        weights = [name for name in names if name.endswith(_WEIGHT_ENDINGS)]
    if not weights:
        raise ValueError(f"{folder!r} has no files with weights (*.safetensors, *.bin, *.gguf ...)")
    for name in names:
        if name in _DESCRIPTIONS or name.endswith(".safetensors.index.json"):
            with open(os.path.join(folder, name), "rb") as file:
                _add(digest, name.encode(), file.read())
    for name in weights:
        _add_file(digest, os.path.join(folder, name))
    return digest.hexdigest()


def _add(digest: "hashlib._Hash", *parts: bytes) -> None:
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)


def _add_file(digest: "hashlib._Hash", path: str) -> None:
    size = os.path.getsize(path)
    _add(digest, os.path.basename(path).encode(), str(size).encode())
    file = os.open(path, os.O_RDONLY)
    try:
        places = _tensor_places(digest, path, file, size) if path.endswith(".safetensors") else _even_places(size)
        for place in places:
            _add(digest, _read(file, place, _SAMPLE_BYTES))
    finally:
        os.close(file)


def _read(file: int, place: int, size: int) -> bytes:
    """Less than `size` at the end of the file. Nothing around it is read: a buffered file would fetch a whole block of
    the file system for each sample, 1 MiB and more over a network."""
    parts = []
    while size > 0:
        part = os.pread(file, size, place)
        if not part:
            break
        parts.append(part)
        place, size = place + len(part), size - len(part)
    return b"".join(parts)


def _tensor_places(digest: "hashlib._Hash", path: str, file: int, size: int) -> list[int]:
    """Where the begin, the middle and the end of each tensor lie; the header goes into the digest."""
    length = int.from_bytes(_read(file, 0, 8), "little")
    if length > min(size, _MAX_HEADER_BYTES):
        raise ValueError(f"{path!r} is no safetensors file: its header would have {length} bytes")
    header = _read(file, 8, length)
    _add(digest, header)
    try:
        tensors = json.loads(header)
        offsets = sorted(tuple(t["data_offsets"]) for name, t in tensors.items() if name != "__metadata__")
        ranges = [(8 + length + int(begin), 8 + length + int(end)) for begin, end in offsets]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path!r} is no safetensors file: its header does not list tensors") from error
    places = set()
    for begin, end in ranges:
        last = max(begin, end - _SAMPLE_BYTES)
        places |= {begin, (begin + last) // 2, last}
    return sorted(places)


def _even_places(size: int) -> list[int]:
    count = min(_MAX_SAMPLES, size // _SAMPLE_STEP + 2)
    return [max(0, size - _SAMPLE_BYTES) * i // (count - 1) for i in range(count)]


def _cached_snapshot(repository: str, revision: Optional[str]) -> Optional[str]:
    """The folder of a model that is named as on the Hugging Face hub, out of the local cache."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    try:
        found = try_to_load_from_cache(repository, "config.json", revision=revision)
    except Exception:  # no name of a repository
        return None
    return os.path.dirname(found) if isinstance(found, str) else None
