// SPDX-License-Identifier: Apache-2.0
#include "server/real_child_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "base/metrics.h"
#include "server/http_listener.h"

namespace larder {
namespace {

constexpr auto kChildLimit = std::chrono::seconds(60);

// A llama-server that is started anew while the proxy listens, and outlives it for a while.
TEST(ChildProcess, AChildDoesNotKeepAPortTaken) {
  MetricsRegistry metrics;
  ListenOptions options;
  options.port = 0;
  const auto listen = [&] {
    return HttpListener::create(
        options, [](const HttpRequest&, const std::shared_ptr<HttpExchange>&) {}, metrics);
  };
  auto listener = listen();
  ASSERT_TRUE(listener.is_ok()) << listener.status().to_string();
  options.port = (*listener)->port();
  ChildProcess child;
  ASSERT_TRUE(child.start({"/bin/sh", "-c", "echo there; exec sleep 600"}, "").is_ok());
  ASSERT_EQ(child.read_line(kChildLimit).status().to_string(),
            Status::ok().to_string());  // it has become the other program
  listener->reset();
  const auto again = listen();
  EXPECT_TRUE(again.is_ok()) << again.status().to_string();
}

TEST(ChildProcess, AChildGetsTheDescriptorsThatItsArgumentsNameAndNoOthers) {
  int named[2] = {-1, -1}, other[2] = {-1, -1};
  ASSERT_EQ(::pipe(named), 0);
  ASSERT_EQ(::pipe(other), 0);
  ASSERT_EQ(::write(named[1], "from a pipe\n", 12), 12);
  const std::string place = "/dev/fd/" + std::to_string(named[0]);
  ChildProcess child;
  const std::string script = "read line < $1; echo $line; test -e /proc/self/fd/$2 && echo open || echo closed";
  ASSERT_TRUE(child.start({"/bin/sh", "-c", script, "sh", place, std::to_string(other[0])}, "").is_ok());
  EXPECT_EQ(child.read_line(kChildLimit).value_or(""), "from a pipe");
  EXPECT_EQ(child.read_line(kChildLimit).value_or(""), "closed");
  for (const int descriptor : {named[0], named[1], other[0], other[1]}) ::close(descriptor);
}

// As `--lora <(one),<(another)` of a shell.
TEST(ChildProcess, AnArgumentMayNameSeveralDescriptors) {
  int first[2] = {-1, -1}, second[2] = {-1, -1};
  ASSERT_EQ(::pipe(first), 0);
  ASSERT_EQ(::pipe(second), 0);
  ASSERT_EQ(::write(first[1], "one\n", 4), 4);
  ASSERT_EQ(::write(second[1], "two\n", 4), 4);
  const std::string places = "/dev/fd/" + std::to_string(first[0]) + ",/dev/fd/" + std::to_string(second[0]);
  ChildProcess child;
  const std::string script = "for place in $(echo $1 | tr , ' '); do read line < $place; echo $line; done";
  ASSERT_TRUE(child.start({"/bin/sh", "-c", script, "sh", places}, "").is_ok());
  EXPECT_EQ(child.read_line(kChildLimit).value_or(""), "one");
  EXPECT_EQ(child.read_line(kChildLimit).value_or(""), "two");
  for (const int descriptor : {first[0], first[1], second[0], second[1]}) ::close(descriptor);
}

}  // namespace
}  // namespace larder
