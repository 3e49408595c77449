// SPDX-License-Identifier: Apache-2.0
#include "transfer/transfer.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "base/defect.h"
#include "transfer/staged_copies.h"

namespace larder {
namespace {

// One submitted transfer. The cache thread fills it; then the entry of its stream owns it, or the two entries of a
// staged one. Its steps arrive on one thread.
class Transfer {
 public:
  Transfer(const DevicePools& device, const HostPools* host, TransferRequest request, std::vector<LayerRange> steps,
           TransferEngine::Done done, std::shared_ptr<std::atomic<std::size_t>> in_flight)
      : device_(device),
        host_(host),
        request_(std::move(request)),
        steps_(std::move(steps)),
        done_(std::move(done)),
        in_flight_(std::move(in_flight)) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;
  // A device that drops an accepted transfer unrun still leads to one completion: the leases must come back.
  ~Transfer() {
    if (is_accepted_) finish(cancelled("the device dropped the transfer"));
  }

  [[nodiscard]] const TransferRequest& request() const { return request_; }
  [[nodiscard]] std::uint32_t steps() const { return static_cast<std::uint32_t>(steps_.size()); }
  [[nodiscard]] std::vector<LeasedSlot>& device_leases() { return device_leases_; }
  [[nodiscard]] std::vector<LeasedSlot>& host_leases() { return host_leases_; }
  void accept() { is_accepted_ = true; }
  void refuse(Status status) { finish(std::move(status)); }

  void append_copies(std::uint32_t step, std::vector<CopyOp>& out) const {
    for (std::uint32_t layer = steps_[step].first; layer < steps_[step].end; ++layer) {
      for (const ComponentKind c : kAllComponents) {
        const auto& pairs = request_.pairs[index_of(c)];
        if (!pairs.empty()) append_layer_copies(device_, host_, c, pairs, request_.direction, layer, out);
      }
    }
  }

  [[nodiscard]] std::uint32_t end_of(std::uint32_t step) const { return steps_[step].end; }
  // The copies of layers below `end` have been launched.
  void launched(std::uint32_t end, std::shared_ptr<DeviceEvent> event) const {
    if (request_.gate && end > 0) request_.gate->launch(end - 1, std::move(event));
  }
  void end_all(Status status) {
    if (defect(Defect::kCopyErrorIgnored)) status = Status::ok();
    finish(std::move(status));
  }
  void end_step(std::uint32_t step, Status status) {
    arrive(steps_[step].end, std::move(status));
    if (step + 1 == steps_.size()) finish(std::move(failure_));
  }
  // Layers below `end` have been copied, or not: `status`. From one thread.
  void arrive(std::uint32_t end, Status status) {
    if (defect(Defect::kCopyErrorIgnored)) status = Status::ok();
    if (!status.is_ok()) {
      if (request_.gate) request_.gate->fail(status);
      if (failure_.is_ok()) failure_ = std::move(status);
    } else if (failure_.is_ok() && request_.gate && end > 0) {
      request_.gate->arrive(end - 1);
    }
  }

 private:
  void finish(Status status) {
    is_accepted_ = false;
    if (!status.is_ok() && request_.gate) request_.gate->fail(status);
    // Before done_: whoever it wakes may submit at once. release pairs with the acquire in in_flight().
    in_flight_->fetch_sub(1, std::memory_order_release);
    done_({request_.id, std::move(status), std::move(device_leases_), std::move(host_leases_)});
  }

  const DevicePools& device_;
  const HostPools* const host_;
  const TransferRequest request_;
  const std::vector<LayerRange> steps_;
  const TransferEngine::Done done_;
  const std::shared_ptr<std::atomic<std::size_t>> in_flight_;
  std::vector<LeasedSlot> device_leases_;
  std::vector<LeasedSlot> host_leases_;
  Status failure_;
  bool is_accepted_ = false;
};

class StreamTransferEngine final : public TransferEngine {
 public:
  StreamTransferEngine(Device& device, DevicePools& pools, HostPools* host, std::size_t max_in_flight)
      : device_(device), pools_(pools), host_(host), max_in_flight_(max_in_flight) {
    const ModelSpec& model = pools.model();
    for (auto& bytes : layer_bytes_) bytes.resize(model.layer_count(), 0);
    for (const PoolSpec& pool : model.pools) {
      for (const std::uint32_t layer : pool.layers) layer_bytes_[index_of(pool.component)][layer] += pool.layer_bytes();
    }
  }
  StreamTransferEngine(const StreamTransferEngine&) = delete;
  StreamTransferEngine& operator=(const StreamTransferEngine&) = delete;
  ~StreamTransferEngine() override { device_.destroy_streams(made_); }  // staged_ is still there

  Status create_streams() {
    for (StreamId& stream : streams_) {
      auto created = device_.create_stream(max_in_flight_);
      if (!created) return created.status();
      stream = *created;
      made_.push_back(stream);
    }
    if (host_ == nullptr) return Status::ok();
    for (const CopyDirection direction : {CopyDirection::kDeviceToHost, CopyDirection::kHostToDevice}) {
      const auto way = static_cast<std::size_t>(direction);
      auto staged = StagedCopies::create(direction, device_, pools_, *host_, streams_[way], max_in_flight_);
      if (!staged) return staged.status();
      staged_[way] = std::move(staged).value();
      if (staged_[way]) made_.push_back(staged_[way]->near_stream());
    }
    return Status::ok();
  }

  Status submit(TransferRequest request, Done done) override;
  std::size_t in_flight() const override { return in_flight_->load(std::memory_order_acquire); }
  std::size_t max_in_flight() const override { return max_in_flight_; }
  bool serves(const DevicePools& device, const HostPools* host) const override {
    return &device == &pools_ && (host == nullptr || host == host_);
  }

 private:
  [[nodiscard]] Status check(const TransferRequest& request) const;
  [[nodiscard]] Status take_leases(Transfer& transfer);
  void drop_leases(Transfer& transfer);
  [[nodiscard]] std::vector<LayerRange> plan_steps(const TransferRequest& request) const;
  [[nodiscard]] Status enqueue_layers(const std::shared_ptr<Transfer>& transfer);
  [[nodiscard]] Status enqueue_staged(StagedCopies& staged, const std::shared_ptr<Transfer>& transfer);

  // constant after creation
  Device& device_;
  DevicePools& pools_;
  HostPools* const host_;
  const std::size_t max_in_flight_;
  std::array<StreamId, 3> streams_{};                                  // [CopyDirection]
  std::vector<StreamId> made_;                                         // these, and those of staged_
  std::array<std::vector<std::size_t>, kComponentCount> layer_bytes_;  // [component][model layer], of one pair

  std::array<std::unique_ptr<StagedCopies>, 2> staged_;  // [CopyDirection]; null: all go straight

  // atomic: up by the cache thread, down by a device thread. Shared, so that a late transfer may outlive the engine.
  const std::shared_ptr<std::atomic<std::size_t>> in_flight_ = std::make_shared<std::atomic<std::size_t>>(0);
};

Status StreamTransferEngine::check(const TransferRequest& request) const {
  const bool is_device_only = request.direction == CopyDirection::kDeviceToDevice;
  for (const ComponentKind c : kAllComponents) {
    const auto& pairs = request.pairs[index_of(c)];
    if (pairs.empty()) continue;
    if (!pools_.model().has(c)) {
      return invalid_argument("transfer of component " + std::string(component_name(c)) + ", which the model lacks");
    }
    if (!is_device_only && host_ == nullptr) return invalid_argument("transfer to or from the host without host pools");
    if (!is_device_only) continue;
    // Merged copies run in no order between pairs: a slot that is read and written would give either content.
    std::vector<DeviceSlot> sources;
    sources.reserve(pairs.size());
    for (const SlotPair& pair : pairs) sources.push_back(pair.source);
    std::sort(sources.begin(), sources.end());
    for (const SlotPair& pair : pairs) {
      if (std::binary_search(sources.begin(), sources.end(), pair.device)) {
        return invalid_argument("device slot " + std::to_string(pair.device.v) +
                                " is source and destination of one transfer");
      }
    }
  }
  return Status::ok();
}

Status StreamTransferEngine::take_leases(Transfer& transfer) {
  const auto take = [](auto& pools, ComponentKind c, auto slot, std::vector<LeasedSlot>& leases) {
    const auto generation = pools.add_lease(c, slot);
    if (!generation) return generation.status();
    leases.push_back({c, slot.v, *generation});
    return Status::ok();
  };
  const bool is_device_only = transfer.request().direction == CopyDirection::kDeviceToDevice;
  std::size_t count = 0;
  for (const auto& list : transfer.request().pairs) count += list.size();
  transfer.device_leases().reserve(is_device_only ? 2 * count : count);
  if (!is_device_only) transfer.host_leases().reserve(count);
  constexpr std::size_t kAhead = SlotTable::kPrefetchAhead;
  for (const ComponentKind c : kAllComponents) {
    const std::vector<SlotPair>& pairs = transfer.request().pairs[index_of(c)];
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (i + kAhead < pairs.size()) {
        pools_.slots(c).prefetch(pairs[i + kAhead].device.v);
        if (!is_device_only) host_->slots(c).prefetch(pairs[i + kAhead].host.v);
      }
      const SlotPair& pair = pairs[i];
      LARDER_RETURN_IF_ERROR(take(pools_, c, pair.device, transfer.device_leases()));
      LARDER_RETURN_IF_ERROR(is_device_only ? take(pools_, c, pair.source, transfer.device_leases())
                                            : take(*host_, c, pair.host, transfer.host_leases()));
    }
  }
  return Status::ok();
}

// Takes back what take_leases() took. The slots were live a moment ago, on this thread, so no drop can be refused.
void StreamTransferEngine::drop_leases(Transfer& transfer) {
  pools_.drop_leases(transfer.device_leases());
  if (host_ != nullptr) host_->drop_leases(transfer.host_leases());
}

// Ranges that end after a layer with bytes; the last one takes the layers without bytes that follow. Never empty: the
// last step carries the completion. Where nobody waits layer by layer they gather layers until they are worth a step.
// Else each layer that is worth a step is one, since the next one shall not delay it; of more layers than the device
// takes steps, steps share the bytes evenly.
std::vector<LayerRange> StreamTransferEngine::plan_steps(const TransferRequest& request) const {
  const std::uint32_t layers = pools_.model().layer_count();
  std::size_t enough = device_.step_bytes(), most_steps = 1;
  if (request.is_layerwise()) {
    std::size_t total = 0;
    for (std::size_t c = 0; c < kComponentCount; ++c) {
      for (const std::size_t layer_bytes : layer_bytes_[c]) total += request.pairs[c].size() * layer_bytes;
    }
    const std::size_t most = device_.most_gated_steps();
    enough = std::max<std::size_t>(device_.gated_step_bytes(), 1);
    if (layers > most) enough = std::max(enough, (total + most - 1) / most);
    most_steps = std::min<std::size_t>(layers, most);
  }
  std::vector<LayerRange> steps;
  steps.reserve(most_steps);
  LayerRange range;
  std::size_t bytes = 0;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    for (std::size_t c = 0; c < kComponentCount; ++c) bytes += request.pairs[c].size() * layer_bytes_[c][layer];
    range.end = layer + 1;
    if (bytes < enough) continue;
    steps.push_back(range);
    range.first = range.end;
    bytes = 0;
  }
  if (bytes > 0 || steps.empty()) {
    steps.push_back(range);
  } else {
    steps.back().end = layers;
  }
  return steps;
}

Status StreamTransferEngine::submit(TransferRequest request, Done done) {
  if (in_flight() >= max_in_flight_) {
    return overloaded("transfers: " + std::to_string(max_in_flight_) + " are in flight already");
  }
  LARDER_RETURN_IF_ERROR(check(request));
  const auto way = static_cast<std::size_t>(request.direction);
  StagedCopies* const staged = way < staged_.size() ? staged_[way].get() : nullptr;
  const bool is_staged = staged != nullptr && staged->suits(request);
  std::vector<LayerRange> steps;
  if (!is_staged) steps = plan_steps(request);
  auto transfer =
      std::make_shared<Transfer>(pools_, host_, std::move(request), std::move(steps), std::move(done), in_flight_);
  if (Status leased = take_leases(*transfer); !leased.is_ok()) {
    drop_leases(*transfer);
    return leased;
  }
  // Before the enqueue: it may complete inside it.
  transfer->accept();
  in_flight_->fetch_add(1, std::memory_order_relaxed);
  Status enqueued = is_staged ? enqueue_staged(*staged, transfer) : enqueue_layers(transfer);
  if (!enqueued.is_ok()) transfer->refuse(std::move(enqueued));
  return Status::ok();
}

// Straight between device and host, layers after layers.
Status StreamTransferEngine::enqueue_layers(const std::shared_ptr<Transfer>& transfer) {
  const CopyDirection direction = transfer->request().direction;
  StreamWork work;
  work.steps = transfer->steps();
  work.after = transfer->request().after;
  work.make_ops = [raw = transfer.get()](std::uint32_t step, std::vector<CopyOp>& out) {
    raw->append_copies(step, out);
  };
  work.launched = [raw = transfer.get()](std::uint32_t step, std::shared_ptr<DeviceEvent> event) {
    raw->launched(raw->end_of(step), std::move(event));
  };
  work.done = [transfer](std::uint32_t step, Status status) { transfer->end_step(step, std::move(status)); };
  return device_.enqueue(streams_[static_cast<std::size_t>(direction)], direction, std::move(work));
}

Status StreamTransferEngine::enqueue_staged(StagedCopies& staged, const std::shared_ptr<Transfer>& transfer) {
  StagedEnds ends;
  ends.launched = [raw = transfer.get()](std::uint32_t end, std::shared_ptr<DeviceEvent> event) {
    raw->launched(end, std::move(event));
  };
  ends.arrived = [raw = transfer.get()](std::uint32_t end, Status status) { raw->arrive(end, std::move(status)); };
  ends.done = [transfer](Status status) { transfer->end_all(std::move(status)); };
  return staged.enqueue(transfer->request(), std::move(ends));
}

}  // namespace

Result<std::unique_ptr<TransferEngine>> TransferEngine::create(Device& device, DevicePools& pools, HostPools* host,
                                                               std::size_t max_in_flight) {
  if (max_in_flight == 0) return invalid_argument("a transfer engine needs room for at least one transfer");
  if (host != nullptr && host->model().pools != pools.model().pools) {
    return conflict("host pools of model " + host->model().id + " and device pools of model " + pools.model().id +
                    " differ in geometry");
  }
  auto engine = std::make_unique<StreamTransferEngine>(device, pools, host, max_in_flight);
  LARDER_RETURN_IF_ERROR(engine->create_streams());
  return std::unique_ptr<TransferEngine>(std::move(engine));
}

}  // namespace larder
