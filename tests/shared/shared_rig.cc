// SPDX-License-Identifier: Apache-2.0
#include "tests/shared/shared_rig.h"

#include "base/file_system.h"
#include "storage/file/file_backend.h"
#include "storage/memory/memory_backend.h"

namespace larder::shared_tests {
namespace {

template <class ResultType, class Submit>
Pending<ResultType> start(const Submit& submit, const ResultType& refused) {
  auto promise = std::make_shared<std::promise<ResultType>>();
  Pending<ResultType> pending{promise->get_future()};
  const Status status = submit([promise](ResultType result) { promise->set_value(std::move(result)); });
  if (status.is_ok()) return pending;
  ResultType out = refused;
  if constexpr (requires { out.groups; }) out.groups = {status};
  if constexpr (requires { out.items; }) out.items = {status};
  if constexpr (requires { out.status; }) out.status = status;
  promise->set_value(std::move(out));
  return pending;
}

std::shared_ptr<PageBuffer> buffer_of(std::uint64_t number, std::size_t bytes) {
  Rng rng(number + 1);
  return std::make_shared<PageBuffer>(bytes, 1 + rng.below(3), rng);
}

}  // namespace

Environment::Environment() {
  EXPECT_TRUE(register_memory_backend(factory_).is_ok());
  EXPECT_TRUE(register_file_backend(factory_).is_ok());
}

Result<std::unique_ptr<StorageBackend>> Environment::create(const std::string& kind, const std::string& directory) {
  BackendOptions options;
  if (kind == "file") options = {{"directory", directory}, {"segment_size", "1Mi"}, {"max_size", "256Mi"}};
  return factory_.create(kind, options, {&real_file_system(), &real_clock(), &inner});
}

Pending<WriteResult> start_write(StorageBackend& backend, std::uint64_t number, std::size_t bytes, bool durable,
                                 const ClearMark& as_of) {
  auto buffer = buffer_of(number, bytes);
  buffer->fill(key_of(number), PoolName::kKv);
  WriteRequest request{scope_of_tests(), {{{{PoolName::kKv, key_of(number), buffer->segments()}}}}, durable, {}, as_of};
  return start<WriteResult>(
      [&](auto promised) {
        return backend.submit_write(std::move(request),
                                    [promised, buffer](WriteResult result) { promised(std::move(result)); });
      },
      {});
}

Pending<ClearDone> start_clear(StorageBackend& backend, std::shared_ptr<const StoreScope> scope) {
  return start<ClearDone>(
      [&](auto promised) {
        return backend.submit_clear(std::move(scope), [promised](Status status) { promised({std::move(status)}); });
      },
      {});
}

Pending<ExistsResult> start_exists(StorageBackend& backend, std::uint64_t number) {
  ExistsRequest request{scope_of_tests(), {key_of(number)}, {PoolName::kKv}};
  return start<ExistsResult>([&](auto promised) { return backend.submit_exists(std::move(request), promised); }, {});
}

Pending<ReadResult> start_read(StorageBackend& backend, std::uint64_t number, std::size_t bytes) {
  auto buffer = buffer_of(number, bytes);
  ReadRequest request{scope_of_tests(), {{PoolName::kKv, key_of(number), buffer->segments()}}};
  return start<ReadResult>(
      [&](auto promised) {
        return backend.submit_read(std::move(request), [promised, buffer, number](ReadResult result) {
          if (result.items.at(0).is_ok() && !buffer->holds(key_of(number), PoolName::kKv)) {
            ADD_FAILURE() << "WRONG BYTES of page " << number;
            result.items[0] = corrupt("wrong bytes");
          }
          promised(std::move(result));
        });
      },
      {});
}

}  // namespace larder::shared_tests
