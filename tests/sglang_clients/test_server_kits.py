# SPDX-License-Identifier: Apache-2.0
"""Checks that SGLang's wheel brings for its own server (`sglang.test.kits`), here against `larder serve`.

Those that need a model that knows something, log probabilities or regular expressions are left out.
"""

import json
import re
import unittest

import clients
import pytest
import requests
from larder_server import LarderServer
from storage_tiers import BACKENDS, storage_options

clients.stand_in_for_datasets()

from sglang.test.kits.basic_api_contract_kit import BasicAPIContractMixin
from sglang.test.kits.basic_decode_correctness_kit import BasicDecodeCorrectnessMixin
from sglang.test.kits.cache_hit_kit import run_multiturn_cache_hit_test
from sglang.test.kits.matched_stop_kit import MatchedStopMixin
from sglang.test.kits.prefix_cache_branching_kit import PrefixCacheBranchingMixin
from sglang.test.kits.unified_radix_cache_kit import AccuracyTwoPassMixin

PAGE = 64
# gdn-tiny with another vocabulary: a kit draws token ids up to 30,000.
WIDE_MODEL = {
    "id": "gdn-wide",
    "page_size": PAGE,
    "vocab_size": 32000,
    "layers": ["gdn", "gdn", "gdn", "attention"],
    "dims": {"ssm_heads": 4, "ssm_key_heads": 2, "ssm_head_dim": 16, "ssm_state_dim": 16, "conv_kernel": 4},
}


class Probe(unittest.TestCase):
    """What the kits' classes want to be mixed with: a test that knows a server."""

    __test__ = False  # pytest: no test by itself

    def __init__(self, server):
        super().__init__()
        self.base_url = server.url

    def runTest(self):
        """The kits' methods are called one by one."""


def checks_of(kit):
    return sorted(name for name in vars(kit) if name.startswith("test_"))


@pytest.mark.parametrize("check", checks_of(BasicAPIContractMixin))
def test_contract(server, check):
    kind = type("Contract", (BasicAPIContractMixin, Probe), {"served_model_name": "gdn-tiny"})
    getattr(kind(server), check)()


@pytest.mark.parametrize("check", ["test_determinism_temp_zero", "test_max_token_one"])
def test_decoding(server, check):
    kind = type("Decoding", (BasicDecodeCorrectnessMixin, Probe), {"sanity_max_new_tokens_short": 32})
    getattr(kind(server), check)()


def test_why_an_answer_ended(server):
    kind = type("Endings", (MatchedStopMixin, Probe), {"model": "gdn-tiny"})
    kind(server).test_finish_length()


@pytest.mark.parametrize("model", ["gdn-tiny", "swa-tiny", "dsv4-tiny"])
def test_turns_hit_all_pages_of_the_turn_before(tokenizer, conversations_file, model):
    with LarderServer("--model", model) as server:
        page = server.ask("/server_info")["page_size"]
        result = run_multiturn_cache_hit_test(
            server.url, str(tokenizer), num_clients=4, num_rounds=4, request_length=3 * page // 2, output_length=32,
            dataset_path=str(conversations_file), max_parallel=4)
    hits = [result["rounds"][f"round_{number}"]["cache_hit_rate"] for number in range(4)]
    assert hits[0] == 0 and hits == sorted(hits), hits


def test_third_branch_hits_where_the_first_two_part(server):
    """SGLang's rule for recurrent models. Each word of the kit's texts is one token, as with SGLang's tokenizers."""
    words = {"hi": 1, "this": 2, "here": 3, "that": 4}

    class Branching(PrefixCacheBranchingMixin):
        base_url = server.url
        cache_chunk_size = PAGE

        @classmethod
        def flush_cache(cls):
            server.flush()

        @classmethod
        def send_request_helper(cls, text):
            tokens = [words[word] for word in re.findall("|".join(words), text)]
            body = {"input_ids": tokens, "sampling_params": {"max_new_tokens": 1}}
            return requests.post(cls.base_url + "/generate", json=body, timeout=60).json()

    Branching.test_prefix_cache_branching()


@pytest.mark.parametrize("backend", BACKENDS)
def test_storage_has_the_whole_prompt_after_a_flush(tmp_path, backend):
    model = tmp_path / "wide.json"
    model.write_text(json.dumps(WIDE_MODEL))
    kind = type("TwoPasses", (AccuracyTwoPassMixin, Probe), {"l3_prefetch_page_size": PAGE})
    with LarderServer("--model", model, *storage_options(backend, tmp_path / "storage")) as server:
        kind(server).test_l3_prefetch_full_prefix_hit_after_flush()
        reused = {source: server.metric("sglang:cached_tokens_total", cache_source=source)
                  for source in ("device", "host", "total")}
    assert reused == {"device": 0, "host": 0, "total": 15 * PAGE}, "it came from storage, all of it"
