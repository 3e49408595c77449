// SPDX-License-Identifier: Apache-2.0
#include "tests/shared/killed_sharer.h"

#include <unistd.h>

#include <atomic>
#include <memory>

#include "sim/faulty_backend.h"
#include "tests/shared/shared_rig.h"
#include "tests/support/real_killed_process.h"

namespace larder::shared_tests {
namespace {

[[noreturn]] void wait_for_the_end() {
  while (true) ::pause();
}

int run_host(const std::vector<std::string>& arguments) {
  Environment environment;
  const std::string store = arguments.at(4);
  const std::uint64_t most = std::stoull(arguments.at(5));
  std::atomic<std::uint64_t> operations{0};
  const auto open_inner = [&]() -> Result<std::unique_ptr<StorageBackend>> {
    auto file = environment.create("file", store);
    if (!file.is_ok()) return file.status();
    auto faulty = std::make_unique<sim::FaultyBackend>(std::move(*file), 1);
    sim::FaultyBackend& holder = *faulty;
    if (most == 0) holder.set_plan({.is_holding = true});
    return std::unique_ptr<StorageBackend>(std::make_unique<HookedBackend>(std::move(faulty), [&] {
      if (operations.fetch_add(1) + 1 == most) holder.set_plan({.is_holding = true});
      support::say("op\n");
    }));
  };
  auto backend = environment.open(options_in(arguments.at(2)), open_inner);
  if (!backend.is_ok()) return 1;
  support::say(std::string(shared_role_name((*backend)->role())) + "\n");
  wait_for_the_end();
}

int run_client(const std::vector<std::string>& arguments) {
  Environment environment;
  const std::uint64_t count = std::stoull(arguments.at(4));
  const auto open_inner = [] { return Result<std::unique_ptr<StorageBackend>>(internal_error("a client opens none")); };
  auto backend = environment.open(options_in(arguments.at(2)), open_inner);
  if (!backend.is_ok()) return 1;
  support::say(std::string(shared_role_name((*backend)->role())) + "\n");
  std::vector<Pending<WriteResult>> writes;
  std::vector<Pending<ReadResult>> reads;
  for (std::uint64_t i = 0; i < count; ++i) {
    writes.push_back(start_write(**backend, 1000 + i, 20'000));
    reads.push_back(start_read(**backend, i, 20'000));
  }
  for (auto& write : writes) {
    if (write.wait().groups.size() == 1) support::say("done\n");
  }
  wait_for_the_end();
}

}  // namespace

int run_sharer(const std::vector<std::string>& arguments) {
  return arguments.at(3) == "host" ? run_host(arguments) : run_client(arguments);
}

}  // namespace larder::shared_tests
