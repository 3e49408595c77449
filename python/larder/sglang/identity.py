# SPDX-License-Identifier: Apache-2.0
"""The identity text of a space: all that gives the state its meaning, besides the layouts of the pools.

Not in it: adapter (LoRA) and salt. SGLang seeds its page keys with both.
"""

import hashlib
import json
import logging
import os
import threading
import uuid
from typing import Any, Callable, Mapping, Optional

from sglang.srt import runtime_context

from larder.sglang import loaded
from larder.sglang.layouts import latent_orders
from larder.sglang.settings import Settings
from larder.sglang.weights import weights_fingerprint

logger = logging.getLogger("larder.sglang")

# Of SGLang's model configuration. The first have to be there, others may.
_MODEL_FIELDS = ("model_path", "revision", "dtype", "quantization", "kv_cache_dtype")
_OTHER_MODEL_FIELDS = (
    "json_model_override_args",
    "load_format",
    "modelopt_quant",
    "qsa_indexer_dtype",
    "quantization_param_path",
)
# Paths that take the place of the model's own files, or change what is made of them. They are in the text where they
# are set: without them it is what it was before they were known, and finds the pages that are stored.
_RARE_MODEL_FIELDS = ("decrypted_config_file", "modelopt_checkpoint_restore_path", "rl_quant_profile")
# Of the configuration of the loader of weights: an adapter that it merges into them.
_LOADER_FIELDS = ("qlora_adapter_name_or_path",)
# Ways to load the weights out of the files in the model's folder, or without any (dummy). All others have them from
# elsewhere: from another server, a database, copies in another form that were made of files of before.
_FILE_FORMATS = frozenset(
    "auto pt safetensors instanttensor dummy sharded_state gguf bitsandbytes mistral layered flash_rl jax "
    "fastsafetensors runai_streamer".split()
)
# Of the configuration of the layers with experts: other weights, of another quantization, for some of them, and whose
# work is added a layer later.
_EXPERT_FIELDS = ("kt_weight_path", "kt_method", "kt_num_gpu_experts", "kt_max_deferred_experts_per_token")
_MAX_STEP = 10_000_000  # a weight version up to this is a trainer's counter; above, it may be a time


def canonical(value: Any) -> str:
    """JSON with one spelling per value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


Weights = tuple[Any, Any, Optional[str]]  # path, revision, version
_Files = tuple[str, Optional[str], bool]  # path, revision, whether files of all kinds count


class Identity:
    """Makes the identity text, anew when SGLang's weights change at run time.

    Any thread. Construction raises ValueError, which says which key of the extra config to set.
    """

    def __init__(self, config: Any, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._fingerprints: dict[_Files, str] = {}
        self._last: tuple[Any, str] = (None, "")
        self._has_told_of_counters = False
        # Later SGLang takes new weights out of files that are new themselves.
        self._is_first_look = True
        self._fixed = {
            "engine": "sglang",
            "engine_version": settings.engine_version or _engine_version(),
            "model_name": config.model_name,
            "pp_size": config.pp_size,
            # Says nothing, and stays for the pages that are stored: which heads a page has is in its space (heads.py).
            "tp_lcm_size": None,
            "should_split_heads": False,
            "dcp": [config.dcp_rank, config.dcp_size, config.logical_page_size],
            **self._cache_scales(),
            **_stage(config),
            **({"device_layouts": layouts} if (layouts := latent_orders()) else {}),
        }
        self._require_model_fields()
        self.text()
        self.draft = self._draft()
        self._is_first_look = False

    def weights(self) -> Weights:
        """What names SGLang's weights as of now."""
        return _read("get_model", "model_path"), _read("get_model", "revision"), self._weight_version()

    def engine(self) -> Any:
        """An object that SGLang has for as long as this engine runs; None: it has none."""
        try:
            return runtime_context.get_server_args()
        except Exception:  # SGLang raises errors of several kinds
            return None

    def is_as_launched(self) -> bool:
        """Whether the weights have the version that the server was started with."""
        launched = getattr(self.engine(), "weight_version", None)
        return launched is None or str(launched) == self._weight_version()

    def text(self) -> str:
        """The text as of now: SGLang's weight version is read at each call."""
        now = self.weights()
        with self._lock:
            if self._last[0] != now:
                self._last = (now, self._make(now))
            return self._last[1]

    def _make(self, now: Weights) -> str:
        fields = {name: _plain(_read("get_model", name)) for name in _MODEL_FIELDS + _OTHER_MODEL_FIELDS}
        fields.update(_rare_fields())
        self._tell_of_counters(now[2])
        weights = self._settings.weights_fingerprint or self._fingerprint(
            now[0], now[1], "weights_fingerprint", fields["load_format"]
        )
        return canonical(
            {**self._fixed, "model": fields, "weights": weights, "weight_version": now[2]},
        )

    def _tell_of_counters(self, version: Optional[str]) -> None:
        """Once. The next run of a trainer counts from the same number, with other weights."""
        if self._has_told_of_counters or self.is_as_launched() or version is None:
            return
        if not (version.isascii() and version.isdigit() and int(version) <= _MAX_STEP):
            return
        self._has_told_of_counters = True
        logger.warning(
            "larder: the weight version %r is a bare number; another training run that counts as far has other weights "
            "under it, and would be given the pages of this one. Put the run into it, as in \"run7-%s\", or give each "
            "run a weights_fingerprint of its own", version, version,
        )  # fmt: skip

    def _draft(self) -> Optional[str]:
        """What names the draft model of speculative decoding, for pools that hold its state; None: there is none."""
        path = _read("get_spec", "speculative_draft_model_path")
        revision = _read("get_spec", "speculative_draft_model_revision")
        given = self._settings.draft_weights_fingerprint
        if path is None:
            return given
        same = path == _read("get_model", "model_path") and revision == _read("get_model", "revision")
        if given is None and same and self._settings.weights_fingerprint is not None:
            given = self._settings.weights_fingerprint
        load_format = _read("get_spec", "speculative_draft_load_format") or _read("get_model", "load_format")
        weights = given or self._fingerprint(path, revision, "draft_weights_fingerprint", load_format)
        fields = {"path": path, "revision": revision, "weights": weights}
        quantization = _read("get_spec", "speculative_draft_model_quantization")
        if quantization != _read("get_model", "quantization"):  # the target's is in the text
            fields["quantization"] = quantization
        return canonical(fields)

    def _fingerprint(self, path: Any, revision: Any, key: str, load_format: Any = None) -> str:
        elsewhere = _has_weights_from_elsewhere(load_format)
        if elsewhere is not None:
            raise ValueError(
                f"larder: with {elsewhere} SGLang may have other weights than those of the files in {str(path)!r}. "
                f"Set {key} in the extra config to a text that names the weights, another one for others."
            )
        place = (str(path), revision, _name_of(load_format) == "pt")  # beside files that others take
        if place not in self._fingerprints:
            self._fingerprints[place] = self._read_once(
                ("weights", *place), lambda: self._read_fingerprint(place), f"Set {key}"
            )
        return self._fingerprints[place]

    def _read_fingerprint(self, place: _Files) -> str:
        if self._is_first_look and self.is_as_launched() and is_attached_at_run_time():
            _require_unchanged(place[0])
        return weights_fingerprint(*place)

    def _read_once(self, what: tuple[Any, ...], read: Callable[[], str], how: str) -> str:
        """What read() gave this engine at first. Of several machines one alone may see a change, and a refusal at run
        time would let the ranks of the others wait for its ranks for ever: there it is a text that no other has, so
        that all ranks miss."""
        try:
            return loaded.once(self.engine(), what, read)
        except ValueError as error:
            message = f"larder: {error}. {how} in the extra config to a text that names the weights"
            if isinstance(error, _ChangedError) and what[0] == "weights":
                message += ", or give the update a weight_version"
            if not (self._is_first_look and is_attached_at_run_time() and machines() > 1):
                raise ValueError(f"{message}.") from error
            logger.error("%s; until then nothing is found, on any machine of the server.", message)
            return f"unknown {uuid.uuid4().hex}"

    def _cache_scales(self) -> dict[str, str]:
        """What a cache of 8-bit numbers is multiplied with, if a file says it: bytes with other scales are other
        numbers. Read once, as SGLang does at its start, whatever the weights have become since."""
        path = _read("get_model", "quantization_param_path")
        if path is None:
            return {}

        def read() -> str:
            if self._settings.weights_fingerprint is None and is_attached_at_run_time():
                _require_unchanged(str(path))
            return _digest_of(path)

        return {"cache_scales": self._read_once(("scales", str(path)), read, "Set weights_fingerprint")}

    def _require_model_fields(self) -> None:
        if self._settings.weights_fingerprint is not None:
            return  # the operator answers for the identity
        missing = [name for name in _MODEL_FIELDS if _read("get_model", name, _ABSENT) is _ABSENT]
        if self._weight_version() is None:
            missing.append("weight_version")
        if missing:
            raise ValueError(
                f"larder: SGLang's runtime context does not say {', '.join(missing)}. Set weights_fingerprint in the "
                "extra config to a text that names the model, its weights and their quantization."
            )

    def _weight_version(self) -> Optional[str]:
        version = _read("get_serving", "weight_version")
        return None if version is None else str(version)


def described(text: str) -> tuple[str, str]:
    """Model path and weight version out of an identity text, for people."""
    fields = json.loads(text)
    version = fields["weight_version"]
    return str(fields["model"]["model_path"]), "-" if version is None else str(version)


def _has_weights_from_elsewhere(load_format: Any) -> Optional[str]:
    """The option by which SGLang's weights may be others than those of the model's files; None: there is none."""
    if _read("get_model", "weight_cache_mode") == "client":  # a daemon keeps them, also when the files change
        return "--weight-cache-mode client"
    name = _name_of(load_format)
    return None if load_format is None or name in _FILE_FORMATS else f"--load-format {name}"


def _name_of(load_format: Any) -> str:
    return str(getattr(load_format, "value", load_format)).lower()


class _ChangedError(ValueError):
    """A file has changed since the process began."""


def _require_unchanged(path: str) -> None:
    changed = loaded.changed_since_start(path)
    if changed is not None:
        raise _ChangedError(
            f"{changed!r} has changed since this process began; whether SGLang has loaded what is there now or what "
            "was there before, nobody can tell"
        )


def is_offloading_decode_server() -> bool:
    """Whether the decoding half of a disaggregated server stores pages without a radix cache."""
    return bool(_read("get_disagg", "disaggregation_decode_enable_offload_kvcache"))


def keeps_beliefs() -> bool:
    """Whether SGLang's host memory is a buffer only, and SGLang remembers what it has stored."""
    return bool(_read("get_memory", "hicache_host_memory_mode") == "buffer_only")


def machines() -> int:
    """Of the server."""
    count = _read("get_parallel", "nnodes", 1)
    return count if isinstance(count, int) else 1


_ABSENT = object()


def _read(namespace: str, name: str, absent: Any = None) -> Any:
    """A field of SGLang's runtime context. Absent, too, if the context is not published."""
    try:
        return getattr(getattr(runtime_context, namespace)(), name, absent)
    except Exception:  # SGLang raises errors of several kinds
        return absent


def _rare_fields() -> dict[str, Any]:
    fields = {name: _read("get_model", name) for name in _RARE_MODEL_FIELDS}
    loader = _read("get_model", "model_loader_extra_config")
    if isinstance(loader, str):
        try:
            loader = json.loads(loader)
        except ValueError:
            loader = None
    if isinstance(loader, Mapping):
        fields.update({name: loader.get(name) for name in _LOADER_FIELDS})
    experts = _read("get_exec", "moe")
    if getattr(experts, "kt_weight_path", None) is not None:
        fields.update({name: getattr(experts, name, None) for name in _EXPERT_FIELDS})
    return {name: _plain(value) for name, value in fields.items() if value is not None}


def _stage(config: Any) -> dict[str, Any]:
    """Which of the model's layers this rank's stage of a pipeline has, from the first to before the last.

    Pools of hybrid models number their layers from 0 on in each stage. SGLang divides the layers by the operator's
    list, or evenly. Where their number is not known the list stands for it; without a list everything else in the
    identity says what evenly is.
    """
    if config.pp_size <= 1:
        return {}
    try:
        from sglang.srt.distributed.utils import get_pp_indices

        layers = runtime_context.process_model_config().num_hidden_layers
        return {"pp_layers": list(get_pp_indices(layers, config.pp_rank, config.pp_size))}
    except Exception:  # SGLang raises errors of several kinds
        return {"pp_layers": os.environ.get("SGLANG_PP_LAYER_PARTITION")}


def is_attached_at_run_time() -> bool:
    """Not at the start, which has just loaded the weights. SGLang notes its storage when the attach has succeeded."""
    return _read("get_memory", "hicache_storage_backend", _ABSENT) is None


def _digest_of(path: str) -> str:
    """Of a file that cannot be read SGLang makes scales of 1."""
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return "unreadable"


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value)


def _engine_version() -> str:
    try:
        from importlib.metadata import version

        return version("sglang")
    except Exception:
        return "unknown"
