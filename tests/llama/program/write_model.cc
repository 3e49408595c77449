// SPDX-License-Identifier: Apache-2.0
// larder_write_model ARCHITECTURE PATH [NAME=NUMBER]...: a GGUF model of random weights (engine/llama/libllama/
// random_model.h), for tests and benchmarks. Names: those of RandomModel's members; is_quantized=1 for Q4_0.
#include <cstdio>
#include <map>
#include <string>
#include <string_view>

#include "base/parse_number.h"
#include "engine/llama/libllama/llama_host.h"
#include "engine/llama/libllama/random_model.h"

namespace larder::llama {
namespace {

Status set_member(RandomModel& model, std::string_view argument) {
  const std::map<std::string_view, std::uint32_t*> members = {{"embedding", &model.embedding},
                                                              {"layers", &model.layers},
                                                              {"heads", &model.heads},
                                                              {"kv_heads", &model.kv_heads},
                                                              {"head_length", &model.head_length},
                                                              {"feed_forward", &model.feed_forward},
                                                              {"state_size", &model.state_size},
                                                              {"state_heads", &model.state_heads},
                                                              {"state_groups", &model.state_groups},
                                                              {"attention_interval", &model.attention_interval},
                                                              {"window", &model.window},
                                                              {"context_length", &model.context_length}};
  const std::size_t equals = argument.find('=');
  const std::string_view name = argument.substr(0, equals);
  const auto value = parse_number<std::uint32_t>(equals == argument.npos ? "" : argument.substr(equals + 1));
  if (!value || *value > 1'000'000) return invalid_argument(std::string(argument) + ": write NAME=NUMBER");
  const std::uint32_t number = *value;
  if (name == "is_quantized") {
    model.is_quantized = number != 0;
  } else if (name == "seed") {
    model.seed = number;
  } else if (const auto member = members.find(name); member != members.end()) {
    *member->second = number;
  } else {
    return invalid_argument(std::string(name) + ": no such number of a model");
  }
  return Status::ok();
}

Status run(int count, char** arguments) {
  if (count < 3) return invalid_argument("usage: larder_write_model ARCHITECTURE PATH [NAME=NUMBER]...");
  RandomModel model;
  model.architecture = arguments[1];
  for (int i = 3; i < count; ++i) LARDER_RETURN_IF_ERROR(set_member(model, arguments[i]));
  start_libllama();
  return write_random_model(model, arguments[2]);
}

}  // namespace
}  // namespace larder::llama

int main(int argc, char** argv) {
  const larder::Status status = larder::llama::run(argc, argv);
  if (!status.is_ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return status.is_ok() ? 0 : 1;
}
