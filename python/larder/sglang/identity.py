# SPDX-License-Identifier: Apache-2.0
"""The identity text of a space: all that gives the state its meaning, besides the layouts of the pools.

Not in it: adapter (LoRA) and salt. SGLang seeds its page keys with both.
"""

import hashlib
import json
import threading
from typing import Any, Mapping, Optional

from sglang.srt import runtime_context

from larder.sglang.settings import Settings
from larder.sglang.weights import weights_fingerprint

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


def canonical(value: Any) -> str:
    """JSON with one spelling per value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


Weights = tuple[Any, Any, Optional[str]]  # path, revision, version


class Identity:
    """Makes the identity text, anew when SGLang's weights change at run time.

    Any thread. Construction raises ValueError, which says which key of the extra config to set.
    """

    def __init__(self, config: Any, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._fingerprints: dict[tuple[str, Optional[str]], str] = {}
        self._last: tuple[Any, str] = (None, "")
        self._fixed = {
            "engine": "sglang",
            "engine_version": settings.engine_version or _engine_version(),
            "model_name": config.model_name,
            "pp_size": config.pp_size,
            # Says nothing, and stays for the pages that are stored: which heads a page has is in its space (heads.py).
            "tp_lcm_size": None,
            "should_split_heads": False,
            "dcp": [config.dcp_rank, config.dcp_size, config.logical_page_size],
            **_cache_scales(),
        }
        self._require_model_fields()
        self.text()
        self.draft = self._draft()

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
        weights = self._settings.weights_fingerprint or self._fingerprint(now[0], now[1], "weights_fingerprint")
        return canonical(
            {**self._fixed, "model": fields, "weights": weights, "weight_version": now[2]},
        )

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
        weights = given or self._fingerprint(path, revision, "draft_weights_fingerprint")
        fields = {"path": path, "revision": revision, "weights": weights}
        quantization = _read("get_spec", "speculative_draft_model_quantization")
        if quantization != _read("get_model", "quantization"):  # the target's is in the text
            fields["quantization"] = quantization
        return canonical(fields)

    def _fingerprint(self, path: Any, revision: Any, key: str) -> str:
        place = (str(path), revision)
        if place not in self._fingerprints:
            try:
                self._fingerprints[place] = weights_fingerprint(*place)
            except ValueError as error:
                raise ValueError(f"larder: {error}. Set {key} in the extra config to a text that names the weights.")
        return self._fingerprints[place]

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
    return {name: _plain(value) for name, value in fields.items() if value is not None}


def _cache_scales() -> dict[str, str]:
    """What a cache of 8-bit numbers is multiplied with, if a file says it: bytes with other scales are other numbers.

    Read once, as SGLang does. Of a file that cannot be read SGLang makes scales of 1.
    """
    path = _read("get_model", "quantization_param_path")
    if path is None:
        return {}
    try:
        with open(path, "rb") as file:
            return {"cache_scales": hashlib.sha256(file.read()).hexdigest()}
    except OSError:
        return {"cache_scales": "unreadable"}


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
