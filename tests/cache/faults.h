// SPDX-License-Identifier: Apache-2.0
// Faults by script: a storage backend and a device that do as they are told at the nth call. (sim/faulty_backend.h
// draws its faults by a seed; here a test says which call fails and how, so that a loop over n reaches every one.)
//
// Threads: confined to the test's thread, like the ManualExecutor they run on.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/passing_backend.h"
#include "transfer/device.h"

namespace larder::test {

enum class Call : std::uint8_t { kExists, kRead, kWrite };
enum class Fault : std::uint8_t {
  kNone,
  kRefuse,  // at submit: nothing was taken
  kFail,    // every item, and the buffers of a read hold garbage
  kHold,    // not even begun until release(); with the backend's end at the latest
  kClear,   // somebody empties the store before the call
};

// For a script: only calls of this kind are held.
inline Fault hold(Call call, Call held) { return call == held ? Fault::kHold : Fault::kNone; }

class ScriptedBackend final : public support::PassingBackend {
 public:
  using PassingBackend::PassingBackend;
  ~ScriptedBackend() override {
    script = {};
    release();
  }

  std::function<bool(const ReadRequest&)> refuse_read;            // its queue is full for this one
  std::function<Fault(Call, std::size_t)> script;                 // call and its number, from 0
  std::function<Status(const ReadItem&, std::size_t)> read_item;  // item and its number over all reads
  std::function<Status(const PageGroup&)> write_group;            // group that the store took; not ok: it says so
  // What the cache asked for, before anything is done about it.
  std::function<void(const ExistsRequest&)> saw_exists;
  std::function<void(const ReadRequest&)> saw_read;
  std::function<void(const WriteRequest&)> saw_write;
  std::size_t calls[3] = {0, 0, 0};
  std::size_t items_read = 0, faults = 0;

  // Lets what is held begin, in order. How many.
  std::size_t release() {
    std::vector<std::function<void()>> ending;
    ending.swap(held_);
    for (const auto& begin : ending) begin();
    return ending.size();
  }
  [[nodiscard]] std::size_t held() const { return held_.size(); }

  [[nodiscard]] Status submit_exists(ExistsRequest request, ExistsDone done) override {
    if (saw_exists) saw_exists(request);
    return take(Call::kExists, [this, request, done](bool fails) {
      const Status s = fails ? unavailable("scripted") : inner_->submit_exists(request, done);
      if (!s.is_ok()) done({s, {}});
    });
  }
  [[nodiscard]] Status submit_read(ReadRequest request, ReadDone done) override {
    if (refuse_read && refuse_read(request)) return overloaded("scripted");
    scribble(request);
    if (saw_read) saw_read(request);
    return take(Call::kRead, [this, request, done](bool fails) {
      const auto ended = [this, request, done](ReadResult result) {
        for (std::size_t i = 0; i < result.items.size(); ++i) {
          const Status injected = read_item ? read_item(request.items[i], items_read) : Status::ok();
          ++items_read;
          if (injected.is_ok()) continue;
          ++faults;
          result.items[i] = injected;
          scribble({request.scope, {request.items[i]}, {}});
        }
        done(std::move(result));
      };
      const Status s = fails ? unavailable("scripted") : inner_->submit_read(request, ended);
      if (!s.is_ok()) done({std::vector<Status>(request.items.size(), s)});
    });
  }
  [[nodiscard]] Status submit_write(WriteRequest request, WriteDone done) override {
    if (saw_write) saw_write(request);
    return take(Call::kWrite, [this, request, done](bool fails) {
      const auto ended = [this, request, done](WriteResult result) {
        for (std::size_t i = 0; write_group && i < result.groups.size(); ++i) {
          if (const Status said = write_group(request.groups[i]); !said.is_ok()) result.groups[i] = said;
        }
        done(std::move(result));
      };
      const Status s = fails ? unavailable("scripted") : inner_->submit_write(request, ended);
      if (!s.is_ok()) done({std::vector<Status>(request.groups.size(), s)});
    });
  }

 private:
  template <class Begin>
  Status take(Call call, Begin begin) {
    const std::size_t number = calls[static_cast<std::size_t>(call)]++;
    const Fault fault = script ? script(call, number) : Fault::kNone;
    if (fault != Fault::kNone) ++faults;
    switch (fault) {
      case Fault::kRefuse: return overloaded("scripted");
      case Fault::kHold: held_.push_back([begin] { begin(false); }); break;
      case Fault::kClear:
        if (const Status s = inner_->submit_clear(nullptr, [](Status) {}); !s.is_ok()) return s;
        begin(false);
        break;
      case Fault::kFail: begin(true); break;
      case Fault::kNone: begin(false); break;
    }
    return Status::ok();
  }
  static void scribble(const ReadRequest& request) {
    for (const ReadItem& item : request.items) {
      for (const Segment& piece : item.payload) {
        for (std::size_t i = 0; i < piece.size; ++i) piece.data[i] = static_cast<std::byte>(0xE5 + i);
      }
    }
  }

  std::vector<std::function<void()>> held_;
};

// Transfers of one direction fail at enqueue (kRefuse), complete with an error, their destination garbage (kFail), or
// wait until release() (kHold).
class ScriptedDevice final : public Device {
 public:
  explicit ScriptedDevice(std::unique_ptr<Device> inner) : inner_(std::move(inner)) {}

  std::function<Fault(CopyDirection, std::size_t)> script;  // direction and its transfer's number, from 0
  std::size_t transfers[3] = {0, 0, 0};
  std::size_t faults = 0;

  [[nodiscard]] std::string_view name() const override { return inner_->name(); }
  [[nodiscard]] MemorySource& memory() override { return inner_->memory(); }
  [[nodiscard]] Result<StreamId> create_stream(std::size_t queue_limit) override {
    return inner_->create_stream(queue_limit);
  }
  void destroy_streams(std::span<const StreamId> streams) override { inner_->destroy_streams(streams); }
  [[nodiscard]] Status enqueue(StreamId stream, CopyDirection direction, StreamWork work) override {
    const std::size_t number = transfers[static_cast<std::size_t>(direction)]++;
    const Fault fault = script ? script(direction, number) : Fault::kNone;
    if (fault != Fault::kNone) ++faults;
    if (fault == Fault::kRefuse) return overloaded("scripted");
    if (fault == Fault::kHold) {
      held_.push_back({stream, direction, std::move(work)});
      return Status::ok();
    }
    if (fault == Fault::kFail) work = failing(std::move(work));
    return inner_->enqueue(stream, direction, std::move(work));
  }
  void synchronize() override { inner_->synchronize(); }
  // Lets what is held begin, in order; or fail. Call it before the cache goes.
  [[nodiscard]] Status release(bool fails = false) {
    Status all;
    for (Held& held : std::exchange(held_, {})) {
      if (fails) held.work = failing(std::move(held.work));
      const Status begun = inner_->enqueue(held.stream, held.direction, std::move(held.work));
      if (all.is_ok()) all = begun;
    }
    return all;
  }

 private:
  struct Held {
    StreamId stream;
    CopyDirection direction;
    StreamWork work;
  };
  static StreamWork failing(StreamWork work) {
    work.make_ops = [make = std::move(work.make_ops)](std::uint32_t step, std::vector<CopyOp>& out) {
      if (make) make(step, out);
      for (CopyOp& op : out) scribble(op);
      out.clear();
    };
    work.done = [done = std::move(work.done)](std::uint32_t step, Status) {
      if (done) done(step, unavailable("scripted"));
    };
    return work;
  }
  static void scribble(const CopyOp& op) {
    for (std::size_t row = 0; row < op.rows; ++row) {
      for (std::size_t i = 0; i < op.width; ++i) op.dst[row * op.dst_pitch + i] = std::byte{0xA7};
    }
  }

  const std::unique_ptr<Device> inner_;
  std::vector<Held> held_;
};

}  // namespace larder::test
