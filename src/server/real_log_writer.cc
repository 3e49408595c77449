// SPDX-License-Identifier: Apache-2.0
#include "server/real_log_writer.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <new>
#include <string_view>
#include <utility>

namespace larder {
namespace {

constexpr std::size_t kMostQueuedBytes = 1u << 20;

// In one call where the system takes it whole, so that lines of several processes do not mix.
void write_line(int descriptor, std::string_view line) {
  while (!line.empty()) {
    const ssize_t wrote = ::write(descriptor, line.data(), line.size());
    if (wrote > 0) {
      line.remove_prefix(static_cast<std::size_t>(wrote));
      continue;
    }
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote >= 0 || errno != EAGAIN) return;
    pollfd room{descriptor, POLLOUT, 0};  // whoever shares the descriptor has told it not to wait
    (void)::poll(&room, 1, -1);
  }
}

// A thread inherits what is blocked. This one blocks everything: signals are for the threads that look for them.
template <class Run>
std::thread thread_without_signals(Run run) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread made(std::move(run));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return made;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace

LogWriter::LogWriter(int descriptor, std::function<std::string(std::uint64_t)> left_out)
    : descriptor_(descriptor), left_out_line_(std::move(left_out)) {
  thread_ = thread_without_signals([this] { run(); });
}

LogWriter::~LogWriter() {
  {
    const std::lock_guard guard(mutex_);
    is_ending_ = true;
  }
  added_.notify_one();
  thread_.join();
}

void LogWriter::add(std::string line) {
  {
    const std::lock_guard guard(mutex_);
    // What follows a line that was left out is left out, too, until there is room: then one line tells of all.
    if (left_out_ > 0 || (!lines_.empty() && bytes_ + line.size() > kMostQueuedBytes)) {
      ++left_out_;
      return;
    }
    const std::size_t size = line.size() + sizeof line;
    lines_.push_back(std::move(line));
    bytes_ += size;
    unwritten_.fetch_add(1, std::memory_order_release);
  }
  added_.notify_one();
}

bool LogWriter::wait_written(Nanos limit) {
  std::unique_lock lock(mutex_);
  return written_.wait_for(lock, limit, [this] { return is_written(); });
}

void LogWriter::write_batch(std::vector<std::string>& lines, std::uint64_t left_out) {
  for (const std::string& line : lines) write_line(descriptor_, line);
  if (left_out == 0) return;
  try {
    write_line(descriptor_, left_out_line_(left_out));
  } catch (const std::bad_alloc&) {  // by contract
  }
}

void LogWriter::run() {
  pthread_setname_np(pthread_self(), "larder-log");
  std::vector<std::string> lines;
  std::unique_lock lock(mutex_);
  for (;;) {
    added_.wait(lock, [this] { return !lines_.empty() || is_ending_; });
    if (lines_.empty()) return;
    lines.swap(lines_);
    bytes_ = 0;
    const std::uint64_t left_out = std::exchange(left_out_, 0);
    lock.unlock();
    write_batch(lines, left_out);
    const std::size_t count = lines.size();
    lines.clear();
    lock.lock();
    unwritten_.fetch_sub(count, std::memory_order_release);
    if (is_written()) written_.notify_all();
  }
}

}  // namespace larder
