// SPDX-License-Identifier: Apache-2.0
#include "tests/mooncake_slow/real_store.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace larder::mooncake_test {
namespace {

constexpr Nanos kStartLimit = std::chrono::seconds(60);

// Lends memory until it is ended. It asks a master that is not up yet again and again.
constexpr const char* kOwner = R"(
import signal, sys
from mooncake import store
client = store.MooncakeDistributedStore()
code = client.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[2]) << 20, 0, "tcp", "", sys.argv[1])
print("up" if code == 0 else code, flush=True)
signal.pause()
)";

std::string environment_directory() { return std::string(LARDER_SOURCE_DIR) + "/build/mooncake/bin/"; }

}  // namespace

std::string RealStore::python() { return environment_directory() + "python"; }

std::string RealStore::why_not_here() {
  const bool is_here = ::access(python().c_str(), X_OK) == 0;
  EXPECT_TRUE(is_here || std::getenv("LARDER_TEST_ALL_SERVERS") == nullptr) << "run tools/mooncake_env.sh";
  return is_here ? "" : "there is no real Mooncake Store: run tools/mooncake_env.sh";
}

RealStore::RealStore(std::uint64_t megabytes, std::chrono::milliseconds lease) : megabytes_(megabytes), lease_(lease) {
  port_ = free_loopback_port().value();
  metrics_port_ = free_loopback_port().value();
  start_master();
  start_owner();
}

RealStore::~RealStore() {
  kill_owner();
  kill_master();
}

BackendOptions RealStore::options() const {
  return {{"master_server_address", "127.0.0.1:" + std::to_string(port_)},
          {"local_hostname", "127.0.0.1"},
          {"protocol", "tcp"},
          {"global_segment_size", "0"},
          {"python", python()}};
}

void RealStore::start_master() {
  master_ = std::make_unique<ChildProcess>();
  const Status started = master_->start(
      {environment_directory() + "mooncake_master", "--rpc_address=127.0.0.1", "--rpc_port=" + std::to_string(port_),
       "--metrics_host=127.0.0.1", "--metrics_port=" + std::to_string(metrics_port_), "--client_ttl=5",
       "--default_kv_lease_ttl=" + std::to_string(lease_.count()), "--put_start_discard_timeout_sec=2",
       "--put_start_release_timeout_sec=3"},
      directory_.path() + "/master.log");
  ASSERT_TRUE(started.is_ok()) << started.to_string();
}

void RealStore::stop_master() const {
  ::kill(master_->pid(), SIGSTOP);
  int state = 0;
  while (::waitpid(master_->pid(), &state, WUNTRACED) < 0 && errno == EINTR) {}
  EXPECT_TRUE(WIFSTOPPED(state)) << "the master has ended, with state " << state;
}

void RealStore::kill_master() {
  if (master_ && master_->is_running()) {
    master_->kill_now();
    (void)master_->stop(kStartLimit);
  }
}

void RealStore::start_owner() {
  owner_ = std::make_unique<ChildProcess>();
  const Status started =
      owner_->start({python(), "-c", kOwner, "127.0.0.1:" + std::to_string(port_), std::to_string(megabytes_)},
                    directory_.path() + "/owner.log");
  ASSERT_TRUE(started.is_ok()) << started.to_string();
  const Result<std::string> line = owner_->read_line(kStartLimit);
  ASSERT_TRUE(line.is_ok() && *line == "up") << tail_of_file(directory_.path() + "/owner.log", 5);
}

void RealStore::kill_owner() {
  if (owner_ && owner_->is_running()) {
    owner_->kill_now();
    (void)owner_->stop(kStartLimit);
  }
}

}  // namespace larder::mooncake_test
