// SPDX-License-Identifier: Apache-2.0
#include "storage/pipeline/storage_pipeline.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "storage/operation.h"
#include "storage/pipeline/pipeline_core.h"

namespace larder {

StoragePipeline::StoragePipeline(std::unique_ptr<StorageBackend> inner, std::shared_ptr<PipelineCore> core,
                                 std::unique_ptr<Executor> threads)
    : threads_(std::move(threads)), core_(std::move(core)), inner_(std::move(inner)) {}

StoragePipeline::~StoragePipeline() { core_->begin_close(Nanos(-1)); }

Status StoragePipeline::submit_exists(ExistsRequest request, ExistsDone done) {
  LARDER_RETURN_IF_ERROR(check_request(request, done));
  return core_->submit(queue_exists(std::move(request), std::move(done), core_->keeps_keys(), core_->now()));
}

Status StoragePipeline::submit_read(ReadRequest request, ReadDone done) {
  LARDER_RETURN_IF_ERROR(check_request(request, done));
  return core_->submit(queue_read(std::move(request), std::move(done), core_->now()));
}

Status StoragePipeline::submit_write(WriteRequest request, WriteDone done) {
  LARDER_RETURN_IF_ERROR(check_request(request, done));
  if (request.as_of.is_none()) request.as_of = inner_->clear_mark();
  return core_->submit(queue_write(std::move(request), std::move(done), core_->now()));
}

Status StoragePipeline::submit_clear(std::shared_ptr<const StoreScope> scope, ClearDone done) {
  LARDER_RETURN_IF_ERROR(check_request(scope, done));
  return core_->submit(queue_clear(std::move(scope), std::move(done), core_->now()));
}

BackendStats StoragePipeline::stats() const {
  BackendStats out = inner_->stats();
  out.queued += core_->waiting();
  return out;
}

Status StoragePipeline::close(std::chrono::nanoseconds limit) {
  limit = std::max(limit, std::chrono::nanoseconds(0));
  core_->begin_close(limit);
  LARDER_RETURN_IF_ERROR(inner_->close(limit));
  if (core_->wait_settled(limit)) return Status::ok();
  return deadline_exceeded("storage backend '" + info().name + "': operations are still in flight");
}

void StoragePipeline::tick() { core_->tick(); }
Status StoragePipeline::check_wait(Lane lane) { return core_->check_wait(lane); }
PipelineHealth StoragePipeline::health() const { return core_->health(); }

std::unique_ptr<StoragePipeline> make_pipeline(std::unique_ptr<StorageBackend> inner, const PipelineOptions& options,
                                               Clock& clock, MetricsRegistry* metrics, std::uint64_t seed,
                                               std::unique_ptr<Executor> threads) {
  assert(inner);
  auto core = std::make_shared<PipelineCore>(*inner, options, clock, metrics, seed);
  return std::make_unique<StoragePipeline>(std::move(inner), std::move(core), std::move(threads));
}

}  // namespace larder
