// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "server/real_log_writer.h"

namespace larder {
namespace {

// Its writing end is full from the start on, and takes lines once somebody reads.
class LogWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);
    ASSERT_EQ(::pipe2(ends_, O_CLOEXEC), 0);
    ASSERT_EQ(::fcntl(ends_[1], F_SETFL, O_NONBLOCK), 0);
    const std::string filling(4096, '.');
    for (ssize_t wrote = 1; wrote > 0; wrote = ::write(ends_[1], filling.data(), filling.size())) filled_ += wrote;
    filled_ -= 1;
    ASSERT_EQ(::fcntl(ends_[1], F_SETFL, 0), 0);
    writer_.emplace(ends_[1], [](std::uint64_t lines) { return std::to_string(lines) + " left out\n"; });
  }
  void TearDown() override {
    if (ends_[0] >= 0) ::close(ends_[0]);  // whoever still writes hears of it
    writer_.reset();
    ::close(ends_[1]);
  }
  // All that was written behind the filling, once the writer is gone.
  std::string rest() {
    std::string all;
    std::thread end([this] {
      writer_.reset();
      ::close(ends_[1]);
      ends_[1] = -1;
    });
    char piece[65536];
    for (ssize_t got = 1; got > 0;) {
      got = ::read(ends_[0], piece, sizeof piece);
      if (got > 0) all.append(piece, static_cast<std::size_t>(got));
    }
    end.join();
    return all.substr(static_cast<std::size_t>(filled_));
  }

  int ends_[2] = {-1, -1};
  ssize_t filled_ = 0;
  std::optional<LogWriter> writer_;
};

TEST_F(LogWriterTest, NobodyWaitsForAReaderThatStallsAndTheOrderIsKept) {
  std::string expected;
  for (int i = 0; i < 1000; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    expected += line;
    writer_->add(line);
  }
  EXPECT_FALSE(writer_->is_written());
  EXPECT_FALSE(writer_->wait_written(std::chrono::milliseconds(1)));
  EXPECT_EQ(rest(), expected);
}

TEST_F(LogWriterTest, WhatDoesNotFitIsCountedWhereItWouldStand) {
  constexpr std::size_t kLines = 100'000;  // of 100 bytes
  const std::string line = std::string(99, 'x') + "\n";
  for (std::size_t i = 0; i < kLines; ++i) writer_->add(line);
  // Twice, where the queue is full before the writer looks for the first time.
  std::istringstream said(rest());
  std::size_t whole = 0, left_out = 0, notes = 0;
  for (std::string got; std::getline(said, got);) {
    const bool is_note = got.ends_with(" left out");
    notes += is_note ? 1 : 0;
    whole += is_note ? 0 : 1;
    if (is_note) left_out += std::stoul(got);
    if (!is_note) {
      EXPECT_EQ(got + "\n", line);
    }
  }
  EXPECT_EQ(whole + left_out, kLines);
  EXPECT_GT(left_out, 0u);
  EXPECT_GE(notes, 1u);
  EXPECT_LE(notes, 2u);
  EXPECT_LE(whole * line.size(), 2u << 20);
}

TEST_F(LogWriterTest, WithoutAReaderLinesAreLostAndNobodyWaits) {
  for (int i = 0; i < 10; ++i) writer_->add("line\n");
  ::close(ends_[0]);
  ends_[0] = -1;
  EXPECT_TRUE(writer_->wait_written(std::chrono::seconds(60)));
  writer_->add("one more\n");
  EXPECT_TRUE(writer_->wait_written(std::chrono::seconds(60)));
}

}  // namespace
}  // namespace larder
