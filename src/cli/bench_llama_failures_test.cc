// SPDX-License-Identifier: Apache-2.0
// Servers of `larder bench llama` that fail late: a clear error, and none of them is left.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.h"
#include "bench/bench_llama.h"
#include "tests/support/temporary_directory.h"

namespace larder {
namespace {

// It is llama-server, or `larder proxy` with a process behind it that computes nothing. The file "fault" beside it says
// what goes wrong, in which of both, and at which request; each process writes its number into "processes".
constexpr const char* kFakeServer = R"(#!/usr/bin/env python3
import http.server, os, signal, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROLE = "proxy" if sys.argv[1] == "proxy" else "plain"
FAULT, WHERE, WHEN = open(HERE + "/fault").read().split()
BEHIND = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL) if ROLE == "proxy" else None
asked = 0


def is_due(fault):
    return (fault, ROLE, str(asked)) == (FAULT, WHERE, WHEN)


def end(code):
    if BEHIND:
        BEHIND.kill()
        BEHIND.wait()
    os._exit(code)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer(200, b"{}")

    def do_POST(self):
        global asked
        self.rfile.read(int(self.headers["Content-Length"]))
        if "action=restore" in self.path:
            return self.answer(400 if FAULT == "restore" else 200, b"{}")
        asked += self.path == "/completion"
        if is_due("die"):
            print("out of cells", file=sys.stderr, flush=True)
            end(3)
        if is_due("lose"):
            BEHIND.kill()
            BEHIND.wait()
        self.answer(500 if is_due("refuse") else 200, b'{"timings":{"cache_n":0}}')

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("X-Larder-Reused-Tokens", "0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


with open(HERE + "/processes", "a") as file:
    print(os.getpid(), file=file)
signal.signal(signal.SIGTERM, lambda *_: end(3 if is_due("stop") else 0))
port = int(sys.argv[sys.argv.index("--port") + 1])
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
if ROLE == "proxy":
    print("a proxy on http://127.0.0.1:%d before it\na model" % server.server_port, flush=True)
server.serve_forever()
)";

class LateFailures : public testing::Test {
 protected:
  LateFailures() {
    write("server", kFakeServer);
    write("model.gguf", "");
    EXPECT_EQ(::chmod(path("server").c_str(), 0755), 0);
    options_.llama_server = options_.larder = path("server");
    options_.rows = {1};  // the second one that is asked
    options_.repeats = 1;
    options_.shows_progress = false;
  }
  void SetUp() override {
    if (std::system("python3 -c 'import http.server' 2>/dev/null") != 0) GTEST_SKIP() << "there is no python3";
  }
  void TearDown() override {
    if (IsSkipped()) return;
    std::ifstream in(path("processes"));
    int started = 0;
    for (int process = 0; in >> process; ++started) {
      EXPECT_TRUE(::kill(process, 0) == -1 && errno == ESRCH) << "a process is left";
    }
    EXPECT_GT(started, 0);
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  void write(const std::string& name, const std::string& text) const {
    const auto file = real_file_system().open(path(name), {.write = true, .create = true, .truncate = true});
    EXPECT_TRUE(file.is_ok() && write_fully(**file, std::as_bytes(std::span(text)), 0).is_ok()) << name;
  }
  // fault: "die plain 2".
  [[nodiscard]] std::string error_of(const std::string& fault) const {
    write("fault", fault);
    const Status status = run_llama_model(options_, path("model.gguf")).status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.to_string();
    return status.message();
  }

  const support::TemporaryDirectory folder_;
  LlamaBenchOptions options_;
};

TEST_F(LateFailures, OfLlamaServer) {
  const std::string death = error_of("die plain 2");
  EXPECT_TRUE(death.starts_with("llama-server: it has ended: ")) << death;
  EXPECT_NE(death.find("\nthe server said:\n  out of cells"), std::string::npos) << death;
  EXPECT_TRUE(error_of("refuse plain 2").starts_with("llama-server: /completion: HTTP 500: "));
  EXPECT_TRUE(error_of("stop plain 2").starts_with("llama-server: it ended with exit code 3"));
}

TEST_F(LateFailures, OfLlamaServerAfterARestart) {
  options_.rows = {9};
  EXPECT_TRUE(error_of("restore plain 0").starts_with("llama-server: slot restore: HTTP 400: "));
}

TEST_F(LateFailures, OfTheProxy) {
  options_.fronts = {LlamaSetup::kProxy};
  const std::string death = error_of("die proxy 2");
  EXPECT_TRUE(death.starts_with("proxy: it has ended: ")) << death;
  EXPECT_NE(death.find("\nthe server said:\n  out of cells"), std::string::npos) << death;
  EXPECT_TRUE(error_of("refuse proxy 2").starts_with("proxy: /completion: HTTP 500: "));
  EXPECT_TRUE(error_of("stop proxy 2").starts_with("proxy: it ended with exit code 3"));
}

// The proxy starts it again, and goes on with empty slots: the rows would tell of another server than they say.
TEST_F(LateFailures, OfLlamaServerBehindTheProxy) {
  options_.fronts = {LlamaSetup::kProxy};
  const std::string loss = error_of("lose proxy 2");
  EXPECT_TRUE(loss.starts_with("proxy: its llama-server has ended")) << loss;
}

TEST_F(LateFailures, EndTheCommandWithACode) {
  write("fault", "die plain 2");
  std::vector<std::string> words = {"larder bench llama",
                                    "--llama-server",
                                    path("server"),
                                    "--model",
                                    path("model.gguf"),
                                    "--rows",
                                    "1",
                                    "--repeats",
                                    "1"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  EXPECT_EQ(bench_llama(static_cast<int>(arguments.size()), arguments.data()), 1);
}

}  // namespace
}  // namespace larder
